#include "calibrate/checkpoint_constants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "format/page_metric.h"

namespace kvant {
namespace {

// The rotations per token may differ by this much, relatively, because PyTorch computes them in F32.
constexpr float kMostDifference = 1e-3F;

bool is_metric(const std::string& name) {
  return name.ends_with(std::string(":") + kPageMetric);
}

// Pairs holds the channels that rotate together, in the order of their first channels.
using Pairs = std::vector<std::pair<int, int>>;

// Returns the channel pairs of a metric. Returns nothing if the rotations of the pairs are not the model's.
std::optional<Pairs> pairs_of(const PageMetric& metric, const std::vector<ChannelTurn>& turns) {
  Pairs pairs;
  const auto d = static_cast<int>(metric.frames.size());
  for (int i = 0; i < d; ++i) {
    const float partner = metric.frames[i].partner;
    if (!(partner >= 0 && partner < static_cast<float>(d))) return std::nullopt;
    if (static_cast<int>(partner) > i) pairs.emplace_back(i, static_cast<int>(partner));
  }
  if (pairs.size() != turns.size()) return std::nullopt;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto share =
        static_cast<float>(std::ldexp(static_cast<double>(static_cast<std::int64_t>(turns[i].step)), -64));
    const float difference = metric.frames[pairs[i].first].turn - share;
    if (!(std::abs(difference) <= kMostDifference * std::abs(share))) return std::nullopt;
  }
  return pairs;
}

// Returns, for each channel of the model, the channel's index in the checkpoint.
std::vector<int> order_of(const Pairs& pairs, const std::vector<ChannelTurn>& turns, int d) {
  std::vector<int> order(d);
  for (int i = 0; i < d; ++i) order[i] = i;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    order[turns[i].first] = pairs[i].first;
    order[turns[i].second] = pairs[i].second;
  }
  return order;
}

std::vector<float> reordered(const PageMetric& metric, std::span<const int> order,
                             const std::vector<ChannelTurn>& turns) {
  std::vector<float> directions;
  for (const int channel : order) {
    const auto row = metric.directions.subspan(std::size_t{kMetricRank} * channel, kMetricRank);
    directions.insert(directions.end(), row.begin(), row.end());
  }
  return page_metric_constant(directions, turns, static_cast<int>(order.size()));
}

class Translation {
 public:
  Translation(const GgufModel& model, const std::string& path) : model_(model), path_(path) {
    for (std::vector<ChannelTurn> turns : model.turns) {
      std::sort(turns.begin(), turns.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      turns_.push_back(std::move(turns));
    }
  }

  Result<Constants> of(const Constants& theirs) {
    Constants ours;
    theirs.for_each(
        [&](int layer, int kv_head, Side side, const std::string& name, const std::vector<float>& values) {
          if (!is_metric(name)) return;
          knows_order_ = true;
          ours.set(layer, kv_head, side, name, metric(layer, values));
        });
    theirs.for_each([&](int layer, int kv_head, Side side, const std::string& name,
                        const std::vector<float>& values) {
      if (is_metric(name)) return;
      if ((!knows_order_ || reorders_) && name.find("sensitivity/") == std::string::npos)
        fail(fmt::format(
            "its '{}' may be of channels in another order; only metrics can be put into this one's", name));
      ours.set(layer, kv_head, side, name, values);
    });
    if (failure_) return *failure_;
    return ours;
  }

 private:
  void fail(const std::string& what) {
    if (!failure_)
      failure_ = error("the calibration '{}' of a checkpoint does not fit this model: {}", path_, what);
  }

  std::vector<float> metric(int layer, const std::vector<float>& values) {
    const int d = model_.geometry.dim(layer);
    if (values.size() != page_metric_size(d)) {
      fail("its heads have another number of channels");
      return values;
    }
    const PageMetric metric = read_page_metric(values, d);
    const auto pairs = pairs_of(metric, turns_[layer]);
    if (!pairs) {
      fail(fmt::format("RoPE rotates the channels of layer {} differently", layer));
      return values;
    }
    const std::vector<int> order = order_of(*pairs, turns_[layer], d);
    reorders_ = reorders_ || !std::is_sorted(order.begin(), order.end());
    return reordered(metric, order, turns_[layer]);
  }

  const GgufModel& model_;
  const std::string& path_;
  std::vector<std::vector<ChannelTurn>> turns_;  // turns of each layer, in the order of first channels
  bool knows_order_ = false, reorders_ = false;
  std::optional<Error> failure_;
};

}  // namespace

bool is_of_checkpoint(const Calibration& calibration) {
  return calibration.fingerprint.find('-') != std::string::npos;
}

Result<Calibration> for_gguf_model(const Calibration& calibration, const GgufModel& model,
                                   const std::string& path) {
  const LayersAndHeads theirs = layers_and_heads(calibration.constants);
  const Geometry& g = model.geometry;
  if (theirs != LayersAndHeads{g.n_layers, g.n_kv_heads}) {
    return error(
        "the calibration '{}' is of a checkpoint ({}) of {} layers with {} KV heads, and this model has {} "
        "with {}",
        path, calibration.model, theirs.layers, theirs.kv_heads, g.n_layers, g.n_kv_heads);
  }
  if (model.balances_keys) {
    return error(
        "the calibration '{}' is of a checkpoint ({}), whose keys have other sizes than this program's, "
        "which "
        "balances norms of queries and keys: run kvant calibrate with this model",
        path, calibration.model);
  }
  auto constants = Translation(model, path).of(calibration.constants);
  if (!constants.ok()) return constants.error();
  Calibration ours = calibration;
  ours.constants = std::move(constants).value();
  ours.fingerprint = model.fingerprint;
  return ours;
}

}  // namespace kvant
