// Says what is wrong with the arguments of calls, by the rules of kvant/kvant.h that all devices share. Each
// library adds the limits of its own kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cache/step_parts.h"
#include "device/caller_structs.h"
#include "kvant/kvant.h"

namespace kvant::device {

inline constexpr int kMostQueries = 8;  // queries of a sequence
// Token numbers, and the table entries of one row, then fit into an int32.
inline constexpr int kMostTokens = 1 << 30;

// --- pages, rows and layers ---

// Returns whether the pages exist and have the alignment that bulk copies require.
inline bool has_pages(const kvant_pages& pages) {
  return pages.table != nullptr && pages.pool != nullptr && pages.page_stride % 16 == 0 &&
         pages.layer_offset % 16 == 0 && pages.head_offset % 16 == 0 && pages.side_offset % 16 == 0 &&
         is_aligned(pages.pool, 16);
}

inline constexpr Reason kNoSealedPages =
    "layer.sealed: table or pool is null, or an address is not a multiple of 16";
inline constexpr Reason kNoTailPages =
    "layer.tail: table or pool is null, or an address is not a multiple of 16";
inline constexpr Reason kNoProtectedPages =
    "layer.protected_pages: table or pool is null, or an address is not a multiple of 16";
inline constexpr Reason kBadSink = "layer.sink must be 0 to 128";

constexpr bool is_sink(int n_tokens) {
  return n_tokens >= 0 && n_tokens <= kPageTokens;
}

// Returns whether rows may have this number of channels. 0 stands for all channels.
constexpr bool are_channels(int channels, int head_dim) {
  return channels >= 0 && channels <= head_dim && channels % 8 == 0;
}

inline Reason fault_of_correction(const kvant_correction& correction) {
  return first_failing({{correction.states != nullptr, "correction: states is null"},
                        {correction.reserved == 0, "correction: reserved must be 0"}});
}

// Returns what is wrong with the numbers of rows, wherever they go.
inline Reason fault_of_numbers(const kvant_new_rows& rows, int head_dim) {
  const bool turns_queries = rows.queries != nullptr && rows.key_hadamard != 0;
  return first_failing(
      {{is_number_type(rows.type), "rows.type must be KVANT_BF16, KVANT_F32 or KVANT_F16"},
       {rows.rows_reserved == 0, "rows.rows_reserved must be 0"},
       {are_channels(rows.key_channels, head_dim) && are_channels(rows.value_channels, head_dim),
        "rows: key_channels and value_channels must be multiples of 8 up to head_dim"},
       {!turns_queries || channels_or_all(rows.key_channels, head_dim) == head_dim,
        "rows: queries of less than head_dim channels can't be rotated here; kvant_transform rotates them"}});
}

inline Reason fault_of_placed_rows(const kvant_new_rows& rows, const kvant_pages& tail) {
  return first_failing(
      {{has_pages(tail), kNoTailPages},
       {rows.seq != nullptr && rows.tail_token != nullptr, "rows: seq or tail_token is null"},
       {rows.keys != nullptr && rows.values != nullptr, "rows: keys or values is null"}});
}

// Returns what is wrong with a layer that attends, and with the pages that the lengths name.
inline Reason fault_of_attention(const kvant_decode_layer& layer, const kvant_decode_lengths& lengths,
                                 int head_dim) {
  return first_failing(
      {{layer.q != nullptr && layer.out != nullptr, "layer: q or out is null"},
       {is_number_type(layer.q_type) && is_number_type(layer.out_type),
        "layer: q_type and out_type must be KVANT_BF16, KVANT_F32 or KVANT_F16"},
       {are_channels(layer.q_channels, head_dim) && are_channels(layer.out_channels, head_dim),
        "layer: q_channels and out_channels must be multiples of 8 up to head_dim"},
       {is_sink(layer.sink), kBadSink},
       {lengths.sealed_pages == nullptr || has_pages(layer.sealed), kNoSealedPages},
       {lengths.tail_tokens == nullptr || has_pages(layer.tail), kNoTailPages},
       {lengths.protected_tokens == nullptr || has_pages(layer.protected_pages), kNoProtectedPages}});
}

// --- sealing ---

inline Reason fault_of_range(const kvant_decode_layer& layer, const kvant_seal_range& range) {
  const bool one_layer = range.n_layers <= 1;
  return first_failing(
      {{(range.tail_page != nullptr || range.rows != nullptr) && range.sealed_page != nullptr,
        "range: tail_page or sealed_page is null"},
       {range.tail_page == nullptr || has_pages(layer.tail), kNoTailPages},
       {range.max_pages > 0, "range.max_pages must be at least 1"},
       {range.n_layers >= 0, "range.n_layers must not be negative"},
       {range.reserved == 0, "range.reserved must be 0"},
       {one_layer || (layer.masks == nullptr && layer.correction == nullptr && layer.key_metrics == nullptr &&
                      layer.key_codebooks == nullptr && layer.value_codebooks == nullptr),
        "range.n_layers: masks, codebooks, key_metrics and a correction are for one layer"},
       {range.rows == nullptr || range.first_rows != nullptr, "range.first_rows is null, and there are rows"},
       {range.rows == nullptr || (one_layer && layer.correction == nullptr),
        "range.rows are for one layer, and not with a correction"},
       {range.keep_sink == 0 || layer.sink == 0 || has_pages(layer.protected_pages), kNoProtectedPages},
       {has_pages(layer.sealed), kNoSealedPages},
       {is_sink(layer.sink), kBadSink}});
}

inline Reason fault_of_metrics(const kvant_page_metrics& metrics) {
  return metrics.directions != nullptr && metrics.turns != nullptr
             ? nullptr
             : "page_metrics: directions or turns is null";
}

inline Reason fault_of_layers(int n_layers, const kvant_decode_shape* const* shapes,
                              const kvant_decode_layer* const* layers) {
  return first_failing({{n_layers > 0, "n_layers must be at least 1"},
                        {shapes != nullptr && layers != nullptr, "shapes or layers is null"}});
}

// Returns what is wrong with the range of a call that lists its layers.
inline Reason fault_of_range_of_layers(const kvant_seal_range& range) {
  return first_failing(
      {{range.n_layers >= 0 && range.n_layers <= 1 && range.layer_offsets == nullptr,
        "range: n_layers must be 0 and layer_offsets null, because `layers` lists the layers"},
       {range.rows == nullptr, "range.rows must be null; kvant_seal_pages takes rows"}});
}

// Returns what is wrong with a layer that is sealed together with other layers.
inline Reason fault_of_one_of_several(const kvant_decode_shape& shape, const kvant_decode_shape& first,
                                      const kvant_decode_layer& layer) {
  return first_failing({{shape.n_seqs == first.n_seqs && shape.n_kv_heads == first.n_kv_heads &&
                             shape.head_dim == first.head_dim,
                         "shapes: n_seqs, n_kv_heads and head_dim must be equal for all layers"},
                        {layer.masks == nullptr && layer.correction == nullptr,
                         "layers: masks and correction must be null; kvant_seal_pages takes them"}});
}

// --- rows out of pages, and rows alone ---

inline Reason fault_of_dequantization(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                                      const kvant_decode_layer& layer, const kvant_dequantization& d) {
  const bool reads_protected = lengths.sealed_pages != nullptr && (layer.sink > 0 || layer.masks != nullptr);
  return first_failing(
      {{d.n_seqs > 0 && d.n_seqs <= 32767, "dequantization.n_seqs must be 1 to 32767"},
       {d.first_page >= 0 && d.n_pages >= 0, "dequantization: first_page and n_pages must not be negative"},
       {d.first_head >= 0 && d.n_heads > 0 && d.first_head + d.n_heads <= shape.n_kv_heads,
        "dequantization: first_head and n_heads must be of shape.n_kv_heads"},
       {lengths.sealed_pages == nullptr || has_pages(layer.sealed), kNoSealedPages},
       {lengths.tail_tokens == nullptr || has_pages(layer.tail), kNoTailPages},
       {!reads_protected || has_pages(layer.protected_pages), kNoProtectedPages},
       {is_sink(layer.sink), kBadSink},
       {d.type == KVANT_BF16 || d.type == KVANT_F16, "dequantization.type must be KVANT_BF16 or KVANT_F16"},
       {are_channels(d.channels, shape.head_dim),
        "dequantization.channels must be a multiple of 8 up to head_dim"}});
}

inline Reason fault_of_merge(int n_seqs, int n_tokens, int n_heads) {
  return n_seqs > 0 && n_tokens > 0 && n_heads > 0
             ? nullptr
             : "kvant_merge: n_seqs, n_tokens and n_heads must be at least 1";
}

inline Reason fault_of_partial(const kvant_partial& partial) {
  return first_failing(
      {{partial.out != nullptr && partial.lse != nullptr, "partial: out or lse is null"},
       {is_number_type(partial.out_type), "partial.out_type must be KVANT_BF16, KVANT_F32 or KVANT_F16"}});
}

inline Reason fault_of_transformation(const kvant_transformation& t) {
  return first_failing(
      {{t.n_rows > 0 && t.n_heads > 0, "transformation: n_rows and n_heads must be at least 1"},
       {t.rows != nullptr, "transformation: rows is null"},
       {is_number_type(t.type), "transformation.type must be KVANT_BF16, KVANT_F32 or KVANT_F16"},
       {t.reserved == 0, "transformation.reserved must be 0"},
       {are_channels(t.row_channels, t.head_dim) && are_channels(t.source_channels, t.head_dim),
        "transformation: row_channels and source_channels must be multiples of 8 up to head_dim"},
       {t.heads_of_factors >= 0, "transformation.heads_of_factors must not be negative"}});
}

// --- prompts ---

inline Reason fault_of_prompt_shape(const kvant_prompt_shape& shape) {
  return first_failing({{shape.n_seqs > 0, "shape.n_seqs must be at least 1"},
                        {shape.n_kv_heads > 0 && shape.n_heads > 0 && shape.n_heads % shape.n_kv_heads == 0,
                         "shape.n_heads must be a multiple of n_kv_heads"},
                        {shape.n_queries > 0, "shape.n_queries must be at least 1"},
                        {shape.n_tokens >= 0 && shape.n_sealed_pages >= 0,
                         "shape: n_tokens and n_sealed_pages must not be negative"},
                        {shape.softmax_scale > 0, "shape.softmax_scale must be greater than 0"},
                        {shape.window >= 0 && (shape.window == 0 || shape.causal != 0),
                         "shape.window must not be negative, and needs causal"},
                        {shape.score_softcap >= 0, "shape.score_softcap must not be negative"}});
}

inline Reason fault_of_prompt(const kvant_prompt& prompt, const kvant_prompt_shape& shape) {
  return first_failing(
      {{prompt.query_begins != nullptr && prompt.token_begins != nullptr,
        "prompt: query_begins or token_begins is null"},
       {prompt.q != nullptr && prompt.out != nullptr, "prompt: q or out is null"},
       {is_number_type(prompt.q_type) && is_number_type(prompt.out_type),
        "prompt: q_type and out_type must be KVANT_BF16, KVANT_F32 or KVANT_F16"},
       {prompt.correction == nullptr || shape.corrected != 0,
        "prompt.correction: shape.corrected is 0, and the workspace has no room for it"},
       {(prompt.k == nullptr) == (prompt.v == nullptr) && (prompt.k != nullptr || prompt.pages != nullptr),
        "prompt: k and v must both be there, or pages with a tail in their place"}});
}

// Returns what is wrong with the pages of a prompt, of which the call reads sealed pages or tails.
inline Reason fault_of_prompt_pages(const kvant_prompt_shape& shape, const kvant_decode_shape& of_pages,
                                    const kvant_decode_layer& layer, bool reads_sealed, bool reads_tail) {
  const bool reads_protected = reads_sealed && (layer.sink > 0 || layer.masks != nullptr);
  return first_failing({{of_pages.n_kv_heads == shape.n_kv_heads && of_pages.head_dim == shape.head_dim,
                         "pages.shape: n_kv_heads and head_dim must be those of the prompt"},
                        {!reads_sealed || has_pages(layer.sealed), kNoSealedPages},
                        {!reads_tail || has_pages(layer.tail), kNoTailPages},
                        {!reads_protected || has_pages(layer.protected_pages), kNoProtectedPages},
                        {is_sink(layer.sink), kBadSink}});
}

// --- protected tokens ---

inline Reason fault_of_weights(const kvant_token_weights& w) {
  return first_failing(
      {{w.n_queries > 0 && w.n_tokens > 0, "weights: n_queries and n_tokens must be at least 1"},
       {is_number_type(w.q_type), "weights.q_type must be KVANT_BF16, KVANT_F32 or KVANT_F16"},
       {w.q != nullptr && w.keys != nullptr && w.weights != nullptr, "weights: q, keys or weights is null"},
       {w.lse != nullptr || w.found_lse != nullptr, "weights: both lse and found_lse are null"}});
}

inline Reason fault_of_protected(const kvant_decode_layer& layer, const kvant_protected_rows& rows) {
  return first_failing({{rows.n_rows > 0, "rows.n_rows must be at least 1"},
                        {rows.seq != nullptr && rows.head != nullptr && rows.tail_token != nullptr &&
                             rows.protected_token != nullptr,
                         "rows: seq, head, tail_token or protected_token is null"},
                        {rows.reserved == 0, "rows.reserved must be 0"},
                        {has_pages(layer.tail), kNoTailPages},
                        {has_pages(layer.protected_pages), kNoProtectedPages}});
}

// --- steps ---

inline Reason fault_of_step(const kvant_step& step) {
  const int max_queries = std::max(step.max_queries, 1);
  return first_failing(
      {{step.n_requests > 0, "step.n_requests must be at least 1"},
       {step.max_new_tokens > 0 && step.max_new_tokens <= kMaxNewTokens,
        "step.max_new_tokens must be 1 to 128"},
       {step.max_queries >= 0 && step.max_queries <= kMostQueries, "step.max_queries must be 0 to 8"},
       {step.n_seqs == std::int64_t{step.n_requests} * parts_of(step.max_new_tokens, max_queries),
        "step.n_seqs must be n_requests, times 1 + max_new_tokens / max_queries (rounded up) where "
        "max_new_tokens is more than 1"},
       {step.n_rows > 0 && step.n_rows <= std::int64_t{step.n_requests} * step.max_new_tokens,
        "step.n_rows must be 1 to n_requests * max_new_tokens"},
       {step.query_begins != nullptr || step.n_rows == step.n_requests * step.max_new_tokens,
        "step.n_rows must be n_requests * max_new_tokens where query_begins is null"},
       {step.window >= 0 && step.window < kMostTokens, "step.window must be 0 to 2^30 - 1"},
       {step.sliding_window >= 0 && step.sliding_window < kMostTokens,
        "step.sliding_window must be 0 to 2^30 - 1"},
       {is_sink(step.sink), "step.sink must be 0 to 128"},
       {step.sink == 0 || step.sliding_window == 0, "step.sink must be 0 with a sliding_window"},
       {step.seq_lens != nullptr, "step.seq_lens is null"},
       {step.first_tokens != nullptr || step.sliding_window == 0,
        "step.first_tokens is null, but there is a sliding_window"},
       {(step.row_seq == nullptr) == (step.row_tail_token == nullptr),
        "step: row_seq and row_tail_token must both be wanted, or neither"},
       {(step.due_tail_page == nullptr) == (step.due_sealed_page == nullptr),
        "step: due_tail_page and due_sealed_page must both be wanted, or neither"}});
}

// StepTableRule has the least numbers of pages in a row and in a ring of one of a step's tables, and the
// reasons for refusing the table.
struct StepTableRule {
  int least_of_row, least_of_ring;
  Reason null, places, counts, blocks, width;
};

inline StepTableRule rule_of_sealed(const kvant_step& step) {
  const int reached = std::max(pages_for(step.sliding_window), 1);  // sealed pages in a sliding window
  return {reached,
          reached,
          "step.sealed: blocks or table is null",
          "step.sealed.places must be null without a ring",
          "step.sealed: n_entries, units and n_pages must be at least 1, and ring not negative",
          "step.sealed: pages_of_block must not be negative, and more than 1 want page_units and no places",
          "step.sealed: n_pages, and a ring, must hold what sliding_window reaches"};
}

// All tokens of a part see the same sealed pages. The tail of the part's last token has at most window + 128
// tokens.
inline StepTableRule rule_of_tail(const kvant_step& step) {
  return {pages_for(step.window + kPageTokens),
          tail_pages_of(step.max_new_tokens, step.window),
          "step.tail: blocks or table is null",
          "step.tail.places must be null without a ring",
          "step.tail: n_entries, units and n_pages must be at least 1, and ring not negative",
          "step.tail: pages_of_block must not be negative, and more than 1 want page_units and no places",
          "step.tail: n_pages must hold window + 128 tokens, a ring window + max_new_tokens + 127"};
}

inline StepTableRule rule_of_protected() {
  return {1,
          1,
          "step.protected_pages: blocks or table is null",
          "step.protected_pages.places must be null without a ring",
          "step.protected_pages: n_entries, units and n_pages must be at least 1, and ring not negative",
          "step.protected_pages: pages_of_block must not be negative, and more than 1 want page_units and no "
          "places",
          "step.protected_pages.n_pages must be at least 1"};
}

inline Reason fault_of_table(const kvant_step_table& table, const StepTableRule& rule) {
  return first_failing(
      {{table.blocks != nullptr && table.table != nullptr, rule.null},
       {table.ring > 0 || table.places == nullptr, rule.places},
       {table.ring >= 0 && table.n_entries > 0 && table.units > 0 && table.n_pages > 0, rule.counts},
       {table.pages_of_block >= 0 &&
            (table.pages_of_block <= 1 || (table.places == nullptr && table.page_units > 0)),
        rule.blocks},
       {table.n_pages >= rule.least_of_row && (table.ring == 0 || table.ring >= rule.least_of_ring),
        rule.width}});
}

// --- statuses ---

inline const char* text_of_status(kvant_status status) {
  switch (status) {
    case KVANT_OK:
      return "No error.";
    case KVANT_INVALID_ARGUMENT:
      return "A size, stride, alignment or pointer is out of range; kvant.h says what is allowed.";
    case KVANT_UNSUPPORTED:
      return "There is no kernel for these formats, this head size or this device.";
    case KVANT_WORKSPACE_TOO_SMALL:
      return "The workspace is smaller than the function for its size says.";
    case KVANT_DEVICE_ERROR:
      return "A call of the device's driver failed.";
    case KVANT_OUT_OF_MEMORY:
      return "There is not enough memory.";
  }
  return "Not a status.";
}

}  // namespace kvant::device
