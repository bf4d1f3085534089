#include "attention/prompt_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "format/format.h"

namespace kvant {
namespace {

constexpr float kLargestCode = 127;

// Holds rows in F32. SageAttention's K with the mean put back needs this precision, and no stored format has
// it.
class F32Rows final : public Format {
 public:
  F32Rows() : Format("f32") {}
  std::size_t page_bytes(int head_dim) const override { return sizeof(float) * kPageTokens * head_dim; }
  void encode(const float* values, const TokenMask& /*left_out*/, const PageContext& context,
              std::byte* page) const override {
    std::memcpy(page, values, page_bytes(context.head_dim));
  }
  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    std::memcpy(values, page, sizeof(float) * n_tokens * context.head_dim);
  }
};

const Format& f32_rows() {
  static const F32Rows format;
  return format;
}

// Returns the format of a tile: K by channel over the tile's tokens and V by token over its channels, as in
// VQuant's cache.
const Format& low_bit_format(PromptAttention attention, Side side) {
  const bool int8 = attention == PromptAttention::int8;
  const char* k = int8 ? "ch8g64" : "ch4g64";
  const char* v = int8 ? "tok8g512" : "tok4g512";
  const Format* format = find_format(side == Side::key ? k : v);
  KVANT_CHECK(format != nullptr, "the formats of a prompt's tiles exist");
  return *format;
}

// Returns rows [kPageTokens, d]. Rows after the page's tokens are zero.
std::vector<float> decoded(const PageSide& side, int n_tokens, int d) {
  std::vector<float> values(static_cast<std::size_t>(kPageTokens) * d);
  side.format->decode(side.bytes, n_tokens, *side.context, values.data());
  return values;
}

// Rounds n values to whole multiples of their largest magnitude / 127.
void round_tile(float* x, std::size_t n) {
  float largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
  const float scale = largest / kLargestCode;
  if (scale == 0) return;
  for (std::size_t i = 0; i < n; ++i) x[i] = std::nearbyint(x[i] / scale) * scale;
}

bool in_block(const PromptBlock& block, const PageView& page) {
  return !page.is_protected && page.first_token >= block.first_token && page.first_token <= block.query_page;
}

// Returns the mean of K over the block's tokens, by channel.
std::vector<double> key_mean(const PromptBlock& block, const std::vector<PageView>& pages) {
  const int d = block.head_dim;
  std::vector<double> mean(d, 0.0);
  for (const PageView& page : pages) {
    if (page.is_protected || page.first_token < block.first_token) continue;
    const std::vector<float> k = decoded(page.k, page.n_tokens, d);
    for (int t = 0; t < page.n_tokens; ++t) {
      for (int c = 0; c < d; ++c) mean[c] += k[static_cast<std::ptrdiff_t>(t) * d + c];
    }
  }
  for (double& m : mean) m /= block.end_token - block.first_token;
  return mean;
}

// Returns the score above which a token is a vertical line (VQuant eq. 7), from all tokens that have a score
// by now.
float vertical_threshold(const PromptBlock& block) {
  const int n_scored = block.scores == nullptr ? 0 : std::min(block.query_page, block.scores->size());
  return n_scored == 0 ? std::numeric_limits<float>::infinity()
                       : block.scores->quantile(block.protect, n_scored);
}

// Marks the tokens of a page that VQuant leaves unrounded, and the tokens that an incomplete page lacks.
TokenMask unrounded_tokens(const PromptBlock& block, const PageView& page, float threshold) {
  TokenMask mask;
  for (int t = 0; t < kPageTokens; ++t) {
    const int token = page.first_token + t;
    const bool vertical = block.scores != nullptr && block.scores->score(token) > threshold;
    if (vertical || token < block.sink || t >= page.n_tokens) mask.set(t);
  }
  return mask;
}

TokenMask complement(TokenMask mask) {
  for (std::uint64_t& word : mask.words) word = ~word;
  return mask;
}

}  // namespace

std::byte* RoundedPages::new_bytes(std::size_t n) {
  return bytes_.emplace_back(n).data();
}

// Makes two views of one page: one with rounded tokens and one with unrounded tokens. Each view masks the
// tokens of the other view.
void RoundedPages::round_low_bit(const PromptBlock& block, const PageView& page, float threshold,
                                 std::vector<PageView>& out) {
  const bool near = block.window > 0 && page.first_token + kPageTokens > block.query_page - block.window;
  if (near) {
    out.push_back(page);
    return;
  }
  const TokenMask unrounded = unrounded_tokens(block, page, threshold);
  PageView exact = page, rounded = page;
  exact.masked = complement(unrounded);
  rounded.masked = unrounded;
  for (const Side side : kSides) {
    const PageSide& from = side == Side::key ? page.k : page.v;
    const Format& format = low_bit_format(block.attention, side);
    std::byte* bytes = new_bytes(format.page_bytes(block.head_dim));
    format.encode(decoded(from, page.n_tokens, block.head_dim).data(), unrounded, whole_page_, bytes);
    PageSide& read = side == Side::key ? rounded.k : rounded.v;
    read = {&format, bytes, &whole_page_};
  }
  if (!unrounded.empty()) out.push_back(exact);
  out.push_back(rounded);
}

// Rounds K less its mean to INT8 and puts the mean back. A query's scores then stay comparable with its
// scores in pages outside the block. V stays as the page holds it.
void RoundedPages::round_sage(const PromptBlock& block, const PageView& page, const std::vector<double>& mean,
                              std::vector<PageView>& out) {
  const int d = block.head_dim;
  std::vector<float> k = decoded(page.k, page.n_tokens, d);
  for (int first = 0; first < page.n_tokens; first += kPromptTile) {
    const int end = std::min(page.n_tokens, first + kPromptTile);
    float* tile = k.data() + static_cast<std::ptrdiff_t>(first) * d;
    const int n = (end - first) * d;
    for (int i = 0; i < n; ++i) tile[i] = static_cast<float>(tile[i] - mean[i % d]);
    round_tile(tile, n);
    for (int i = 0; i < n; ++i) tile[i] = static_cast<float>(tile[i] + mean[i % d]);
  }
  PageView rounded = page;
  std::byte* bytes = new_bytes(f32_rows().page_bytes(d));
  f32_rows().encode(k.data(), {}, whole_page_, bytes);
  rounded.k = {&f32_rows(), bytes, &whole_page_};
  out.push_back(rounded);
}

void RoundedPages::replace(const PromptBlock& block, std::vector<PageView>& pages) {
  bytes_.clear();
  whole_page_ = {.head_dim = block.head_dim};
  const bool sage = block.attention == PromptAttention::sage;
  const std::vector<double> mean = sage ? key_mean(block, pages) : std::vector<double>{};
  const float threshold = vertical_threshold(block);
  std::vector<PageView> out;
  for (const PageView& page : pages) {
    if (!in_block(block, page)) {
      out.push_back(page);
    } else if (sage) {
      round_sage(block, page, mean, out);
    } else {
      round_low_bit(block, page, threshold, out);
    }
  }
  pages = std::move(out);
}

void round_sage_queries(QueryTile& queries, int head_dim) {
  for (int r = 0; r < queries.rows();) {
    const int in_tile = kPromptTile - queries.token(r) % kPromptTile;
    const int n = std::min(in_tile, queries.n_queries - r % queries.n_queries);
    round_tile(queries.q.data() + static_cast<std::ptrdiff_t>(r) * head_dim,
               static_cast<std::size_t>(n) * head_dim);
    r += n;
  }
}

}  // namespace kvant
