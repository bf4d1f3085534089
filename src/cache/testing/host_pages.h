// Tests only: a device whose memory is the host's, with a library that does what kvant/kvant.h says in plain
// code: pages are canonical, unquantized rows lie one after another, attention is in double precision.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "base/token_mask.h"
#include "cache/page_device.h"
#include "format/error_metric.h"
#include "format/format.h"

namespace kvant::testing {

class HostLibrary {
 public:
  static PageLibrary functions() {
    return {last_error,      page_bytes,       can_seal,         decode_kernel, decode_workspace,
            decode_schedule, decode_attention, append,           seal_pages,    dequantize,
            transform,       prompt_workspace, prompt_attention, weigh_tokens,  protect};
  }

 private:
  static constexpr int kHalfFeatures = 128;  // of a correction

  static const char* last_error() { return "an argument is out of range"; }

  static std::size_t page_bytes(const char* name, int d) {
    const Format* format = find_format(name);
    if (format == nullptr) return 0;
    return (format->page_bytes(d) + 15) / 16 * 16;
  }
  static int can_seal(const char* name) {
    const Format* format = find_format(name);
    if (format == nullptr || format->plain()) return 0;
    return format->codebook_shape() && format->codebook_shape()->per_sub_space ? 0 : 1;
  }
  static const char* decode_kernel(const kvant_decode_shape* shape) {
    return find_format(shape->key_format) == nullptr ? nullptr : "host/plain";
  }
  static kvant_status decode_workspace(const kvant_decode_shape*, std::size_t* bytes) {
    *bytes = 256;
    return KVANT_OK;
  }
  static kvant_status decode_schedule(const kvant_decode_shape*, const kvant_decode_lengths*, void*,
                                      std::size_t, kvant_stream) {
    return KVANT_OK;
  }

  static std::byte* address(const kvant_pages& p, std::int64_t seq, int layer, int head, int side, int page) {
    const std::int32_t id = p.table[seq * p.seq_stride + layer * p.layer_stride + head * p.head_stride +
                                    side * p.side_stride + page];
    const auto* pool = static_cast<const std::byte*>(p.pool);
    return const_cast<std::byte*>(pool + id * p.page_stride + layer * p.layer_offset + head * p.head_offset +
                                  side * p.side_offset);
  }
  // Of a sealed page.
  static std::byte* sealed_address(const kvant_decode_layer& layer, std::int64_t seq, int head, int side,
                                   int page) {
    return address(layer.sealed, seq, layer.layer, head, side, page) +
           (layer.sealed_offsets == nullptr ? 0 : layer.sealed_offsets[2 * head + side]);
  }
  static const Format& format_of(const kvant_decode_shape& shape, int head, int side) {
    const char* const* by_head = side == KVANT_KEY ? shape.head_key_formats : shape.head_value_formats;
    if (by_head != nullptr) return *find_format(by_head[head]);
    return *find_format(side == KVANT_KEY ? shape.key_format : shape.value_format);
  }
  // With the codebook of a head's side, read from where the layer says.
  class SideContext {
   public:
    SideContext(const kvant_decode_shape& shape, const kvant_decode_layer& layer, int head, int side) {
      const Format& format = format_of(shape, head, side);
      context_ = {.head_dim = shape.head_dim};
      const void* all = side == KVANT_KEY ? layer.key_codebooks : layer.value_codebooks;
      const std::int64_t stride = side == KVANT_KEY ? layer.key_codebook_stride : layer.value_codebook_stride;
      if (!format.codebook_shape() || all == nullptr) return;
      std::vector<float> centroids(format.constant_size(shape.head_dim));
      float_row_from_f16(static_cast<const std::uint16_t*>(all) + head * stride, centroids.data(),
                         centroids.size());
      constants_.set(0, 0, Side::key, format.needed_constants().front(), std::move(centroids));
      context_.constants.all = &constants_;
    }
    SideContext(const SideContext&) = delete;
    SideContext& operator=(const SideContext&) = delete;
    const PageContext& context() const { return context_; }

