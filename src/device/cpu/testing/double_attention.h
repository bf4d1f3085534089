// Attends in double precision, page by page, by the rules of kvant/kvant.h. Tests compare the CPU library
// with this file.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "cache/page_counts.h"
#include "device/caller_structs.h"
#include "device/cpu/calls.h"
#include "device/cpu/rows.h"

namespace kvant::device::cpu::testing {

inline constexpr double kNothing = -std::numeric_limits<double>::infinity();
inline constexpr double kLeastSas = -6;

// Holds the rules by which scores become weights.
struct ScoreRules {
  int head_dim;
  float scale, softcap;
  bool sas;
  const kvant_correction* correction;
  const float* sink_logits;
};

// Holds one query head of one query.
struct Query {
  std::vector<float> q, out;  // [head_dim]
  int query_head;
  std::int64_t row, state_seq;  // The row among the queries, and the sequence whose sums correct the query.
  std::vector<double> scores;   // scores of all blocks, kPageTokens each
  std::vector<double> sums;     // [head_dim]
  double max = kNothing, total = 0;
  float lse = -std::numeric_limits<float>::infinity();
  bool sees_any = false;
};

struct TokenRange {
  int first = 0, end = 0;
};

// Gives access to the tokens of a KV head in blocks of up to kPageTokens. Queries see the tokens that are not
// hidden, from `first` up to an end.
class TokenBlocks {
 public:
  virtual ~TokenBlocks() = default;
  virtual int count() const = 0;
  virtual TokenMask hidden(int block) const = 0;
  virtual TokenRange visible(const Query& query, int block) const = 0;
  // Writes rows [n][head_dim] of a side; rows that no query sees may be left out.
  virtual void read(int block, int side, float* rows) const = 0;
};

inline double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

// Adds factor * row to sums.
inline void add_row(double factor, const float* row, int n, double* sums) {
  for (int i = 0; i < n; ++i) sums[i] += factor * row[i];
}

// Computes phi(x) by its definition.
inline std::vector<double> features(const float* maps, const float* x, int d) {
  constexpr int kHalf = kCorrectionFeatures / 2;
  std::vector<double> phi(kCorrectionFeatures);
  for (int half = 0; half < 2; ++half) {
    double* const of_half = &phi[half * kHalf];
    for (int i = 0; i < d; ++i) add_row(x[i], maps + (std::ptrdiff_t{half} * d + i) * kHalf, kHalf, of_half);
    double sum = 0;
    for (int j = 0; j < kHalf; ++j) sum += of_half[j] = std::exp(of_half[j]);
    for (int j = 0; j < kHalf; ++j) of_half[j] /= sum;
  }
  return phi;
}

inline void add_correction(const ScoreRules& rules, int group, Query& query) {
  const kvant_correction& c = *rules.correction;
  const int d = rules.head_dim;
  const double scale = c.absolute != 0 ? std::exp(-query.max) : 1;
  const float* sums = correction_state(c, query.state_seq, query.query_head / group);
  const auto phi = features(c.query_maps + query.query_head * feature_map_weights(d), query.q.data(), d);
  for (int f = 0; f < kCorrectionFeatures; ++f) {
    add_row(scale * phi[f], sums + std::ptrdiff_t{1} * f * d, d, query.sums.data());
    query.total += scale * phi[f] * sums[feature_map_weights(d) + f];
  }
}

// Fills out, lse and sees_any. With SAS, the exact exponential replaces the polynomial that approximates it.
inline void attend(const ScoreRules& rules, int group, const TokenBlocks& blocks,
                   std::vector<Query>& queries) {
  const int d = rules.head_dim, n_blocks = blocks.count();
  std::vector<float> rows(std::size_t{kPageTokens} * d);
  for (Query& query : queries) {
    query.scores.assign(std::size_t{1} * n_blocks * kPageTokens, kNothing);
    query.sums.assign(d, 0);
  }
  for (int block = 0; block < n_blocks; ++block) {
    const TokenMask hidden = blocks.hidden(block);
    blocks.read(block, KVANT_KEY, rows.data());
    for (Query& query : queries) {
      const TokenRange seen = blocks.visible(query, block);
      for (int t = seen.first; t < seen.end; ++t) {
        if (hidden.test(t)) continue;
        double score = dot(query.q.data(), &rows[std::size_t{1} * t * d], d) * rules.scale;
        if (rules.softcap > 0) score = rules.softcap * std::tanh(score / rules.softcap);
        query.scores[std::size_t{1} * block * kPageTokens + t] = score;
        query.max = std::max(query.max, score);
        query.sees_any = true;
      }
    }
  }
  if (rules.correction != nullptr && rules.correction->absolute != 0)
    for (Query& query : queries) query.max = std::max(query.max, 0.0);
  for (int block = 0; block < n_blocks; ++block) {
    blocks.read(block, KVANT_VALUE, rows.data());
    for (Query& query : queries) {
      const TokenRange seen = blocks.visible(query, block);
      for (int t = seen.first; t < seen.end; ++t) {
        const double below_max = query.scores[std::size_t{1} * block * kPageTokens + t] - query.max;
        if (below_max == kNothing || (rules.sas && below_max < kLeastSas)) continue;
        const double weight = std::exp(below_max);
        query.total += weight;
        add_row(weight, &rows[std::size_t{1} * t * d], d, query.sums.data());
      }
    }
  }
  for (Query& query : queries) {
    query.out.assign(d, 0.0F);
    if (!query.sees_any) continue;
    if (rules.correction != nullptr) add_correction(rules, group, query);
    if (rules.sink_logits != nullptr)
      query.total += std::exp(rules.sink_logits[query.query_head] - query.max);
    for (int c = 0; c < d; ++c) query.out[c] = static_cast<float>(query.sums[c] / query.total);
    query.lse = static_cast<float>(query.max + std::log(query.total));
  }
}

// Holds a sequence in the order of kvant_decode_attention: sealed pages, protected tokens, then the tail.
class DecodeBlocks : public TokenBlocks {
 public:
  DecodeBlocks(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
               const kvant_decode_layer& layer, int seq, int head, int end_row)
      : shape_(shape),
        layer_(layer),
        seq_(seq),
        head_(head),
        end_row_(end_row),
        sides_{{shape, layer, head, KVANT_KEY}, {shape, layer, head, KVANT_VALUE}} {
    n_sealed_ = lengths.sealed_pages == nullptr ? 0 : lengths.sealed_pages[seq];
    if (lengths.protected_tokens != nullptr)
      n_protected_ =
          lengths.protected_tokens[seq * lengths.protected_seq_stride + head * lengths.protected_head_stride];
    n_tail_ = lengths.tail_tokens == nullptr ? 0 : lengths.tail_tokens[seq];
    hidden_ = lengths.first_tokens == nullptr ? 0 : lengths.first_tokens[seq];
  }
  bool empty() const { return n_sealed_ + n_protected_ + n_tail_ == 0; }

