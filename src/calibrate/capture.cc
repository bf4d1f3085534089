#include "calibrate/capture.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"
#include "base/float16.h"

namespace kvant {

namespace {

// Draws `wanted` of the numbers below n, and calls take(number) with each of them in ascending order. Every
// set is equally likely (Knuth, vol. 2, 3.4.2, algorithm S).
template <class Take>
void draw(std::int64_t n, std::int64_t wanted, std::mt19937_64& random, const Take& take) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (static_cast<std::int64_t>(random() % (n - i)) >= wanted) continue;
    --wanted;
    take(i);
  }
}

}  // namespace

std::int64_t capture_bytes(const Geometry& g, const CaptureSize& size) {
  const std::int64_t rows = std::min<std::int64_t>(size.rows, std::int64_t{size.samples} * size.length);
  const std::int64_t whole = std::int64_t{size.passages} * size.length;
  const std::int64_t keys = std::int64_t{size.contexts} * size.context_length;
  const std::int64_t queries = whole + std::int64_t{size.contexts} * size.context_queries;
  std::int64_t values = 0;
  for (int layer = 0; layer < g.n_layers; ++layer)
    values += (g.kv_heads(layer) * (2 * rows + 2 * whole + keys) + g.n_heads * queries) * g.dim(layer);
  return values * static_cast<std::int64_t>(sizeof(std::uint16_t));
}

CaptureSize bounded(const Geometry& geometry, CaptureSize size, std::int64_t limit) {
  constexpr int kFewestContexts = 4;
  constexpr int kFewestRows = 1024;
  while (capture_bytes(geometry, size) > limit) {
    if (size.contexts > kFewestContexts) {
      --size.contexts;
    } else if (size.rows > kFewestRows) {
      size.rows = std::max(kFewestRows, size.rows / 2);
    } else if (size.passages > 1) {
      --size.passages;
    } else {
      break;
    }
  }
  return size;
}

Capture::Capture(const Geometry& geometry, const CaptureSize& size) : geometry_(geometry), size_(size) {
  choose_rows();
  choose_queries();
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    const std::size_t d = geometry.dim(layer), kv_heads = geometry.kv_heads(layer);
    const auto add = [](std::vector<Block>& blocks, std::size_t n, std::size_t values) {
      blocks.insert(blocks.end(), n, Block(values));
    };
    add(rows_, kv_heads * 2, token_of_row_.size() * d);
    add(passages_, kv_heads * 2, d * size.passages * size.length);
    add(queries_, geometry.n_heads, d * size.passages * size.length);
    add(context_keys_, kv_heads, d * size.contexts * size.context_length);
    add(context_queries_, geometry.n_heads, d * query_tokens_.size());
  }
}

void Capture::choose_rows() {
  const std::int64_t n_tokens = static_cast<std::int64_t>(size_.samples) * size_.length;
  std::mt19937_64 random(size_.seed);
  row_of_token_.assign(n_tokens, -1);
  draw(n_tokens, std::min<std::int64_t>(size_.rows, n_tokens), random, [&](std::int64_t token) {
    row_of_token_[token] = static_cast<std::int32_t>(token_of_row_.size());
    token_of_row_.push_back(static_cast<std::int32_t>(token % size_.length));
  });
}

void Capture::choose_queries() {
  if (size_.contexts == 0) return;
  KVANT_CHECK(size_.context_queries <= size_.context_length - size_.first_query,
              "contexts of too few tokens");
  std::mt19937_64 random(size_.seed + 1);
  for (int c = 0; c < size_.contexts; ++c) draw_context_queries(random);
}

// Draws the tokens of a context whose queries are kept: one from each of `context_queries` intervals of equal
// ratio.
void Capture::draw_context_queries(std::mt19937_64& random) {
  const int n = size_.context_queries;
  const double first = std::max(size_.first_query, 1);
  const double octaves = std::log2(size_.context_length / first);
  int next = size_.first_query;
  for (int i = 0; i < n; ++i) {
    const double inside = static_cast<double>(random() >> 11) * 0x1p-53;
    const int place = static_cast<int>(first * std::exp2(octaves * (i + inside) / n));
    const int token = std::clamp(place, next, size_.context_length - (n - i));
    query_tokens_.push_back(token);
    next = token + 1;
  }
}