   private:
    Constants constants_;
    PageContext context_;
  };
  // Of a head's keys in a page, by its definition; null where the head has none.
  static std::unique_ptr<ErrorMetric> metric_of(const kvant_page_metrics& all, int d, int head, int page) {
    const float* w = all.directions + std::ptrdiff_t{1} * head * d * kMetricRank;
    const float* basis = all.basis + head * all.basis_head_stride;
    if (std::isnan(w[0])) return nullptr;
    std::vector<float> directions(std::size_t{1} * d * kMetricRank);
    for (int r = 0; r < kMetricRank; ++r) {
      std::vector<double> turned(d), behind(d);
      for (int i = 0; i < d; ++i) {
        const double angle =
            2 * std::numbers::pi * all.turns[2 * i + 1] * (page * kPageTokens + kPageTokens / 2);
        const int partner = static_cast<int>(all.turns[2 * i]);
        turned[i] = w[i * kMetricRank + r] * std::cos(angle) - w[partner * kMetricRank + r] * std::sin(angle);
      }
      for (int i = 0; i < d; ++i)
        for (int j = 0; j < d; ++j) behind[j] += turned[i] * basis[i * d + j];
      for (int i = 0; i < d; ++i) directions[i * kMetricRank + r] = static_cast<float>(behind[i]);
    }
    return std::make_unique<ErrorMetric>(directions);
  }
  // Which page of its sequence the nth one that is sealed is.
  static int place_of(const kvant_seal_range& range, int seq, int nth) {
    const std::int32_t* first = range.page_metrics->first_pages;
    return (first == nullptr ? range.sealed_page : first)[seq] + nth;
  }
  // Tokens of a sealed page that lie in protected pages.
  static TokenMask masked(const kvant_decode_layer& layer, int seq, int head, int page) {
    TokenMask mask;
    for (int t = 0; page == 0 && t < layer.sink; ++t) mask.set(t);
    if (layer.masks == nullptr) return mask;
    const std::uint32_t* words =
        layer.masks + 4 * (seq * layer.mask_seq_stride + head * layer.mask_head_stride + page);
    for (int t = 0; t < kPageTokens; ++t) {
      if ((words[t / 32] >> (t % 32) & 1) != 0) mask.set(t);
    }
    return mask;
  }
  static void read_row(const std::byte* page, int d, int token, float* to) {
    float_row_from_bf16(reinterpret_cast<const std::uint16_t*>(page) + std::ptrdiff_t{token} * d, to, d);
  }

  // A row that begins with number `at`.
  static void read_numbers(const void* rows, kvant_type type, std::int64_t at, std::vector<float>& to) {
    if (type == KVANT_F32) {
      std::copy_n(static_cast<const float*>(rows) + at, to.size(), to.begin());
    } else {
      float_row_from_bf16(static_cast<const std::uint16_t*>(rows) + at, to.data(), to.size());
    }
  }

  // Of a head: its row of [n_heads][d] factors, or null.
  static void scale(std::vector<float>& row, const float* factors, int head) {
    for (std::size_t c = 0; factors != nullptr && c < row.size(); ++c)
      row[c] *= factors[head * row.size() + c];
  }
  // From the definition: the entry of channels i and j is +-1, by the parity of the bits that both have.
  static void walsh_hadamard(std::vector<float>& row) {
    std::vector<float> out(row.size());
    for (std::size_t j = 0; j < row.size(); ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < row.size(); ++i)
        sum += std::popcount(i & j) % 2 == 0 ? row[i] : -double{row[i]};
      out[j] = static_cast<float>(sum / std::sqrt(static_cast<double>(row.size())));
    }
    row = out;
  }

