#include "cache/testing/host_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "cache/testing/host_append.h"
#include "cache/testing/host_rows.h"

namespace kvant::testing::host {
namespace {

// Rows [n][d] of all tokens of a sequence that aren't in protected pages, or, with `in_place`, of all its
// sealed ones with the protected ones at their place.
std::vector<float> sealed_rows(const kvant_decode_shape& shape, const kvant_decode_layer& layer, int seq,
                               int head, int side, int n_pages, bool in_place) {
  const int d = shape.head_dim;
  std::vector<float> rows(std::size_t{1} * n_pages * kPageTokens * d);
  const SideContext context(shape, layer, head, side);
  for (int page = 0; page < n_pages; ++page) {
    format_of(shape, head, side)
        .decode(sealed_address(layer, seq, head, side, page), kPageTokens, context.context(),
                &rows[std::size_t{1} * page * kPageTokens * d]);
  }
  std::size_t kept = 0;
  TokenMask mask;  // of the page
  for (int t = 0, n_protected = 0; t < n_pages * kPageTokens; ++t) {
    if (t % kPageTokens == 0) mask = masked(layer, seq, head, t / kPageTokens);
    const bool is_protected = mask.test(t % kPageTokens);
    float* row = &rows[std::size_t{1} * t * d];
    if (is_protected && in_place)
      read_row(address(layer.protected_pages, seq, layer.layer, head, side, n_protected / kPageTokens), d,
               n_protected % kPageTokens, row);
    n_protected += is_protected ? 1 : 0;
    if (in_place || !is_protected) std::copy_n(row, d, &rows[std::size_t{1} * kept++ * d]);
  }
  rows.resize(kept * d);
  return rows;
}

// What a query sees of one head and side. Sequences with the same sealed pages decode them once.
class VisibleRows {
 public:
  std::vector<const float*> rows;  // each [d]

  // behind: the query, the last one of its sequence.
  void read(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
            const kvant_decode_layer& layer, int seq, int behind, int head, int side) {
    const int d = shape.head_dim;
    const int n = lengths.sealed_pages == nullptr ? 0 : lengths.sealed_pages[seq];
    std::vector<const std::byte*> pages(n);
    for (int page = 0; page < n; ++page) pages[page] = sealed_address(layer, seq, head, side, page);
    if (pages != pages_) {
      sealed_ = sealed_rows(shape, layer, seq, head, side, n, /*in_place=*/false);
      pages_ = std::move(pages);
    }
    const int hidden = lengths.first_tokens == nullptr ? 0 : std::max(0, lengths.first_tokens[seq] - behind);
    const int hidden_of_tail = std::max(0, hidden - n * kPageTokens);
    // The sink's tokens aren't among the sealed rows.
    const int gone = n > 0 ? std::max(0, hidden - hidden_of_tail - layer.sink) : 0;
    rows.clear();
    for (std::size_t at = std::size_t{1} * gone * d; at < sealed_.size(); at += d)
      rows.push_back(&sealed_[at]);
    const int n_protected = lengths.protected_tokens == nullptr
                                ? 0
                                : lengths.protected_tokens[seq * lengths.protected_seq_stride +
                                                           head * lengths.protected_head_stride];
    const int tail_end = lengths.tail_tokens == nullptr ? 0 : lengths.tail_tokens[seq] - behind;
    plain_.resize(std::size_t{1} * (n_protected + std::max(0, tail_end - hidden_of_tail)) * d);
    float* next = plain_.data();
    const auto add = [&](const kvant_pages& plain, int first, int end) {
      for (int t = first; t < end; ++t, next += d) {
        read_row(address(plain, seq, layer.layer, head, side, t / kPageTokens), d, t % kPageTokens, next);
        rows.push_back(next);
      }
    };
    add(layer.protected_pages, 0, n_protected);
    add(layer.tail, hidden_of_tail, tail_end);
  }