int Capture::kv_row(int sequence, int token) const {
  KVANT_CHECK(sequence < n_sequences() && token < length(sequence),
              "a token that the capture has no room for");
  if (is_context(sequence)) return (sequence - size_.samples - size_.passages) * size_.context_length + token;
  if (is_passage(sequence)) return (sequence - size_.samples) * size_.length + token;
  return row_of_token_[static_cast<std::size_t>(sequence) * size_.length + token];
}

int Capture::query_row(int sequence, int token) const {
  if (is_passage(sequence)) return kv_row(sequence, token);
  if (!is_context(sequence)) return -1;
  const int c = sequence - size_.samples - size_.passages;
  const auto tokens = context_query_tokens(c);
  const auto found = std::lower_bound(tokens.begin(), tokens.end(), token);
  if (found == tokens.end() || *found != token) return -1;
  return c * size_.context_queries + static_cast<int>(found - tokens.begin());
}

void Capture::store(int sequence, int token, int layer, int kv_head, Side side, const float* values) {
  const int row = kv_row(sequence, token);
  if (row < 0 || (is_context(sequence) && side == Side::value)) return;
  const std::size_t d = geometry_.dim(layer);
  Block* to = nullptr;
  if (is_context(sequence)) {
    to = &context_keys_[geometry_.head_index(layer, kv_head)];
  } else {
    to = &(is_passage(sequence) ? passages_ : rows_)[block(layer, kv_head, side)];
  }
  bf16_row_from_float(values, to->data() + row * d, d);
}

void Capture::store_query(int sequence, int token, int layer, int head, const float* values) {
  const int row = query_row(sequence, token);
  if (row < 0) return;
  const std::size_t d = geometry_.dim(layer);
  std::vector<Block>& blocks = is_context(sequence) ? context_queries_ : queries_;
  Block& to = blocks[static_cast<std::size_t>(layer) * geometry_.n_heads + head];
  bf16_row_from_float(values, to.data() + row * d, d);
}

std::vector<float> Capture::rows(int layer, int kv_head, Side side, bool without_sink) const {
  const std::size_t d = geometry_.dim(layer);
  const Block& from = rows_[block(layer, kv_head, side)];
  std::vector<float> values;
  values.reserve(from.size());
  for (std::size_t row = 0; row < token_of_row_.size(); ++row) {
    if (without_sink && token_of_row_[row] < kSinkTokens) continue;
    values.resize(values.size() + d);
    float_row_from_bf16(from.data() + row * d, values.data() + values.size() - d, d);
  }
  return values;
}

std::vector<float> Capture::floats(const Block& values, std::size_t d, int first, int n) {
  std::vector<float> all(n * d);
  float_row_from_bf16(values.data() + first * d, all.data(), all.size());
  return all;
}

std::vector<float> Capture::passage(int p, int layer, int kv_head, Side side) const {
  return floats(passages_[block(layer, kv_head, side)], geometry_.dim(layer), p * size_.length, size_.length);
}

void Capture::place(std::vector<int> offsets) {
  KVANT_CHECK(static_cast<int>(offsets.size()) == n_sequences(), "offsets of other sequences");
  offsets_ = std::move(offsets);
}

std::vector<float> Capture::passage_queries(int p, int layer, int head) const {
  return floats(queries_[static_cast<std::size_t>(layer) * geometry_.n_heads + head], geometry_.dim(layer),
                p * size_.length, size_.length);
}

std::vector<float> Capture::context_keys(int c, int layer, int kv_head) const {
  return floats(context_keys_[geometry_.head_index(layer, kv_head)], geometry_.dim(layer),
                c * size_.context_length, size_.context_length);
}

std::span<const std::int32_t> Capture::context_query_tokens(int c) const {
  return std::span(query_tokens_)
      .subspan(static_cast<std::size_t>(c) * size_.context_queries, size_.context_queries);
}

std::vector<float> Capture::context_queries(int c, int layer, int head) const {
  return floats(context_queries_[static_cast<std::size_t>(layer) * geometry_.n_heads + head],
                geometry_.dim(layer), c * size_.context_queries, size_.context_queries);
}

}  // namespace kvant