  static kvant_status transform(const kvant_transformation* t, kvant_stream) {
    std::vector<float> row(t->head_dim);
    for (int i = 0; i < t->n_rows; ++i) {
      for (int head = 0; head < t->n_heads; ++head) {
        const std::int64_t at = i * t->row_stride + head * t->head_stride;
        auto* bf16 = static_cast<std::uint16_t*>(t->rows) + at;
        auto* f32 = static_cast<float*>(t->rows) + at;
        if (t->source != nullptr) {  // the engine names those of the other type only
          read_numbers(t->source, t->source_is_f32 != 0 ? KVANT_F32 : KVANT_BF16,
                       i * t->source_row_stride + head * t->source_head_stride, row);
        } else {
          read_numbers(t->rows, t->type, at, row);
        }
        const int group = std::max(t->heads_of_factors, 1);
        scale(row, t->factors, head / group);
        if (t->hadamard != 0) walsh_hadamard(row);
        scale(row, t->factors_after, head / group);
        if (t->type == KVANT_F32) {
          std::copy(row.begin(), row.end(), f32);
        } else {
          bf16_row_from_float(row.data(), bf16, row.size());
        }
      }
    }
    return KVANT_OK;
  }

  static kvant_status append(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                             const kvant_new_rows* rows, kvant_stream) {
    const int d = shape->head_dim;
    for (int i = 0; i < rows->n_rows; ++i) {
      const int token = rows->tail_token[i];
      if (token < 0) continue;
      for (int head = 0; head < shape->n_kv_heads; ++head) {
        for (int side = 0; side < 2; ++side) {
          const bool is_key = side == KVANT_KEY;
          std::vector<float> row(d);
          read_numbers(is_key ? rows->keys : rows->values, rows->type,
                       i * (is_key ? rows->key_row_stride : rows->value_row_stride) +
                           head * (is_key ? rows->key_head_stride : rows->value_head_stride),
                       row);
          scale(row, is_key ? rows->key_factors : rows->value_factors, head);
          if ((is_key ? rows->key_hadamard : rows->value_hadamard) != 0) walsh_hadamard(row);
          std::byte* page = address(layer->tail, rows->seq[i], layer->layer, head, side, token / kPageTokens);
          bf16_row_from_float(
              row.data(),
              reinterpret_cast<std::uint16_t*>(page) + std::ptrdiff_t{1} * (token % kPageTokens) * d, d);
        }
      }
    }
    return rows->queries == nullptr ? KVANT_OK : transform_queries(*shape, *rows);
  }
  // Rows of a sequence's queries: the first, and the one behind the last.
  static std::pair<int, int> query_rows(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                                        int seq) {
    if (lengths.query_begins != nullptr) return {lengths.query_begins[seq], lengths.query_begins[seq + 1]};
    const int n = std::max(shape.max_queries, 1);
    return {seq * n, (seq + 1) * n};
  }
  // Rows that come with a call of decode_attention.
  static kvant_status append_last(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                                  const kvant_decode_layer& layer) {
    kvant_new_rows rows = *layer.new_rows;
    std::vector<std::int32_t> seq(rows.n_rows), token(rows.n_rows);
    for (int i = 0; i < shape.n_seqs; ++i) {
      const auto [first, end] = query_rows(shape, lengths, i);
      for (int row = first; row < end; ++row) {
        seq[row] = i;
        token[row] = lengths.tail_tokens[i] - (end - row);
      }
    }
    rows.seq = seq.data();
    rows.tail_token = token.data();
    return append(&shape, &layer, &rows, nullptr);
  }
  // Of F32 rows.
  static kvant_status transform_queries(const kvant_decode_shape& shape, const kvant_new_rows& rows) {
    if (rows.type != KVANT_F32) return KVANT_UNSUPPORTED;
    kvant_transformation t{};
    t.n_rows = rows.n_rows;
    t.n_heads = shape.n_kv_heads * shape.group;
    t.head_dim = shape.head_dim;
    t.rows = rows.queries;
    t.type = rows.type;
    t.row_stride = rows.query_row_stride;
    t.head_stride = rows.query_head_stride;
    t.factors = rows.query_factors;
    t.heads_of_factors = shape.group;
    t.hadamard = rows.key_hadamard;
    return transform(&t, nullptr);
  }