 private:
  std::vector<const std::byte*> pages_;
  std::vector<float> sealed_, plain_;
};

// What the queries of a prompt see of one head and side: rows of sealed pages, then of the tail, from its
// token `first_in_tail` on.
class PromptRows {
 public:
  PromptRows(const kvant_prompt_pages& pages, int seq, int first_in_tail, int n_tail, int head, int side)
      : pages_(pages), seq_(seq), head_(head), side_(side), tail_(std::size_t{1} * n_tail * head_dim()) {
    for (int t = first_in_tail; t < n_tail; ++t) {
      read_row(address(pages.layer->tail, seq, pages.layer->layer, head, side, t / kPageTokens), head_dim(),
               t % kPageTokens, &tail_[std::size_t{1} * t * head_dim()]);
    }
  }
  // So many pages and the tail's tokens [first, end), of all these the newest `window`; 0: all.
  std::vector<const float*> visible(int n_sealed, int first, int end, int window) {
    if (n_sealed != n_sealed_) {
      sealed_ = sealed_rows(*pages_.shape, *pages_.layer, seq_, head_, side_, n_sealed, /*in_place=*/true);
      n_sealed_ = n_sealed;
    }
    std::vector<const float*> rows;
    for (std::size_t at = 0; at < sealed_.size(); at += head_dim()) rows.push_back(&sealed_[at]);
    for (int t = first; t < end; ++t) rows.push_back(&tail_[std::size_t{1} * t * head_dim()]);
    const int hidden = window == 0 ? 0 : static_cast<int>(rows.size()) - window;
    if (hidden > 0) rows.erase(rows.begin(), rows.begin() + hidden);
    return rows;
  }

 private:
  int head_dim() const { return pages_.shape->head_dim; }

