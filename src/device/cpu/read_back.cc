// Turns pages back into rows, and computes what follows from rows alone.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/softmax.h"
#include "device/caller_structs.h"
#include "device/cpu/calls.h"
#include "device/cpu/kernels/token_weights.h"
#include "device/cpu/rows.h"
#include "device/cpu/workers.h"

namespace kvant::device::cpu {
namespace {

// Describes one sequence, head and side of a dequantization.
struct ReadBack {
  const kvant_decode_shape& shape;
  const kvant_decode_layer& layer;
  const kvant_dequantization& to;
  int nth, seq, head, side;  // nth counts the chosen sequences.

  void write(int n_sealed, int n_tail) const;

 private:
  void write_row_back(float* row, std::int64_t token) const;
  // Counts the protected tokens of the sealed pages before `page`.
  int protected_before(int page) const {
    int n = 0;
    for (int i = 0; i < page; ++i) n += masked_tokens(layer, seq, head, i).count();
    return n;
  }
};

void ReadBack::write_row_back(float* row, std::int64_t token) const {
  const int d = shape.head_dim;
  const bool is_key = side == KVANT_KEY;
  const float* factors = is_key ? to.key_factors : to.value_factors;
  if ((is_key ? to.key_hadamard : to.value_hadamard) != 0) rotate_row(row, d);
  scale_row(row, d, factors == nullptr ? nullptr : factors + std::ptrdiff_t{head} * d);
  const std::int64_t of_seq =
      to.row_begins != nullptr ? to.row_begins[nth] * to.token_stride : nth * to.seq_stride;
  write_numbers(row, channels_or_all(to.channels, d), to.type,
                of_seq + token * to.token_stride + (head - to.first_head) * to.head_stride,
                is_key ? to.keys : to.values);
}

void ReadBack::write(int n_sealed, int n_tail) const {
  const int d = shape.head_dim;
  const int first_page = to.first_pages == nullptr ? to.first_page : to.first_pages[nth];
  const int n_pages = to.page_counts == nullptr ? to.n_pages : std::min(to.page_counts[nth], to.n_pages);
  const SideContext sealed(shape, layer, head, side);
  std::vector<float> rows(std::size_t{kPageTokens} * d);
  int n_protected = protected_before(std::min(first_page, n_sealed));
  for (int page = first_page; page < first_page + n_pages; ++page) {
    const int in_tail = page - n_sealed;
    int n = kPageTokens;
    if (in_tail < 0) {
      sealed.decode(sealed_address(layer, seq, head, side, page), rows.data());
      const TokenMask mask = masked_tokens(layer, seq, head, page);
      for (int t = 0; t < kPageTokens; ++t) {
        if (!mask.test(t)) continue;
        read_row(page_address(layer.protected_pages, seq, layer.layer, head, side, n_protected / kPageTokens),
                 d, n_protected % kPageTokens, &rows[std::size_t{1} * t * d]);
        ++n_protected;
      }
    } else {
      n = std::clamp(n_tail - in_tail * kPageTokens, 0, kPageTokens);
      if (n == 0) return;
      const std::byte* tail = page_address(layer.tail, seq, layer.layer, head, side, in_tail);
      for (int t = 0; t < n; ++t) read_row(tail, d, t, &rows[std::size_t{1} * t * d]);
    }
    for (int t = 0; t < n; ++t)
      write_row_back(&rows[std::size_t{1} * t * d], std::int64_t{page - first_page} * kPageTokens + t);
  }
}

// Copies a head's keys into pages without values.
std::vector<PageView> key_pages(const kvant_token_weights& w, int head, const StoredFormat& bf16,
                                std::vector<std::uint16_t>& keys) {
  const std::size_t d = bf16.context.head_dim;
  keys.resize(w.n_tokens * d);
  std::vector<PageView> pages;
  for (int t = 0; t < w.n_tokens; ++t) {
    std::copy_n(static_cast<const std::uint16_t*>(w.keys) + t * w.key_token_stride + head * w.key_head_stride,
                d, &keys[t * d]);
    if (t % kPageTokens == 0)
      pages.push_back({.first_token = t,
                       .k = {bf16.format, reinterpret_cast<const std::byte*>(&keys[t * d]), &bf16.context}});
    ++pages.back().n_tokens;
  }
  return pages;
}

void weigh_head(const kvant_decode_shape& shape, const kvant_token_weights& w, int head) {
  const int d = shape.head_dim, n_rows = shape.group * w.n_queries;
  ObserverTile observers{{.first_token = w.n_visible - 1, .n_queries = w.n_queries, .group = shape.group},
                         std::vector<float>(n_rows)};
  std::vector<float>& q = observers.queries.q;
  q.resize(std::size_t{1} * n_rows * d);
  for (int r = 0; r < n_rows; ++r)
    read_numbers(
        w.q, w.q_type,
        r % w.n_queries * w.q_token_stride + (head * shape.group + r / w.n_queries) * w.q_head_stride, d,
        &q[std::size_t{1} * r * d]);
  kvant::scale_row(q.data(), static_cast<int>(q.size()), shape.softmax_scale);
  std::vector<std::uint16_t> keys;
  const std::vector<PageView> pages = key_pages(w, head, stored_format("bf16", KVANT_KEY, d), keys);
  const AttentionRules rules{.head_dim = d, .softcap = shape.score_softcap};
  TileScratch scratch;
  PartialAttention seen;
  seen.reset(n_rows, d);
  if (w.found_lse != nullptr) weigh_pages(observers.queries, pages, rules, scratch, seen);
  for (int r = 0; r < n_rows; ++r) {
    const std::int64_t at =
        r % w.n_queries * w.lse_token_stride + (head * shape.group + r / w.n_queries) * w.lse_head_stride;
    if (w.found_lse != nullptr) w.found_lse[at] = seen.max[r] + std::log(seen.sum[r]);
    observers.lse[r] = (w.found_lse != nullptr ? w.found_lse : w.lse)[at];
  }
  std::vector<double> sums(w.n_tokens);
  kvant::weigh_tokens(observers, pages, rules, scratch, sums);
  for (int t = 0; t < w.n_tokens; ++t)
    w.weights[head * w.weight_head_stride + t] += static_cast<float>(sums[t]);
}

void merge_row(const kvant_partial& into, const kvant_partial& other, int d, int seq, int token, int head,
               float* a, float* b) {
  const auto lse_at = [&](const kvant_partial& p) {
    return p.lse + seq * p.lse_seq_stride + token * p.lse_token_stride + head * p.lse_head_stride;
  };
  const auto row_at = [&](const kvant_partial& p) {
    return seq * p.seq_stride + token * p.token_stride + head * p.head_stride;
  };
  const float before = *lse_at(into), added = *lse_at(other);
  constexpr float kNoTokens = -std::numeric_limits<float>::infinity();
  if (added == kNoTokens) return;
  const double max = std::max(before, added);
  const double sum = std::exp(before - max) + std::exp(added - max);
  read_numbers(other.out, other.out_type, row_at(other), d, b);
  if (before == kNoTokens) {  // Such a row may hold anything, and has no weight.
    std::copy_n(b, d, a);
  } else {
    read_numbers(into.out, into.out_type, row_at(into), d, a);
    for (int c = 0; c < d; ++c)
      a[c] = static_cast<float>((a[c] * std::exp(before - max) + b[c] * std::exp(added - max)) / sum);
  }
  write_numbers(a, d, into.out_type, row_at(into), into.out);
  *lse_at(into) = static_cast<float>(max + std::log(sum));
}

}  // namespace

void dequantize(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                const kvant_decode_layer& layer, const kvant_dequantization& to) {
  const int n_tasks = to.n_seqs * to.n_heads * 2;
  const std::int64_t work = std::int64_t{n_tasks} * to.n_pages * kPageTokens * shape.head_dim * 4;
  for_each_task(n_tasks, work, [&](int i) {
    const int side = i % 2, head = to.first_head + i / 2 % to.n_heads, nth = i / 2 / to.n_heads;
    const int seq = to.seqs == nullptr ? nth : to.seqs[nth];
    if ((side == KVANT_KEY ? to.keys : to.values) == nullptr) return;
    ReadBack{shape, layer, to, nth, seq, head, side}.write(
        lengths.sealed_pages == nullptr ? 0 : lengths.sealed_pages[seq],
        lengths.tail_tokens == nullptr ? 0 : lengths.tail_tokens[seq]);
  });
}

void merge(int n_seqs, int n_tokens, int n_heads, int head_dim, const kvant_partial& into,
           const kvant_partial& other) {
  const std::int64_t work = std::int64_t{4} * n_seqs * n_tokens * n_heads * head_dim;
  for_each_task(n_seqs * n_tokens, work, [&](int i) {
    std::vector<float> rows(std::size_t{2} * head_dim);
    for (int head = 0; head < n_heads; ++head)
      merge_row(into, other, head_dim, i / n_tokens, i % n_tokens, head, rows.data(), &rows[head_dim]);
  });
}

void weigh_tokens(const kvant_decode_shape& shape, const kvant_token_weights& w) {
  const std::int64_t work =
      std::int64_t{w.n_queries} * w.n_tokens * shape.n_kv_heads * shape.group * shape.head_dim;
  for_each_task(shape.n_kv_heads, work, [&](int head) { weigh_head(shape, w, head); });
}

}  // namespace kvant::device::cpu