  // phi(x) of kvant_correction. maps: [2][d][128].
  static std::vector<double> features(const float* maps, const float* x, int d) {
    std::vector<double> phi(2 * kHalfFeatures);
    for (int half = 0; half < 2; ++half) {
      double sum = 0;
      for (int j = 0; j < kHalfFeatures; ++j) {
        double y = 0;
        for (int i = 0; i < d; ++i)
          y += double{x[i]} * maps[(std::ptrdiff_t{half} * d + i) * kHalfFeatures + j];
        sum += phi[half * kHalfFeatures + j] = std::exp(y);
      }
      for (int j = 0; j < kHalfFeatures; ++j) phi[half * kHalfFeatures + j] /= sum;
    }
    return phi;
  }
  static float* state(const kvant_correction& c, int seq, int head) {
    return c.states + (c.state_of_seq == nullptr ? seq : c.state_of_seq[seq]) * c.state_seq_stride +
           head * c.state_head_stride;
  }
  // The nth page of a sequence that was just sealed. Its rows are [kPageTokens][d].
  static void add_to_state(const kvant_correction& c, int seq, int head, int nth, int d, int sink,
                           const std::vector<float>& keys, const std::vector<float>& sealed_keys,
                           const std::vector<float>& sealed_values) {
    float* to = state(c, seq, head) + (nth + 1) * c.state_page_stride;
    if (c.state_page_stride != 0)
      std::copy_n(to - c.state_page_stride, 2 * kHalfFeatures * (std::ptrdiff_t{1} + d), to);
    std::vector<float> lost(d);
    for (int t = sink; t < kPageTokens; ++t) {
      const std::ptrdiff_t row = std::ptrdiff_t{1} * t * d;
      for (int i = 0; i < d; ++i) lost[i] = keys[row + i] - sealed_keys[row + i];
      const auto phi = features(c.key_maps + std::ptrdiff_t{2} * head * d * kHalfFeatures, lost.data(), d);
      for (int f = 0; f < 2 * kHalfFeatures; ++f) {
        for (int i = 0; i < d; ++i) to[f * d + i] += static_cast<float>(phi[f] * sealed_values[row + i]);
        to[2 * kHalfFeatures * d + f] += static_cast<float>(phi[f]);
      }
    }
  }

  static kvant_status seal_pages(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                                 const kvant_seal_range* range, kvant_stream) {
    const int d = shape->head_dim;
    std::vector<float> values(std::size_t{kPageTokens} * d);
    for (int seq = 0; seq < shape->n_seqs; ++seq) {
      if (range->tail_page[seq] < 0) continue;
      const int n = range->n_pages == nullptr ? range->max_pages : range->n_pages[seq];
      for (int p = 0; p < n; ++p) {
        const int sealed = range->sealed_page[seq] + p;
        for (int head = 0; head < shape->n_kv_heads; ++head) {
          const TokenMask left_out = masked(*layer, seq, head, sealed);
          std::vector<float> keys, decoded[2];
          for (int side = 0; side < 2; ++side) {
            const std::byte* tail =
                address(layer->tail, seq, layer->layer, head, side, range->tail_page[seq] + p);
            for (int t = 0; t < kPageTokens; ++t) read_row(tail, d, t, &values[std::size_t{1} * t * d]);
            const SideContext context(*shape, *layer, head, side);
            PageContext of_page = context.context();
            const auto metric = side == KVANT_KEY && range->page_metrics != nullptr
                                    ? metric_of(*range->page_metrics, d, head, place_of(*range, seq, p))
                                    : nullptr;
            of_page.metric = metric.get();
            format_of(*shape, head, side)
                .encode(values.data(), left_out, of_page, sealed_address(*layer, seq, head, side, sealed));
            if (layer->correction == nullptr) continue;
            if (side == KVANT_KEY) keys = values;
            decoded[side].resize(values.size());
            format_of(*shape, head, side)
                .decode(sealed_address(*layer, seq, head, side, sealed), kPageTokens,
                        SideContext(*shape, *layer, head, side).context(), decoded[side].data());
          }
          if (layer->correction != nullptr)
            add_to_state(*layer->correction, seq, head, p, d, sealed == 0 ? layer->sink : 0, keys, decoded[0],
                         decoded[1]);
        }
      }
    }
    return KVANT_OK;
  }