  int count() const override { return n_sealed_ + pages_for(n_protected_) + pages_for(n_tail_); }
  TokenMask hidden(int block) const override {
    return block < n_sealed_ ? masked_tokens(layer_, seq_, head_, block) : TokenMask{};
  }
  TokenRange visible(const Query& query, int block) const override {
    const int n_later = end_row_ - 1 - static_cast<int>(query.row);
    // The window of an earlier query reaches further back.
    const int hidden = std::max(0, hidden_ - n_later);
    if (block < n_sealed_) return {std::clamp(hidden - block * kPageTokens, 0, kPageTokens), kPageTokens};
    const int page = block - n_sealed_;
    if (page < pages_for(n_protected_)) return {0, std::min(kPageTokens, n_protected_ - page * kPageTokens)};
    const int first = (page - pages_for(n_protected_)) * kPageTokens;
    return {std::clamp(hidden - n_sealed_ * kPageTokens - first, 0, kPageTokens),
            std::clamp(n_tail_ - n_later - first, 0, kPageTokens)};
  }
  void read(int block, int side, float* rows) const override {
    if (block < n_sealed_) {
      sides_[side].decode(sealed_address(layer_, seq_, head_, side, block), rows);
      return;
    }
    int page = block - n_sealed_, n = n_protected_;
    const kvant_pages* from = &layer_.protected_pages;
    if (page >= pages_for(n_protected_)) {
      page -= pages_for(n_protected_);
      n = n_tail_;
      from = &layer_.tail;
    }
    const std::byte* plain = page_address(*from, seq_, layer_.layer, head_, side, page);
    for (int t = 0; t < std::min(kPageTokens, n - page * kPageTokens); ++t)
      read_row(plain, shape_.head_dim, t, rows + std::ptrdiff_t{t} * shape_.head_dim);
  }

