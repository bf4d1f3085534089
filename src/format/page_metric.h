// Gives the error metric of a page of K, which rotates with the page's position. Encoders that shape errors
// use the metric.
//
// RoPE rotates a query at position t by R(t), and a key at position p by R(p). Relative to the key, the
// queries that read the key are similar everywhere in a text. E[R(t - p) q q^T R(t - p)^T] describes their
// directions. Keys are stored after rotation, where the same queries give a different matrix at each
// position. A head's constant therefore holds directions in the frame of a page's middle, m, and R(m) rotates
// the directions to the page.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "format/error_metric.h"
#include "format/format.h"
#include "transform/transform.h"

namespace kvant {

// kPageMetric is the model constant of a head's K. The constant holds directions V, [d][kMetricRank], in the
// model's channels and in the frame of a page's middle, then ChannelFrames, [d][2].
inline constexpr const char* kPageMetric = "page-metric";

// Describes how RoPE rotates a channel. The channels of a pair (a, b) that rotates by w per token have turns
// of opposite sign:
//   x_a <- x_a cos w - x_b sin w,  x_b <- x_b cos w + x_a sin w
struct ChannelFrame {
  float partner = 0;  // the channel with which this one rotates, or its own index if it does not rotate
  float turn = 0;     // whole turns per token, -1/2 to 1/2
};

std::size_t page_metric_size(int d);
// Builds the constant kPageMetric from directions V, [d][kMetricRank].
std::vector<float> page_metric_constant(std::span<const float> directions, std::span<const ChannelTurn> turns,
                                        int d);

struct PageMetric {
  std::span<const float> directions;     // [d][kMetricRank]
  std::span<const ChannelFrame> frames;  // [d]
};
// Splits the constant kPageMetric into its parts, which refer to `constant`.
PageMetric read_page_metric(std::span<const float> constant, int d);

// Returns R(position) v for the directions v, one direction per row, [kMetricRank][d].
std::vector<float> turned_rows(const PageMetric& metric, int position);
// Makes the metric of directions, one per row.
ErrorMetric metric_of_rows(std::span<const float> rows);

// Returns the position of a page's middle, given the position of the page's first token.
constexpr int middle_of_page(int first_position) {
  return first_position + kPageTokens / 2;
}

// Returns the error metric of the page of K whose first token has position `first_position`, in the basis
// after `transform`. Returns nothing if the head has no constant kPageMetric.
std::optional<ErrorMetric> metric_of_page(const HeadConstants& constants, const Transform& transform, int d,
                                          int first_position);

// Encodes the page at `first_position`, with its error metric if the format shapes errors. `transform` has
// been applied to `values` [kPageTokens, d].
void encode_page(const Format& format, const Transform& transform, const PageContext& context,
                 int first_position, const TokenMask& left_out, const float* values, std::byte* page);

}  // namespace kvant