  // Rows [n][d] of all tokens of a sequence that aren't in protected pages, or, with `in_place`, of all its
  // sealed ones with the protected ones at their place.
  static std::vector<float> sealed_rows(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
                                        int seq, int head, int side, int n_pages, bool in_place) {
    const int d = shape.head_dim;
    std::vector<float> rows(std::size_t{1} * n_pages * kPageTokens * d);
    const SideContext context(shape, layer, head, side);
    for (int page = 0; page < n_pages; ++page) {
      format_of(shape, head, side)
          .decode(sealed_address(layer, seq, head, side, page), kPageTokens, context.context(),
                  &rows[std::size_t{1} * page * kPageTokens * d]);
    }
    std::size_t kept = 0;
    for (int t = 0, n_protected = 0; t < n_pages * kPageTokens; ++t) {
      const bool is_protected = masked(layer, seq, head, t / kPageTokens).test(t % kPageTokens);
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

  // What a query sees of one head and side, [n][d]. Sequences with the same sealed pages decode them once.
  class VisibleRows {
   public:
    std::vector<float> rows;

    // behind: the query, the last one of its sequence.
    void read(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
              const kvant_decode_layer& layer, int seq, int behind, int head, int side) {
      const int d = shape.head_dim;
      const int n = lengths.sealed_pages == nullptr ? 0 : lengths.sealed_pages[seq];
      std::vector<const std::byte*> pages;
      for (int page = 0; page < n; ++page) pages.push_back(sealed_address(layer, seq, head, side, page));
      if (pages != pages_) {
        sealed_ = sealed_rows(shape, layer, seq, head, side, n, /*in_place=*/false);
        pages_ = std::move(pages);
      }
      rows = sealed_;
      const int hidden =
          lengths.first_tokens == nullptr ? 0 : std::max(0, lengths.first_tokens[seq] - behind);
      const int hidden_of_tail = std::max(0, hidden - n * kPageTokens);
      if (n > 0) {  // the sink's tokens aren't among these rows
        const int gone = std::max(0, hidden - hidden_of_tail - layer.sink);
        rows.erase(rows.begin(), rows.begin() + std::ptrdiff_t{gone} * d);
      }
      const auto add = [&](const kvant_pages& plain, int first, int n_tokens) {
        for (int t = first; t < n_tokens; ++t) {
          rows.resize(rows.size() + d);
          read_row(address(plain, seq, layer.layer, head, side, t / kPageTokens), d, t % kPageTokens,
                   &rows[rows.size() - d]);
        }
      };
      if (lengths.protected_tokens != nullptr)
        add(layer.protected_pages, 0,
            lengths
                .protected_tokens[seq * lengths.protected_seq_stride + head * lengths.protected_head_stride]);
      if (lengths.tail_tokens != nullptr) add(layer.tail, hidden_of_tail, lengths.tail_tokens[seq] - behind);
    }

   private:
    std::vector<const std::byte*> pages_;
    std::vector<float> sealed_;
  };

  // out = softmax(scale q K^T) V of a query, corrected by the sums of its sequence (of a prompt: its own).
  // SAS's polynomial is taken for the exponential that it approximates.
  static void attend(const kvant_decode_shape& shape, const std::vector<float>& q,
                     const std::vector<float>& k, const std::vector<float>& v,
                     const kvant_correction* correction, const float* sink_logits, int seq, int query_head,
                     float* to, float* lse = nullptr) {
    constexpr double kLeastSas = -6;
    const int d = shape.head_dim;
    const std::size_t n = k.size() / d;
    std::vector<double> scores(n), out(d);
    for (std::size_t t = 0; t < n; ++t) {
      for (int c = 0; c < d; ++c) scores[t] += double{q[c]} * k[t * d + c];
      scores[t] *= shape.softmax_scale;
      if (shape.score_softcap > 0)
        scores[t] = shape.score_softcap * std::tanh(scores[t] / shape.score_softcap);
    }
    double max = *std::max_element(scores.begin(), scores.end());
    if (correction != nullptr && correction->absolute != 0) max = std::max(max, 0.0);
    double sum = 0;
    for (std::size_t t = 0; t < n; ++t) {
      const double weight = shape.sas != 0 && scores[t] - max < kLeastSas ? 0 : std::exp(scores[t] - max);
      sum += weight;
      for (int c = 0; c < d; ++c) out[c] += weight * v[t * d + c];
    }
    if (correction != nullptr) {
      const double scale = correction->absolute != 0 ? std::exp(-max) : 1;
      const float* sums = state(*correction, seq, query_head / shape.group);
      const auto phi =
          features(correction->query_maps + std::ptrdiff_t{2} * query_head * d * kHalfFeatures, q.data(), d);
      for (int f = 0; f < 2 * kHalfFeatures; ++f) {
        for (int c = 0; c < d; ++c) out[c] += scale * phi[f] * sums[f * d + c];
        sum += scale * phi[f] * sums[2 * kHalfFeatures * d + f];
      }
    }
    if (sink_logits != nullptr) sum += std::exp(sink_logits[query_head] - max);
    for (int c = 0; c < d; ++c) to[c] = static_cast<float>(out[c] / sum);
    if (lse != nullptr) *lse = static_cast<float>(max + std::log(sum));
  }

  static kvant_status decode_attention(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
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
  // The query heads of a KV head, of one query.
  static void attend_group(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
                           const std::vector<float>& k, const std::vector<float>& v, int seq, int row,
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

  static kvant_status prompt_workspace(const kvant_prompt_shape*, std::size_t* bytes) {
    *bytes = 256;
    return KVANT_OK;
  }
  // Leaves the newest tokens of a window; 0: all.
  static void forget_before(int window, int d, std::vector<float>& rows) {
    const std::size_t kept = std::size_t{1} * window * d;
    if (window > 0 && rows.size() > kept)
      rows.erase(rows.begin(), rows.end() - static_cast<std::ptrdiff_t>(kept));
  }
  static void read_query(const kvant_prompt& prompt, int row, int head, std::vector<float>& q) {
    const std::int64_t at = row * prompt.q_token_stride + head * prompt.q_head_stride;
    if (prompt.q_type == KVANT_F32) {
      std::copy_n(static_cast<const float*>(prompt.q) + at, q.size(), q.begin());
    } else {
      float_row_from_bf16(static_cast<const std::uint16_t*>(prompt.q) + at, q.data(), q.size());
    }
  }
  static void write_output(const kvant_prompt& prompt, int row, int head, const std::vector<float>& out) {
    const std::int64_t at = row * prompt.out_token_stride + head * prompt.out_head_stride;
    if (prompt.out_type == KVANT_F32) {
      std::copy_n(out.begin(), out.size(), static_cast<float*>(prompt.out) + at);
    } else {
      bf16_row_from_float(out.data(), static_cast<std::uint16_t*>(prompt.out) + at, out.size());
    }
  }
  // Each query as a sequence of the decode kernel, whose tail begins behind the pages that it sees.
  static kvant_status prompt_attention(const kvant_prompt_shape* shape, const kvant_prompt* prompt, void*,
                                       std::size_t, kvant_stream) {
    const kvant_prompt_pages& pages = *prompt->pages;
    if (prompt->k != nullptr || pages.first_row_tokens == nullptr) return KVANT_UNSUPPORTED;
    if (prompt->correction != nullptr && shape->corrected == 0) return KVANT_INVALID_ARGUMENT;
    kvant_decode_shape of_scores = *pages.shape;
    of_scores.score_softcap = shape->score_softcap;
    std::vector<float> out(shape->head_dim), q(shape->head_dim);
    for (int seq = 0; seq < shape->n_seqs; ++seq) {
      const int first = prompt->query_begins[seq], n = prompt->query_begins[seq + 1] - first;
      const int n_tail = prompt->token_begins[seq + 1] - prompt->token_begins[seq];
      for (int head = 0; head < shape->n_kv_heads; ++head) {
        for (int i = 0; i < n; ++i) {
          const int sealed = pages.sealed_begins == nullptr ? 0 : pages.query_sealed_pages[first + i];
          const int skipped = sealed * kPageTokens - pages.first_row_tokens[seq];
          std::vector<float> rows[2];
          for (const int side : {KVANT_KEY, KVANT_VALUE}) {
            rows[side] = sealed_rows(*pages.shape, *pages.layer, seq, head, side, sealed, /*in_place=*/true);
            for (int t = skipped; t < n_tail - (n - 1 - i); ++t) {
              rows[side].resize(rows[side].size() + shape->head_dim);
              read_row(address(pages.layer->tail, seq, pages.layer->layer, head, side, t / kPageTokens),
                       shape->head_dim, t % kPageTokens, &rows[side][rows[side].size() - shape->head_dim]);
            }
            forget_before(shape->window, shape->head_dim, rows[side]);
          }
          for (int g = 0; g < shape->n_heads / shape->n_kv_heads; ++g) {
            const int query_head = head * (shape->n_heads / shape->n_kv_heads) + g;
            read_query(*prompt, first + i, query_head, q);
            float* const lse = prompt->lse == nullptr ? nullptr
                                                      : prompt->lse + (first + i) * prompt->lse_token_stride +
                                                            query_head * prompt->lse_head_stride;
            attend(of_scores, q, rows[KVANT_KEY], rows[KVANT_VALUE], prompt->correction, prompt->sink_logits,
                   first + i, query_head, out.data(), lse);
            write_output(*prompt, first + i, query_head, out);
          }
        }
      }
    }
    return KVANT_OK;
  }

  // Of one sequence: all that the engine asks for.
  static kvant_status dequantize(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                                 const kvant_decode_layer* layer, const kvant_dequantization* to,
                                 kvant_stream) {
    const int d = shape->head_dim;
    if (to->n_seqs != 1 || to->seqs != nullptr) return KVANT_UNSUPPORTED;
    const int n_sealed = lengths->sealed_pages == nullptr ? 0 : *lengths->sealed_pages;
    const int n_tail = lengths->tail_tokens == nullptr ? 0 : *lengths->tail_tokens;
    const int first = to->first_page * kPageTokens, n_tokens = n_sealed * kPageTokens + n_tail;
    for (int head = 0; head < to->n_heads; ++head) {
      for (int side = 0; side < 2; ++side) {
        auto* out = static_cast<std::uint16_t*>(side == KVANT_KEY ? to->keys : to->values);
        if (out == nullptr) continue;
        const std::vector<float> rows =
            sealed_rows(*shape, *layer, 0, head, side, n_sealed, /*in_place=*/true);
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

  // The scores that a query's head gives the rows that it sees.
  static std::vector<double> scores_of(const kvant_decode_shape& shape, const kvant_token_weights& w,
                                       int query, int query_head) {
    const int d = shape.head_dim;
    std::vector<float> q(d), k(d);
    read_numbers(w.q, w.q_type, query * w.q_token_stride + query_head * w.q_head_stride, q);
    std::vector<double> scores(std::clamp(w.n_visible + query, 0, w.n_tokens));
    for (std::size_t t = 0; t < scores.size(); ++t) {
      read_numbers(
          w.keys, KVANT_BF16,
          static_cast<std::int64_t>(t) * w.key_token_stride + query_head / shape.group * w.key_head_stride,
          k);
      for (int c = 0; c < d; ++c) scores[t] += double{q[c]} * k[c];
      scores[t] *= shape.softmax_scale;
      if (shape.score_softcap > 0)
        scores[t] = shape.score_softcap * std::tanh(scores[t] / shape.score_softcap);
    }
    return scores;
  }
  static kvant_status weigh_tokens(const kvant_decode_shape* shape, const kvant_token_weights* w,
                                   kvant_stream) {
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

  static kvant_status protect(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                              const kvant_protected_rows* rows, kvant_stream) {
    const std::size_t row_bytes = std::size_t{2} * shape->head_dim;
    for (int i = 0; i < rows->n_rows; ++i) {
      for (int side = 0; side < 2; ++side) {
        const auto at = [&](const kvant_pages& pages, int token) {
          return address(pages, rows->seq[i], layer->layer, rows->head[i], side, token / kPageTokens) +
                 token % kPageTokens * row_bytes;
        };
        std::memcpy(at(layer->protected_pages, rows->protected_token[i]),
                    at(layer->tail, rows->tail_token[i]), row_bytes);
      }
    }
    return KVANT_OK;
  }
};

class HostPages : public PageDevice {
 public:
  // limit: bytes that can be had; 0: any number.
  explicit HostPages(std::size_t limit = 0) : limit_(limit) {}

  const std::string& name() const override { return name_; }
  const PageLibrary& library() const override { return library_; }
  kvant_stream stream() const override { return nullptr; }
  void enter() const override {}
  // As a GPU's, all memory lies in one range of addresses.
  void* allocate(std::size_t bytes) override {
    if (limit_ > 0 && taken_ + bytes > limit_) return nullptr;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    taken_ += bytes;
    sizes_[memory] = bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    if (memory == nullptr) return;
    munmap(memory, sizes_[memory]);
    taken_ -= sizes_[memory];
    sizes_.erase(memory);
  }
  std::int64_t free_bytes() const override {
    return static_cast<std::int64_t>(limit_ > 0 ? limit_ - taken_ : std::size_t{1} << 40);
  }
  void upload(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                 std::size_t row_bytes, std::size_t n_rows) override {
    for (std::size_t i = 0; i < n_rows; ++i)
      std::memcpy(static_cast<char*>(to) + i * to_stride, static_cast<const char*>(from) + i * from_stride,
                  row_bytes);
  }
  void clear_rows(void* rows, std::size_t stride, std::size_t row_bytes, std::size_t n_rows) override {
    for (std::size_t i = 0; i < n_rows; ++i) std::memset(static_cast<char*>(rows) + i * stride, 0, row_bytes);
  }
  // Pages are canonical, here.
  void page_to_host(const std::string& format, Side /*side*/, int d, const std::byte* page,
                    std::byte* canonical) const override {
    std::memcpy(canonical, page, find_format(format)->page_bytes(d));
  }
  void page_from_host(const std::string& format, Side /*side*/, int d, const std::byte* canonical,
                      std::byte* page) const override {
    std::memcpy(page, canonical, find_format(format)->page_bytes(d));
  }
  Status finish() override { return std::exchange(failure_, {}); }

  // For tests of failures: functions that fail in place of the library's, and what finish() says next.
  PageLibrary& functions() { return library_; }
  void fail(Error failure) { failure_ = std::move(failure); }

 private:
  std::string name_ = "the host";
  PageLibrary library_ = HostLibrary::functions();
  Status failure_;
  std::size_t limit_, taken_ = 0;
  std::map<void*, std::size_t> sizes_;
};

}  // namespace kvant::testing
