#include "model/device_executor.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>

namespace kvant {
namespace {

constexpr std::size_t kMaxDevicePlans = 16;
// A server has a few graphs for each number of completions, with and without prompts, so it needs up to this
// many.
constexpr std::size_t kMaxDeviceGraphs = 32;
// Least recently used graphs are dropped while the activations of all graphs together are larger than this.
constexpr std::int64_t kMaxIdleDeviceBytes = std::int64_t{1} << 30;

}  // namespace

DeviceExecutor::DeviceExecutor(const Hparams& hparams, const Weights& weights,
                               std::shared_ptr<ComputeDevice> device, DeviceProducts products, int n_threads)
    : hparams_(hparams),
      weights_(weights),
      device_(std::move(device)),
      products_(products),
      attention_(device_->pages()),
      host_attention_(hparams, n_threads),
      states_(hparams, device_),
      observed_(device_->pages()) {}

Result<const PlanTransforms*> DeviceExecutor::transforms_for(const Step& step) {
  const auto found = std::find_if(transforms_.begin(), transforms_.end(),
                                  [&](const auto& t) { return t->plan().get() == &step.plan(); });
  if (found != transforms_.end()) {
    std::rotate(transforms_.begin(), found, found + 1);
    return transforms_.front().get();
  }
  if (transforms_.size() >= kMaxDevicePlans) {
    const Plan* dropped = transforms_.back()->plan().get();
    std::erase_if(graphs_, [&](const auto& g) { return g->plan() == dropped; });
    transforms_.pop_back();
  }
  auto made = PlanTransforms::make(step.placed(), device_->backend());
  if (!made.ok()) return made.error();
  transforms_.insert(transforms_.begin(), std::move(made).value());
  return transforms_.front().get();
}

GraphShape DeviceExecutor::shape_of(const Step& step, const ForwardRows& rows) const {
  GraphShape shape{
      static_cast<int>(rows.tokens.size()), static_cast<int>(rows.logit_rows.size()), {}, rows.short_rope};
  if (hparams_.n_recurrent() == 0) return shape;
  for (const StepSlice& slice : step.slices()) {
    if (shape.runs.empty() || shape.runs.back().n_tokens != slice.n_tokens)
      shape.runs.push_back({0, slice.n_tokens});
    ++shape.runs.back().n_slices;
  }
  return shape;
}

Result<DeviceGraph*> DeviceExecutor::graph_for(const PlanTransforms& transforms, const GraphShape& shape) {
  if (!states_.has_room_for(shape.n_slices())) {
    graphs_.clear();
    KVANT_RETURN_IF_ERROR(states_.reserve(shape.n_slices()));
  }
  const auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const auto& g) {
    return g->plan() == transforms.plan().get() && g->shape() == shape;
  });
  if (found != graphs_.end()) {
    std::rotate(graphs_.begin(), found, found + 1);
    return graphs_.front().get();
  }
  std::int64_t bytes = 0;
  for (const auto& g : graphs_) bytes += g->bytes();
  while (!graphs_.empty() && (graphs_.size() >= kMaxDeviceGraphs || bytes > kMaxIdleDeviceBytes)) {
    bytes -= graphs_.back()->bytes();
    graphs_.pop_back();
  }
  auto built = DeviceGraph::build(hparams_, weights_, products_, transforms, device_->backend(), shape,
                                  states_.memory());
  if (!built.ok()) return built.error();
  graphs_.insert(graphs_.begin(), std::move(built).value());
  return graphs_.front().get();
}

// The host looks rows up, because its code reads all types of weights.
void DeviceExecutor::look_up(const ggml_tensor& table, std::span<const std::int32_t> tokens, float scale,
                             std::vector<float>& rows) {
  const std::size_t n = table.ne[0];
  rows.resize(tokens.size() * n);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const char* row = static_cast<const char*>(table.data) + tokens[i] * table.nb[1];
    float* to = rows.data() + i * n;
    if (table.type == GGML_TYPE_F32) {
      std::copy_n(reinterpret_cast<const float*>(row), n, to);
    } else {
      ggml_get_type_traits(table.type)->to_float(row, to, static_cast<std::int64_t>(n));
    }
  }
  if (scale == 1) return;
  for (float& x : rows) x *= scale;
}

void DeviceExecutor::find_values(const ForwardRows& rows) {
  look_up(*weights_.token_embedding(), rows.tokens, hparams_.embedding_scale, values_.embedded);
  if (hparams_.n_layer_embd > 0) {
    look_up(*weights_.layer_embedding(), rows.tokens, std::sqrt(static_cast<float>(hparams_.n_layer_embd)),
            values_.embedded_for_layers);
  }
  values_.query_scales.clear();
  if (hparams_.temperature == 0) return;
  for (const std::int32_t position : rows.positions)
    values_.query_scales.push_back(hparams_.query_scale(position));
}

