// Makes rows, shapes and calls for a small model with three layers, for tests of whole steps. A hash selects
// each row, so a test can compute any row of any sequence again.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "base/float16.h"
#include "device/cuda/page/page_layout.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

// Holds the parameters of a test of steps, which are formats and the rules of the step.
struct StepCase {
  const char *key, *value;
  int d;
  int max_new, max_queries;
  int window, sliding_window, sink;
  // If true, the calls pass the lengths of the longest possible sequences.
  bool says_lengths = false;
};

struct StepModel {
  static constexpr int kLayers = 3, kKvHeads = 2, kGroup = 2, kHeads = kKvHeads * kGroup;
  static constexpr int kMaxPages = 5, kMaxTokens = kMaxPages * kPageTokens;
  // Keys and values are in the order of kvant_side.
  enum Kind { keys, values, queries };

  explicit StepModel(const StepCase& of) : rules(of) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kRows * of.d; ++i) rows_.push_back(bf16_from_float(normal(random)));
  }

  StepCase rules;

  std::int64_t plain_bytes() const { return std::int64_t{kPageTokens} * rules.d * 2; }
  std::int64_t key_bytes() const { return static_cast<std::int64_t>(kvant_page_bytes(rules.key, rules.d)); }
  std::int64_t value_bytes() const {
    return static_cast<std::int64_t>(kvant_page_bytes(rules.value, rules.d));
  }
  // Returns the bytes of a sealed page of all heads and sides.
  std::int64_t sealed_bytes() const { return kKvHeads * (key_bytes() + value_bytes()); }

  // Returns a row of d BF16 numbers. A hash of the arguments selects the row.
  const std::uint16_t* row(int sequence, int layer, Kind kind, int head, int token) const {
    std::uint64_t hash = 0;
    for (const int x : {sequence, layer, static_cast<int>(kind), head, token})
      hash = (hash + x + 1) * 0x9e3779b97f4a7c15U, hash ^= hash >> 29;
    return rows_.data() + static_cast<std::ptrdiff_t>(hash % kRows) * rules.d;
  }

  kvant_decode_shape shape(int n_seqs, int max_queries) const {
    kvant_decode_shape shape{};
    shape.struct_size = sizeof shape;
    shape.n_seqs = n_seqs;
    shape.n_kv_heads = kKvHeads;
    shape.group = kGroup;
    shape.head_dim = rules.d;
    shape.softmax_scale = softmax_scale();
    shape.key_format = rules.key;
    shape.value_format = rules.value;
    shape.max_queries = max_queries;
    return shape;
  }
  // Returns arguments for n rows of one layer. `seq` and `token` have the meanings of kvant_new_rows.
  kvant_new_rows new_rows(int n, const std::int32_t* seq, const std::int32_t* token, const void* keys,
                          const void* values) const {
    kvant_new_rows rows{};
    rows.struct_size = sizeof rows;
    rows.n_rows = n;
    rows.seq = seq;
    rows.tail_token = token;
    rows.keys = keys;
    rows.values = values;
    rows.key_head_stride = rows.value_head_stride = rules.d;
    rows.key_row_stride = rows.value_row_stride = std::int64_t{kKvHeads} * rules.d;
    return rows;
  }
  float softmax_scale() const { return rules.d == 64 ? 0.125F : 0.09F; }

 private:
  static constexpr int kRows = 1021;  // distinct rows
  std::vector<std::uint16_t> rows_;
};

}  // namespace kvant::cuda