 private:
  const kvant_decode_shape& shape_;
  const kvant_decode_layer& layer_;
  int seq_, head_, end_row_, n_sealed_ = 0, n_protected_ = 0, n_tail_ = 0, hidden_ = 0;
  SideContext sides_[2];
};

inline void attend_sequence(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                            const kvant_decode_layer& layer, int seq, int head) {
  const auto [first, end] = query_rows(shape, lengths, seq);
  append_new_rows(shape, lengths, layer, seq, head);
  if (first == end) return;
  const DecodeBlocks blocks(shape, lengths, layer, seq, head, end);
  if (blocks.empty()) return;
  std::vector<Query> queries;
  for (int row = first; row < end; ++row) {
    for (int query_head = head * shape.group; query_head < (head + 1) * shape.group; ++query_head) {
      Query& query = queries.emplace_back();
      query.q.resize(shape.head_dim);
      query.query_head = query_head;
      query.row = row;
      query.state_seq = seq;
      read_query(shape, layer, row, query_head, query.q.data());
    }
  }
  attend({shape.head_dim, shape.softmax_scale, shape.score_softcap, shape.sas != 0, layer.correction,
          layer.sink_logits},
         shape.group, blocks, queries);
  for (Query& query : queries)
    write_output(shape, layer, query.row, query.query_head, query.out.data(), query.lse);
}

// Holds a sequence of a prompt: sealed pages with the protected tokens at their positions, then rows.
class PromptBlocks : public TokenBlocks {
 public:
  PromptBlocks(const kvant_prompt_shape& shape, const kvant_prompt& prompt, int seq, int head)
      : shape_(shape), prompt_(prompt), pages_(prompt.pages), seq_(seq), head_(head) {
    first_of_rows_ = prompt.token_begins[seq];
    n_rows_ = prompt.token_begins[seq + 1] - first_of_rows_;
    if (pages_ != nullptr) {
      for (int side = 0; side < 2; ++side) sides_[side].emplace(*pages_->shape, *pages_->layer, head, side);
      if (pages_->sealed_begins != nullptr)
        n_sealed_ = pages_->sealed_begins[seq + 1] - pages_->sealed_begins[seq];
    }
    first_row_token_ = n_sealed_ * kPageTokens;
    if (pages_ != nullptr && pages_->first_row_tokens != nullptr)
      first_row_token_ = pages_->first_row_tokens[seq];
    n_tokens_ = n_rows_ > 0 ? first_row_token_ + n_rows_ : n_sealed_ * kPageTokens;
    for (int page = 0; page < n_sealed_; ++page)
      protected_before_.push_back(protected_before_.back() +
                                  masked_tokens(*pages_->layer, seq, head, page).count());
  }

  int count() const override { return n_sealed_ + pages_for(n_rows_); }
  TokenMask hidden(int /*block*/) const override { return {}; }
  TokenRange visible(const Query& query, int block) const override {
    const int n_seen = pages_ != nullptr && pages_->query_sealed_pages != nullptr
                           ? std::min(pages_->query_sealed_pages[query.row], n_sealed_)
                           : n_sealed_;
    const int n_later = prompt_.query_begins[seq_ + 1] - 1 - static_cast<int>(query.row);
    const int end = shape_.causal != 0 ? n_tokens_ - n_later : n_tokens_;
    const int begin = shape_.window > 0 ? end - shape_.window : 0;
    const bool is_sealed = block < n_sealed_;
    if (is_sealed && block >= n_seen) return {};
    const int first = is_sealed ? block * kPageTokens : first_row_token_ + (block - n_sealed_) * kPageTokens;
    const int last =
        is_sealed ? first + kPageTokens : std::min(first + kPageTokens, first_row_token_ + n_rows_);
    return {std::max({begin, first, is_sealed ? 0 : n_seen * kPageTokens}) - first,
            std::min(end, last) - first};
  }
  void read(int block, int side, float* rows) const override {
    const int d = shape_.head_dim;
    if (block < n_sealed_) {
      read_sealed(block, side, rows);
      return;
    }
    const int first = (block - n_sealed_) * kPageTokens;
    for (int t = 0; t < std::min(kPageTokens, n_rows_ - first); ++t, rows += d) {
      if (prompt_.k == nullptr) {
        read_row(
            page_address(pages_->layer->tail, seq_, pages_->layer->layer, head_, side, first / kPageTokens),
            d, t, rows);
        continue;
      }
      const bool is_key = side == KVANT_KEY;
      read_numbers(is_key ? prompt_.k : prompt_.v, shape_.half != 0 ? KVANT_F16 : KVANT_BF16,
                   (first_of_rows_ + first + t) * (is_key ? prompt_.k_token_stride : prompt_.v_token_stride) +
                       head_ * (is_key ? prompt_.k_head_stride : prompt_.v_head_stride),
                   d, rows);
    }
  }