Status DeviceExecutor::attend(Step& step, RowObserver* observer, const DeviceGraph& g,
                              const LayerTransforms& t, int layer, bool has_kv) {
  const ShownRows shown = observer == nullptr || !has_kv ? ShownRows::nothing : observer->wants(step, layer);
  const bool shows_now = shown >= ShownRows::inputs;
  if (shows_now) observed_.read_inputs(g, step.plan(), layer, t);
  device_->pages_after_graph();
  if (shown == ShownRows::queries) KVANT_RETURN_IF_ERROR(observed_.keep_queries(g, step.plan(), n_kept_));
  attention_.run_layer(
      step, layer,
      {g.q(), has_kv ? g.k() : nullptr, has_kv ? g.v() : nullptr, g.attended(), t.library_k, t.library_v});
  device_->graph_after_pages();
  if (shown == ShownRows::none || shown == ShownRows::queries)
    shown_later_.push_back({layer, shown == ShownRows::queries ? n_kept_++ : -1});
  if (!shows_now || step.failed()) return {};
  observed_.read_outputs(g, step.plan(), layer, t, shown);
  observer->see(step, layer, observed_.rows());
  return {};
}

void DeviceExecutor::show_later(Step& step, RowObserver& observer, const DeviceGraph& g,
                                const PlanTransforms& transforms) {
  for (const auto [layer, nth] : shown_later_) {
    if (step.failed()) return;
    observed_.clear();
    if (nth >= 0) observed_.read_kept(g, step.plan(), layer, transforms.layer(layer), nth);
    observer.see(step, layer, observed_.rows());
  }
}

Status DeviceExecutor::run_on_device(Step& step, AttentionBackend& backend, DeviceGraph& g,
                                     const PlanTransforms& transforms) {
  // The first segment runs while attention is being prepared. With delta nets it must wait, because the
  // segment changes their states, and a step that cannot begin must leave them unchanged.
  const bool starts_early = hparams_.n_recurrent() == 0;
  if (starts_early) KVANT_RETURN_IF_ERROR(g.start(0));
  KVANT_RETURN_IF_ERROR(attention_.begin(step));
  if (hparams_.n_recurrent() > 0) states_.load(step, g);
  RowObserver* observer = backend.observer();
  n_kept_ = 0;
  int site = 0;
  for (int layer = 0; layer < hparams_.n_layers; ++layer) {
    if (hparams_.recurrent[layer]) continue;
    if (site > 0 || !starts_early) KVANT_RETURN_IF_ERROR(g.start(site));
    const int place = hparams_.place[layer];
    KVANT_RETURN_IF_ERROR(attend(step, observer, g, transforms.layer(place), place, hparams_.has_kv(layer)));
    ++site;
  }
  KVANT_RETURN_IF_ERROR(g.start(site));
  if (hparams_.n_recurrent() > 0) states_.store(step, g);
  return {};
}

Status DeviceExecutor::run(Step& step, AttentionBackend& backend, const ForwardRows& rows,
                           MatrixView<float> logits) {
  const bool on_host = !step.placed().on_device();
  KVANT_CHECK(on_host || step.placed().device() == device_->pages(), "a cache whose pages lie elsewhere");
  KVANT_CHECK(!on_host || hparams_.n_recurrent() == 0, "recurrent states that lie elsewhere");
  device_->pages()->enter();
  const auto transforms = transforms_for(step);
  if (!transforms.ok()) return transforms.error();
  const auto graph = graph_for(**transforms, shape_of(step, rows));
  if (!graph.ok()) return graph.error();
  DeviceGraph& g = **graph;
  find_values(rows);
  g.set_rows(rows, values_);
  shown_later_.clear();
  if (on_host) {
    KVANT_RETURN_IF_ERROR(host_attention_.run(step, backend, g));
  } else {
    KVANT_RETURN_IF_ERROR(run_on_device(step, backend, g, **transforms));
  }
  if (logits.rows > 0) g.read_logits(logits);
  if (!shown_later_.empty()) show_later(step, *backend.observer(), g, **transforms);
  if (logits.rows == 0) return {};
  KVANT_RETURN_IF_ERROR(device_->pages()->finish());
  for (int r = 0; r < logits.rows; ++r) {
    if (!std::isfinite(logits.row(r)[0]))
      return error(
          "the logits of a step are not finite numbers: the model's weights or its activations are broken");
  }
  return {};
}

}  // namespace kvant