  const kvant_prompt_pages& pages_;
  int seq_, head_, side_, n_sealed_ = 0;
  std::vector<float> sealed_, tail_;
};

// out = softmax(scale q K^T) V of a query, corrected by the sums of its sequence (of a prompt: its own).
// SAS's polynomial is taken for the exponential that it approximates.
void attend(const kvant_decode_shape& shape, const std::vector<float>& q, const std::vector<const float*>& k,
            const std::vector<const float*>& v, const kvant_correction* correction, const float* sink_logits,
            int seq, int query_head, float* to, float* lse = nullptr) {
  constexpr double kLeastSas = -6;
  const int d = shape.head_dim;
  const std::size_t n = k.size();
  std::vector<double> scores(n), out(d);
  for (std::size_t t = 0; t < n; ++t) {
    scores[t] = dot(q.data(), k[t], d) * shape.softmax_scale;
    if (shape.score_softcap > 0) scores[t] = shape.score_softcap * std::tanh(scores[t] / shape.score_softcap);
  }
  double max = *std::max_element(scores.begin(), scores.end());
  if (correction != nullptr && correction->absolute != 0) max = std::max(max, 0.0);
  double sum = 0;
  for (std::size_t t = 0; t < n; ++t) {
    const double weight = shape.sas != 0 && scores[t] - max < kLeastSas ? 0 : std::exp(scores[t] - max);
    sum += weight;
    add_row(weight, v[t], d, out.data());
  }
  if (correction != nullptr) {
    const double scale = correction->absolute != 0 ? std::exp(-max) : 1;
    const float* sums = state(*correction, seq, query_head / shape.group);
    const auto phi =
        features(correction->query_maps + std::ptrdiff_t{2} * query_head * d * kHalfFeatures, q.data(), d);
    for (int f = 0; f < 2 * kHalfFeatures; ++f) {
      add_row(scale * phi[f], sums + std::ptrdiff_t{1} * f * d, d, out.data());
      sum += scale * phi[f] * sums[2 * kHalfFeatures * d + f];
    }
  }
  if (sink_logits != nullptr) sum += std::exp(sink_logits[query_head] - max);
  for (int c = 0; c < d; ++c) to[c] = static_cast<float>(out[c] / sum);
  if (lse != nullptr) *lse = static_cast<float>(max + std::log(sum));
}

// The query heads of a KV head, of one query.
void attend_group(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
                  const std::vector<const float*>& k, const std::vector<const float*>& v, int seq, int row,
                  int head) {
  std::vector<float> q(shape.head_dim), out(shape.head_dim);
  for (int query_head = head * shape.group; query_head < (head + 1) * shape.group; ++query_head) {
    read_numbers(layer.q, layer.q_type, row * layer.q_seq_stride + query_head * layer.q_head_stride, q);
    attend(shape, q, k, v, layer.correction, layer.sink_logits, seq, query_head, out.data(),
           layer.lse == nullptr ? nullptr : layer.lse + row * shape.n_kv_heads * shape.group + query_head);
    if (layer.out_hadamard != 0) walsh_hadamard(out);
    scale(out, layer.out_factors, head);
    std::copy(
        out.begin(), out.end(),
        static_cast<float*>(layer.out) + row * layer.out_seq_stride + query_head * layer.out_head_stride);
  }
}

void write_output(const kvant_prompt& prompt, int row, int head, const std::vector<float>& out) {
  const std::int64_t at = row * prompt.out_token_stride + head * prompt.out_head_stride;
  if (prompt.out_type == KVANT_F32) {
    std::copy_n(out.begin(), out.size(), static_cast<float*>(prompt.out) + at);
  } else {
    bf16_row_from_float(out.data(), static_cast<std::uint16_t*>(prompt.out) + at, out.size());
  }
}

// The scores that a query's head gives the rows that it sees.
std::vector<double> scores_of(const kvant_decode_shape& shape, const kvant_token_weights& w, int query,
                              int query_head) {
  const int d = shape.head_dim;
  std::vector<float> q(d), k(d);
  read_numbers(w.q, w.q_type, query * w.q_token_stride + query_head * w.q_head_stride, q);
  std::vector<double> scores(std::clamp(w.n_visible + query, 0, w.n_tokens));
  for (std::size_t t = 0; t < scores.size(); ++t) {
    read_numbers(
        w.keys, KVANT_BF16,
        static_cast<std::int64_t>(t) * w.key_token_stride + query_head / shape.group * w.key_head_stride, k);
    scores[t] = dot(q.data(), k.data(), d) * shape.softmax_scale;
    if (shape.score_softcap > 0) scores[t] = shape.score_softcap * std::tanh(scores[t] / shape.score_softcap);
  }
  return scores;
}

}  // namespace

kvant_status decode_attention(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                              const kvant_decode_layer* layer, void*, std::size_t, kvant_stream) {
  if (layer->new_rows != nullptr) {
    if (layer->new_rows->n_rows != query_rows(*shape, *lengths, shape->n_seqs - 1).second)
      return KVANT_INVALID_ARGUMENT;
    const kvant_status appended = append_last(*shape, *lengths, *layer);
    if (appended != KVANT_OK) return appended;
  }
  for (int head = 0; head < shape->n_kv_heads; ++head) {
    VisibleRows k, v;
    for (int seq = 0; seq < shape->n_seqs; ++seq) {
      const auto [first, end] = query_rows(*shape, *lengths, seq);
      for (int row = first; row < end; ++row) {
        k.read(*shape, *lengths, *layer, seq, end - 1 - row, head, KVANT_KEY);
        v.read(*shape, *lengths, *layer, seq, end - 1 - row, head, KVANT_VALUE);
        attend_group(*shape, *layer, k.rows, v.rows, seq, row, head);
      }
    }
  }
  return KVANT_OK;
}

kvant_status prompt_attention(const kvant_prompt_shape* shape, const kvant_prompt* prompt, void*, std::size_t,
                              kvant_stream) {
  const kvant_prompt_pages& pages = *prompt->pages;
  if (prompt->k != nullptr || pages.first_row_tokens == nullptr) return KVANT_UNSUPPORTED;
  if (prompt->correction != nullptr && shape->corrected == 0) return KVANT_INVALID_ARGUMENT;
  kvant_decode_shape of_scores = *pages.shape;
  of_scores.score_softcap = shape->score_softcap;
  std::vector<float> out(shape->head_dim), q(shape->head_dim);
  for (int seq = 0; seq < shape->n_seqs; ++seq) {
    const int first = prompt->query_begins[seq], n = prompt->query_begins[seq + 1] - first;
    const int n_tail = prompt->token_begins[seq + 1] - prompt->token_begins[seq];
    if (n == 0) continue;
    const auto sealed_of = [&](int i) {
      return pages.sealed_begins == nullptr ? 0 : pages.query_sealed_pages[first + i];
    };
    const auto skipped_of = [&](int i) { return sealed_of(i) * kPageTokens - pages.first_row_tokens[seq]; };
    for (int head = 0; head < shape->n_kv_heads; ++head) {
      PromptRows keys(pages, seq, skipped_of(0), n_tail, head, KVANT_KEY);
      PromptRows values(pages, seq, skipped_of(0), n_tail, head, KVANT_VALUE);
      for (int i = 0; i < n; ++i) {
        const int end = n_tail - (n - 1 - i);
        const auto k = keys.visible(sealed_of(i), skipped_of(i), end, shape->window);
        const auto v = values.visible(sealed_of(i), skipped_of(i), end, shape->window);
        for (int g = 0; g < shape->n_heads / shape->n_kv_heads; ++g) {
          const int query_head = head * (shape->n_heads / shape->n_kv_heads) + g;
          read_numbers(prompt->q, prompt->q_type,
                       (first + i) * prompt->q_token_stride + query_head * prompt->q_head_stride, q);
          float* const lse = prompt->lse == nullptr ? nullptr
                                                    : prompt->lse + (first + i) * prompt->lse_token_stride +
                                                          query_head * prompt->lse_head_stride;
          attend(of_scores, q, k, v, prompt->correction, prompt->sink_logits, first + i, query_head,
                 out.data(), lse);
          write_output(*prompt, first + i, query_head, out);
        }
      }
    }
  }
  return KVANT_OK;
}

kvant_status dequantize(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                        const kvant_decode_layer* layer, const kvant_dequantization* to, kvant_stream) {
  const int d = shape->head_dim;
  if (to->n_seqs != 1 || to->seqs != nullptr) return KVANT_UNSUPPORTED;
  const int n_sealed = lengths->sealed_pages == nullptr ? 0 : *lengths->sealed_pages;
  const int n_tail = lengths->tail_tokens == nullptr ? 0 : *lengths->tail_tokens;
  const int first = to->first_page * kPageTokens, n_tokens = n_sealed * kPageTokens + n_tail;
  for (int head = 0; head < to->n_heads; ++head) {
    for (int side = 0; side < 2; ++side) {
      auto* out = static_cast<std::uint16_t*>(side == KVANT_KEY ? to->keys : to->values);
      if (out == nullptr) continue;
      const std::vector<float> rows = sealed_rows(*shape, *layer, 0, head, side, n_sealed, /*in_place=*/true);
      std::vector<float> row(d);
      for (int t = first; t < std::min(n_tokens, first + to->n_pages * kPageTokens); ++t) {
        const int in_tail = t - n_sealed * kPageTokens;
        if (in_tail < 0) {
          std::copy_n(&rows[std::size_t{1} * t * d], d, row.begin());
        } else {
          read_row(address(layer->tail, 0, layer->layer, head, side, in_tail / kPageTokens), d,
                   in_tail % kPageTokens, row.data());
        }
        bf16_row_from_float(row.data(), out + (t - first) * to->token_stride + head * to->head_stride, d);
      }
    }
  }
  return KVANT_OK;
}

kvant_status weigh_tokens(const kvant_decode_shape* shape, const kvant_token_weights* w, kvant_stream) {
  for (int head = 0; head < shape->n_kv_heads; ++head) {
    std::vector<double> sums(w->n_tokens);
    for (int i = 0; i < w->n_queries; ++i) {
      for (int query_head = head * shape->group; query_head < (head + 1) * shape->group; ++query_head) {
        const std::vector<double> scores = scores_of(*shape, *w, i, query_head);
        const std::int64_t at = i * w->lse_token_stride + query_head * w->lse_head_stride;
        if (w->found_lse != nullptr) {
          double sum = 0;
          for (const double score : scores) sum += std::exp(score);
          w->found_lse[at] = static_cast<float>(std::log(sum));
        }
        const float lse = (w->found_lse != nullptr ? w->found_lse : w->lse)[at];
        for (std::size_t t = 0; t < scores.size(); ++t) sums[t] += std::exp(scores[t] - lse);
      }
    }
    for (int t = 0; t < w->n_tokens; ++t)
      w->weights[head * w->weight_head_stride + t] += static_cast<float>(sums[t]);
  }
  return KVANT_OK;
}

}  // namespace kvant::testing::host