 private:
  void read_sealed(int page, int side, float* rows) const {
    const kvant_decode_layer& layer = *pages_->layer;
    const int d = shape_.head_dim;
    sides_[side]->decode(sealed_address(layer, seq_, head_, side, page), rows);
    const TokenMask mask = masked_tokens(layer, seq_, head_, page);
    int at = protected_before_[page];
    for (int t = 0; t < kPageTokens; ++t) {
      if (!mask.test(t)) continue;
      read_row(page_address(layer.protected_pages, seq_, layer.layer, head_, side, at / kPageTokens), d,
               at % kPageTokens, rows + std::ptrdiff_t{t} * d);
      ++at;
    }
  }

  const kvant_prompt_shape& shape_;
  const kvant_prompt& prompt_;
  const kvant_prompt_pages* pages_;
  int seq_, head_, first_of_rows_ = 0, n_rows_ = 0, n_sealed_ = 0, first_row_token_ = 0, n_tokens_ = 0;
  std::vector<int> protected_before_{0};  // by page
  std::optional<SideContext> sides_[2];
};

inline void attend_prompt_rows(const kvant_prompt_shape& shape, const kvant_prompt& prompt,
                               const PromptBlocks& blocks, int head, int first, int end) {
  const int group = shape.n_heads / shape.n_kv_heads, d = shape.head_dim;
  std::vector<Query> queries;
  for (int row = first; row < end; ++row) {
    for (int query_head = head * group; query_head < (head + 1) * group; ++query_head) {
      Query& query = queries.emplace_back();
      query.q.resize(d);
      query.query_head = query_head;
      query.row = query.state_seq = row;
      read_numbers(prompt.q, prompt.q_type, row * prompt.q_token_stride + query_head * prompt.q_head_stride,
                   d, query.q.data());
      if (prompt.q_hadamard != 0) rotate_row(query.q.data(), d);
    }
  }
  attend({d, shape.softmax_scale, shape.score_softcap, shape.sas != 0, prompt.correction, prompt.sink_logits},
         group, blocks, queries);
  for (Query& query : queries) {
    if (prompt.out_hadamard != 0) rotate_row(query.out.data(), d);
    write_numbers(query.out.data(), d, prompt.out_type,
                  query.row * prompt.out_token_stride + query.query_head * prompt.out_head_stride,
                  prompt.out);
    if (prompt.lse != nullptr)
      prompt.lse[query.row * prompt.lse_token_stride + query.query_head * prompt.lse_head_stride] = query.lse;
  }
}

// Attend as kvant_decode_attention and kvant_prompt_attention do.
inline void decode_in_double(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                             const kvant_decode_layer& layer) {
  for (int seq = 0; seq < shape.n_seqs; ++seq)
    for (int head = 0; head < shape.n_kv_heads; ++head) attend_sequence(shape, lengths, layer, seq, head);
}

inline void prompt_in_double(const kvant_prompt_shape& shape, kvant_prompt prompt) {
  // KVANT_BF16 stands for the 16-bit type of the rows.
  if (prompt.q_type == KVANT_BF16 && shape.half != 0) prompt.q_type = KVANT_F16;
  for (int seq = 0; seq < shape.n_seqs; ++seq)
    for (int head = 0; head < shape.n_kv_heads; ++head)
      attend_prompt_rows(shape, prompt, PromptBlocks(shape, prompt, seq, head), head,
                         prompt.query_begins[seq], prompt.query_begins[seq + 1]);
}

}  // namespace kvant::device::cpu::testing
