#include "format/page_metric.h"

#include <cmath>
#include <cstddef>
#include <numbers>

#include "base/check.h"

namespace kvant {

static_assert(sizeof(ChannelFrame) == 2 * sizeof(float));

std::vector<float> turned_rows(const PageMetric& metric, int position) {
  const auto d = static_cast<int>(metric.frames.size());
  std::vector<float> rows(metric.directions.size());
  for (int i = 0; i < d; ++i) {
    const ChannelFrame& frame = metric.frames[i];
    const auto partner = static_cast<int>(frame.partner);
    KVANT_CHECK(partner >= 0 && partner < d, "a turn with a channel that the head doesn't have");
    // The product of a 24-bit and a 31-bit number is exact in double, and so is the remainder after whole
    // turns.
    const double turns = static_cast<double>(frame.turn) * position;
    const double angle = (turns - std::nearbyint(turns)) * 2 * std::numbers::pi;
    const double cosine = std::cos(angle), sine = std::sin(angle);
    for (int r = 0; r < kMetricRank; ++r) {
      const double own = metric.directions[static_cast<std::size_t>(i) * kMetricRank + r];
      const double other = metric.directions[static_cast<std::size_t>(partner) * kMetricRank + r];
      rows[static_cast<std::size_t>(r) * d + i] = static_cast<float>(own * cosine - other * sine);
    }
  }
  return rows;
}

ErrorMetric metric_of_rows(std::span<const float> rows) {
  const std::size_t d = rows.size() / kMetricRank;
  std::vector<float> directions(rows.size());
  for (std::size_t i = 0; i < d; ++i)
    for (std::size_t r = 0; r < kMetricRank; ++r) directions[i * kMetricRank + r] = rows[r * d + i];
  return ErrorMetric(directions);
}

std::size_t page_metric_size(int d) {
  return static_cast<std::size_t>(d) * (kMetricRank + 2);
}

std::vector<float> page_metric_constant(std::span<const float> directions, std::span<const ChannelTurn> turns,
                                        int d) {
  KVANT_CHECK(directions.size() == static_cast<std::size_t>(d) * kMetricRank,
              "directions of a different head size");
  std::vector<ChannelFrame> frames(d);
  for (int i = 0; i < d; ++i) frames[i].partner = static_cast<float>(i);
  for (const ChannelTurn& turn : turns) {
    const auto share =
        static_cast<float>(std::ldexp(static_cast<double>(static_cast<std::int64_t>(turn.step)), -64));
    frames[turn.first] = {static_cast<float>(turn.second), share};
    frames[turn.second] = {static_cast<float>(turn.first), -share};
  }
  std::vector<float> constant(directions.begin(), directions.end());
  for (const ChannelFrame& frame : frames) constant.insert(constant.end(), {frame.partner, frame.turn});
  return constant;
}

PageMetric read_page_metric(std::span<const float> constant, int d) {
  KVANT_CHECK(constant.size() == page_metric_size(d), "a metric of a different head size");
  const std::size_t n = static_cast<std::size_t>(d) * kMetricRank;
  return {constant.first(n),
          {reinterpret_cast<const ChannelFrame*>(constant.data() + n), static_cast<std::size_t>(d)}};
}

std::optional<ErrorMetric> metric_of_page(const HeadConstants& constants, const Transform& transform, int d,
                                          int first_position) {
  const std::span<const float> constant = constants.find(kPageMetric);
  if (constant.empty()) return std::nullopt;
  std::vector<float> rows = turned_rows(read_page_metric(constant, d), middle_of_page(first_position));
  transform.query({rows.data(), kMetricRank, d}, nullptr);
  return metric_of_rows(rows);
}

void encode_page(const Format& format, const Transform& transform, const PageContext& context,
                 int first_position, const TokenMask& left_out, const float* values, std::byte* page) {
  const std::optional<ErrorMetric> metric =
      format.shapes_errors() ? metric_of_page(context.constants, transform, context.head_dim, first_position)
                             : std::nullopt;
  if (!metric) return format.encode(values, left_out, context, page);
  PageContext shaped = context;
  shaped.metric = &*metric;
  format.encode(values, left_out, shaped, page);
}

}  // namespace kvant
