// The metric of a page of K, which turns with the page.
//
// RoPE turns a query at position t, and a key at position p, by R(t) and R(p). Which queries read a key is
// much the same everywhere in a text, relative to the key: what a head looks for lies in
// E[R(t - p) q q^T R(t - p)^T]. In the channels as they are stored, turned, that is another matrix at each
// position. So the constant of a head holds directions in the frame of a page's middle, m, and R(m) takes
// them to the page.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "format/error_metric.h"
#include "format/format.h"
#include "transform/transform.h"

namespace kvant {

// The constant of a head's K: directions V, [d][kMetricRank], in the channels of the model and the frame of
// a page's middle, then turns, [d][2].
inline constexpr const char* kPageMetric = "page-metric";

// Of a channel, how RoPE turns it. For the pair (a, b) that turns by w a token, x_a <- x_a cos w - x_b sin w
// and x_b <- x_b cos w + x_a sin w: b has the other sign.
struct ChannelFrame {
  float partner = 0;  // the channel that it turns with; itself, if it stands still
  float turn = 0;     // in whole turns a token, -1/2 to 1/2
};

std::size_t page_metric_size(int d);
// directions: V, [d][kMetricRank].
std::vector<float> page_metric_constant(std::span<const float> directions, std::span<const ChannelTurn> turns,
                                        int d);

struct PageMetric {
  std::span<const float> directions;     // [d][kMetricRank]
  std::span<const ChannelFrame> frames;  // [d]
};
// What such a constant holds.
PageMetric read_page_metric(std::span<const float> constant, int d);

// Where the middle of a page is whose first token has this position.
constexpr int middle_of_page(int first_position) {
  return first_position + kPageTokens / 2;
}

// The metric of errors of K in the page whose first token has position `first_position`, in the basis behind
// `transform`: nothing where no queries of the head are known.
std::optional<ErrorMetric> metric_of_page(const HeadConstants& constants, const Transform& transform, int d,
                                          int first_position);

// Format::encode of that page's values, which `transform` has transformed, in the metric of its place.
void encode_page(const Format& format, const Transform& transform, const PageContext& context,
                 int first_position, const TokenMask& left_out, const float* values, std::byte* page);

}  // namespace kvant
