#include "calibrate/capture.h"

#include <algorithm>
#include <random>

#include "base/check.h"
#include "base/float16.h"

namespace kvant {

Capture::Capture(const Geometry& geometry, const CaptureSize& size) : geometry_(geometry), size_(size) {
  choose_rows();
  const std::size_t heads = static_cast<std::size_t>(geometry.n_layers) * geometry.n_kv_heads;
  const std::size_t passage_tokens = static_cast<std::size_t>(size.passages) * size.length;
  const std::size_t d = geometry.head_dim;
  rows_.assign(heads * 2, Block(token_of_row_.size() * d));
  passages_.assign(heads * 2, Block(passage_tokens * d));
  queries_.assign(static_cast<std::size_t>(geometry.n_layers) * geometry.n_heads, Block(passage_tokens * d));
}

// Every set of `rows` tokens is equally likely (Knuth, vol. 2, 3.4.2, algorithm S).
void Capture::choose_rows() {
  const std::int64_t n_tokens = static_cast<std::int64_t>(size_.samples) * size_.length;
  std::int64_t wanted = std::min<std::int64_t>(size_.rows, n_tokens);
  std::mt19937_64 random(size_.seed);
  row_of_token_.assign(n_tokens, -1);
  for (std::int64_t token = 0; token < n_tokens; ++token) {
    if (static_cast<std::int64_t>(random() % (n_tokens - token)) >= wanted) continue;
    --wanted;
    row_of_token_[token] = static_cast<std::int32_t>(token_of_row_.size());
    token_of_row_.push_back(static_cast<std::int32_t>(token % size_.length));
  }
}

std::int64_t Capture::bytes() const {
  std::size_t values = 0;
  for (const auto* blocks : {&rows_, &passages_, &queries_})
    for (const Block& block : *blocks) values += block.size();
  return static_cast<std::int64_t>(values * sizeof(std::uint16_t));
}

int Capture::row_of(int sequence, int token) const {
  KVANT_CHECK(sequence < n_sequences() && token < size_.length, "a token that the capture has no room for");
  if (is_passage(sequence)) return (sequence - size_.samples) * size_.length + token;
  return row_of_token_[static_cast<std::size_t>(sequence) * size_.length + token];
}

void Capture::store(int sequence, int layer, int kv_head, Side side, int row, const float* values) {
  const std::size_t d = geometry_.head_dim;
  Block& to = (is_passage(sequence) ? passages_ : rows_)[block(layer, kv_head, side)];
  bf16_row_from_float(values, to.data() + row * d, d);
}

void Capture::store_query(int layer, int head, int row, const float* values) {
  const std::size_t d = geometry_.head_dim;
  Block& to = queries_[static_cast<std::size_t>(layer) * geometry_.n_heads + head];
  bf16_row_from_float(values, to.data() + row * d, d);
}

std::vector<float> Capture::rows(int layer, int kv_head, Side side, bool without_sink) const {
  const std::size_t d = geometry_.head_dim;
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

std::vector<float> Capture::whole(const Block& values, int p) const {
  const std::size_t n = static_cast<std::size_t>(size_.length) * geometry_.head_dim;
  std::vector<float> all(n);
  float_row_from_bf16(values.data() + p * n, all.data(), n);
  return all;
}

std::vector<float> Capture::passage(int p, int layer, int kv_head, Side side) const {
  return whole(passages_[block(layer, kv_head, side)], p);
}

std::vector<float> Capture::passage_queries(int p, int layer, int head) const {
  return whole(queries_[static_cast<std::size_t>(layer) * geometry_.n_heads + head], p);
}

}  // namespace kvant
