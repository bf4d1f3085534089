// The error metric of a page of K, which rotates with the page's position.
//
// RoPE rotates a query at position t by R(t), and a key at position p by R(p). Relative to the key, the
// queries that read it are similar everywhere in a text: E[R(t - p) q q^T R(t - p)^T] describes what a head
// looks for. In the channels as they are stored, after rotation, that is a different matrix at each position.
// So a head's constant holds directions in the frame of a page's middle, m, and R(m) rotates them to the
// page.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "format/error_metric.h"
#include "format/format.h"
#include "transform/transform.h"

namespace kvant {

// The model constant of a head's K: directions V, [d][kMetricRank], in the model's channels and the frame of
// a page's middle, then channel frames, [d][2].
inline constexpr const char* kPageMetric = "page-metric";

// Describes how RoPE rotates a channel. For the pair (a, b) that rotates by w per token, x_a <- x_a cos w -
// x_b sin w and x_b <- x_b cos w + x_a sin w, so b has the other sign.
struct ChannelFrame {
  float partner = 0;  // the channel that it rotates with; itself if it does not rotate
  float turn = 0;     // whole turns per token, -1/2 to 1/2
};

std::size_t page_metric_size(int d);
// Builds the constant from directions V, [d][kMetricRank].
std::vector<float> page_metric_constant(std::span<const float> directions, std::span<const ChannelTurn> turns,
                                        int d);

struct PageMetric {
  std::span<const float> directions;     // [d][kMetricRank]
  std::span<const ChannelFrame> frames;  // [d]
};
// Splits the constant into its parts.
PageMetric read_page_metric(std::span<const float> constant, int d);

// The position of a page's middle, given that of its first token.
constexpr int middle_of_page(int first_position) {
  return first_position + kPageTokens / 2;
}

// Returns the error metric of the page of K whose first token has position `first_position`, in the basis
// after `transform`. Returns nothing if the head has no such constant.
std::optional<ErrorMetric> metric_of_page(const HeadConstants& constants, const Transform& transform, int d,
                                          int first_position);

// Calls Format::encode for the values of that page, which `transform` has already transformed, with the
// page's metric.
void encode_page(const Format& format, const Transform& transform, const PageContext& context,
                 int first_position, const TokenMask& left_out, const float* values, std::byte* page);

}  // namespace kvant
