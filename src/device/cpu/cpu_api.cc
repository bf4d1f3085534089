// Implements the calls of the CPU library. Every call checks its arguments here, and no exception leaves a
// call.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cache/step_parts.h"
#include "device/caller_structs.h"
#include "device/cpu/calls.h"
#include "device/cpu/rows.h"
#include "device/support.h"
#include "format/format.h"
#include "kvant/kvant.h"

namespace kvant::device::cpu {
namespace {

constexpr int kLeastHeadDim = 16;
constexpr int kMostTokens = 1 << 30;  // Tokens of a sequence; a token's number then fits into an int32.
constexpr std::size_t kWorkspaceBytes = 256;  // The CPU needs no workspace, but callers may allocate one.
constexpr Reason kNoHeadDim = "head_dim must be a multiple of 16 from 16 to 512";
constexpr Reason kNoKernels =
    "shape.kernels must be null, \"reference\" or a set of instructions that this processor and this build "
    "have";
constexpr Reason kNoFormat = "no format of this name has pages of keys or values at this head size";

thread_local Reason last_reason = "";

kvant_status refuse(kvant_status status, Reason reason) {
  last_reason = reason;
  return status;
}

// Returns why a structure cannot be read, or null if it can.
template <class T>
Reason fault_of_struct(const T* from) {
  static_assert(kNoStruct<T> != nullptr);
  return from == nullptr || from->struct_size < sizeof(T) ? kNoStruct<T> : nullptr;
}

// Runs a call whose arguments have no fault.
template <class Call>
kvant_status run(Reason fault, const Call& call) {
  if (fault != nullptr) return refuse(KVANT_INVALID_ARGUMENT, fault);
  try {
    call();
    return KVANT_OK;
  } catch (...) {
    return refuse(KVANT_OUT_OF_MEMORY, "there is not enough memory for this call");
  }
}

constexpr bool is_head_dim(int d) {
  return d >= kLeastHeadDim && d <= kMostChannels && d % 16 == 0;
}

const Format* readable_format(const char* name, int d) {
  if (name == nullptr || !is_head_dim(d)) return nullptr;
  const Format* format = find_format(name);
  if (format == nullptr || format->page_bytes(d) == 0 || d < format->least_head_dim()) return nullptr;
  // A layer gives codebooks to the library, but no other constants of a model.
  return format->needed_constants().empty() || format->codebook_shape() ? format : nullptr;
}

bool is_sealable(const Format* format) {
  return format != nullptr && !format->plain() &&
         !(format->codebook_shape() && format->codebook_shape()->per_sub_space);
}

bool is_rotatable(int d) {
  return (d & (d - 1)) == 0;
}
constexpr Reason kNotRotatable = "a Walsh-Hadamard matrix needs a head_dim that is a power of two";

Reason fault_of_heads(const kvant_decode_shape* shape) {
  if (const Reason reason = fault_of_struct(shape)) return reason;
  return first_failing(
      {{shape->n_seqs > 0, "shape.n_seqs must be at least 1"},
       {shape->n_kv_heads > 0, "shape.n_kv_heads must be at least 1"},
       {shape->group > 0, "shape.group must be at least 1"},
       {shape->score_softcap >= 0, "shape.score_softcap must not be negative"},
       {shape->max_queries >= 0 && shape->max_queries <= kMostQueries, "shape.max_queries must be 0 to 8"},
       {is_head_dim(shape->head_dim), kNoHeadDim},
       {knows_kernels(shape->kernels), kNoKernels}});
}

Reason fault_of_formats(const kvant_decode_shape& shape, bool seals) {
  for (int head = 0; head < shape.n_kv_heads; ++head) {
    for (int side = 0; side < 2; ++side) {
      const Format* format = readable_format(format_name(shape, head, side), shape.head_dim);
      if (format == nullptr) return kNoFormat;
      if (seals && !is_sealable(format)) return "kvant_can_seal: pages of this format can't be encoded";
    }
  }
  return nullptr;
}

bool are_pages(const kvant_pages& pages) {
  return pages.table != nullptr && pages.pool != nullptr && pages.page_stride % 16 == 0 &&
         pages.layer_offset % 16 == 0 && pages.head_offset % 16 == 0 && pages.side_offset % 16 == 0 &&
         is_aligned(pages.pool, 16);
}

Reason fault_of_sealed(const kvant_decode_shape& shape, const kvant_decode_layer& layer, bool seals) {
  if (const Reason reason = fault_of_formats(shape, seals)) return reason;
  if (!are_pages(layer.sealed))
    return "layer.sealed: table or pool is null, or an address is not a multiple of 16";
  if (layer.sink < 0 || layer.sink > kPageTokens) return "layer.sink must be 0 to 128";
  for (int head = 0; head < shape.n_kv_heads; ++head) {
    for (int side = 0; side < 2; ++side) {
      if (layer.sealed_offsets != nullptr &&
          (layer.sealed_offsets[2 * head + side] < 0 || layer.sealed_offsets[2 * head + side] % 16 != 0))
        return "layer.sealed_offsets must be multiples of 16 from 0 on";
      if (readable_format(format_name(shape, head, side), shape.head_dim)->codebook_shape() &&
          (side == KVANT_KEY ? layer.key_codebooks : layer.value_codebooks) == nullptr)
        return "layer: key_codebooks or value_codebooks is null, and the format has codebooks";
    }
  }
  return nullptr;
}

constexpr Reason kNoTail = "layer.tail: table or pool is null, or an address is not a multiple of 16";
constexpr Reason kNoProtected =
    "layer.protected_pages: table or pool is null, or an address is not a multiple of 16";

// Returns whether rows may have this number of channels. 0 stands for all.
bool is_channel_count(int channels, int d) {
  return channels >= 0 && channels <= d && channels % 8 == 0;
}

Reason fault_of_stored(const kvant_new_rows& rows, int d) {
  return first_failing(
      {{rows.n_rows >= 0, "rows.n_rows must not be negative"},
       {rows.n_rows == 0 || (rows.keys != nullptr && rows.values != nullptr), "rows: keys or values is null"},
       {is_number_type(rows.type), "rows.type must be KVANT_BF16, KVANT_F32 or KVANT_F16"},
       {rows.rows_reserved == 0, "rows.rows_reserved must be 0"},
       {is_channel_count(rows.key_channels, d) && is_channel_count(rows.value_channels, d),
        "rows: key_channels and value_channels must be multiples of 8 up to head_dim"},
       {is_rotatable(d) || (rows.key_hadamard == 0 && rows.value_hadamard == 0), kNotRotatable}});
}

Reason fault_of_queries(const kvant_new_rows& rows, int d) {
  return rows.queries == nullptr || rows.key_hadamard == 0 || rows.key_channels == 0 || rows.key_channels == d
             ? nullptr
             : "rows: queries of less than head_dim channels can't be rotated";
}

Reason fault_of_correction(const kvant_correction* correction, bool reads_queries) {
  if (correction == nullptr) return nullptr;
  if (const Reason reason = fault_of_struct(correction)) return reason;
  return first_failing(
      {{correction->states != nullptr, "correction: states is null"},
       {!reads_queries || correction->query_maps != nullptr, "correction: query_maps is null"},
       {correction->reserved == 0, "correction: reserved must be 0"}});
}

Reason fault_of_append(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                       const kvant_new_rows* rows) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  if (const Reason reason = fault_of_struct(layer)) return reason;
  if (const Reason reason = fault_of_struct(rows)) return reason;
  if (const Reason reason = fault_of_stored(*rows, shape->head_dim)) return reason;
  if (rows->n_rows == 0) return nullptr;
  if (const Reason reason = fault_of_queries(*rows, shape->head_dim)) return reason;
  return first_failing(
      {{rows->seq != nullptr && rows->tail_token != nullptr, "rows: seq or tail_token is null"},
       {are_pages(layer->tail), kNoTail}});
}

Reason fault_of_last(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                     const kvant_decode_layer& layer) {
  const kvant_new_rows* rows = layer.new_rows;
  if (rows == nullptr) return nullptr;
  if (const Reason reason = fault_of_struct(rows)) return reason;
  if (const Reason reason = fault_of_stored(*rows, shape.head_dim)) return reason;
  const int end = query_rows(shape, lengths, shape.n_seqs - 1).second;
  if (const Reason reason = fault_of_queries(*rows, shape.head_dim)) return reason;
  return first_failing(
      {{lengths.tail_tokens != nullptr, "lengths.tail_tokens is null, and layer.new_rows go into the tail"},
       {lengths.query_begins != nullptr ? rows->n_rows >= end : rows->n_rows == end,
        "layer.new_rows: n_rows must be that of the queries"},
       {rows->queries == nullptr || rows->type == layer.q_type,
        "layer.new_rows: queries must be of layer.q_type"}});
}

Reason fault_of_decode(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                       const kvant_decode_layer* layer) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  if (const Reason reason = fault_of_struct(lengths)) return reason;
  if (const Reason reason = fault_of_struct(layer)) return reason;
  if (lengths->sealed_pages != nullptr)
    if (const Reason reason = fault_of_sealed(*shape, *layer, false)) return reason;
  if (const Reason reason = fault_of_correction(layer->correction, true)) return reason;
  if (const Reason reason = fault_of_last(*shape, *lengths, *layer)) return reason;
  const int d = shape->head_dim;
  return first_failing(
      {{lengths->tail_tokens == nullptr || are_pages(layer->tail), kNoTail},
       {lengths->protected_tokens == nullptr || are_pages(layer->protected_pages), kNoProtected},
       {layer->q != nullptr && layer->out != nullptr, "layer: q or out is null"},
       {is_number_type(layer->q_type) && is_number_type(layer->out_type),
        "layer: q_type and out_type must be KVANT_BF16, KVANT_F32 or KVANT_F16"},
       {is_channel_count(layer->q_channels, d) && is_channel_count(layer->out_channels, d),
        "layer: q_channels and out_channels must be multiples of 8 up to head_dim"},
       {layer->out_hadamard == 0 || is_rotatable(d), kNotRotatable}});
}

Reason fault_of_seal(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                     const kvant_seal_range* range) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  if (const Reason reason = fault_of_struct(layer)) return reason;
  if (const Reason reason = fault_of_struct(range)) return reason;
  if (const Reason reason = fault_of_sealed(*shape, *layer, true)) return reason;
  if (const Reason reason = fault_of_correction(layer->correction, false)) return reason;
  const bool one_layer = range->n_layers == 0 || range->n_layers == 1;
  if (const Reason reason = first_failing(
          {{range->sealed_page != nullptr, "range.sealed_page is null"},
           {range->max_pages > 0, "range.max_pages must be at least 1"},
           {range->reserved == 0, "range.reserved must be 0"},
           {range->n_layers >= 0, "range.n_layers must not be negative"},
           {range->tail_page != nullptr || range->rows != nullptr,
            "range.tail_page is null, and there are no rows"},
           {range->tail_page == nullptr || are_pages(layer->tail), kNoTail},
           {range->keep_sink == 0 || layer->sink == 0 || are_pages(layer->protected_pages), kNoProtected},
           {one_layer || (layer->masks == nullptr && layer->key_codebooks == nullptr &&
                          layer->value_codebooks == nullptr && layer->key_metrics == nullptr &&
                          layer->correction == nullptr),
            "range.n_layers: masks, codebooks, key_metrics and a correction are for one layer"}}))
    return reason;
  if (range->page_metrics != nullptr) {
    if (const Reason reason = fault_of_struct(range->page_metrics)) return reason;
    if (range->page_metrics->directions == nullptr || range->page_metrics->turns == nullptr)
      return "range.page_metrics: directions or turns is null";
  }
  if (range->rows == nullptr) return nullptr;
  if (const Reason reason = fault_of_struct(range->rows)) return reason;
  if (const Reason reason = fault_of_stored(*range->rows, shape->head_dim)) return reason;
  return first_failing({{range->first_rows != nullptr, "range.first_rows is null, and there are rows"},
                        {one_layer, "range.rows are for one layer"},
                        {layer->correction == nullptr, "range.rows are for layers without a correction"}});
}

Reason fault_of_layers(int n_layers, const kvant_decode_shape* const* shapes,
                       const kvant_decode_layer* const* layers, const kvant_seal_range* range) {
  if (n_layers <= 0) return "n_layers must be at least 1";
  if (shapes == nullptr || layers == nullptr) return "shapes or layers is null";
  if (const Reason reason = fault_of_struct(range)) return reason;
  if (const Reason reason = first_failing(
          {{range->n_layers >= 0 && range->n_layers <= 1 && range->layer_offsets == nullptr,
            "range: n_layers must be 0 and layer_offsets null, because `layers` lists the layers"},
           {range->rows == nullptr, "range.rows must be null; kvant_seal_pages takes rows"}}))
    return reason;
  for (int i = 0; i < n_layers; ++i) {
    if (const Reason reason = fault_of_seal(shapes[i], layers[i], range)) return reason;
    const kvant_decode_shape &shape = *shapes[i], &first = *shapes[0];
    if (const Reason reason =
            first_failing({{shape.n_seqs == first.n_seqs && shape.n_kv_heads == first.n_kv_heads &&
                                shape.head_dim == first.head_dim,
                            "shapes: n_seqs, n_kv_heads and head_dim must be equal for all layers"},
                           {layers[i]->masks == nullptr && layers[i]->correction == nullptr,
                            "layers: masks and correction must be null; kvant_seal_pages takes them"}}))
      return reason;
  }
  return nullptr;
}

Reason fault_of_dequantization(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                               const kvant_decode_layer* layer, const kvant_dequantization* to) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  if (const Reason reason = fault_of_struct(lengths)) return reason;
  if (const Reason reason = fault_of_struct(layer)) return reason;
  if (const Reason reason = fault_of_struct(to)) return reason;
  if (lengths->sealed_pages != nullptr) {
    if (const Reason reason = fault_of_sealed(*shape, *layer, false)) return reason;
    if ((layer->sink > 0 || layer->masks != nullptr) && !are_pages(layer->protected_pages))
      return kNoProtected;
  }
  return first_failing(
      {{lengths->tail_tokens == nullptr || are_pages(layer->tail), kNoTail},
       {to->n_seqs > 0 && to->n_seqs <= 32767, "dequantization.n_seqs must be 1 to 32767"},
       {to->first_page >= 0 && to->n_pages >= 0,
        "dequantization: first_page and n_pages must not be negative"},
       {to->first_head >= 0 && to->n_heads > 0 && to->first_head + to->n_heads <= shape->n_kv_heads,
        "dequantization: first_head and n_heads must be of shape.n_kv_heads"},
       {to->type == KVANT_BF16 || to->type == KVANT_F16,
        "dequantization.type must be KVANT_BF16 or KVANT_F16"},
       {is_channel_count(to->channels, shape->head_dim),
        "dequantization.channels must be a multiple of 8 up to head_dim"},
       {is_rotatable(shape->head_dim) || (to->key_hadamard == 0 && to->value_hadamard == 0), kNotRotatable}});
}

Reason fault_of_partial(const kvant_partial* partial) {
  if (const Reason reason = fault_of_struct(partial)) return reason;
  return first_failing(
      {{partial->out != nullptr && partial->lse != nullptr, "partial: out or lse is null"},
       {is_number_type(partial->out_type), "partial.out_type must be KVANT_BF16, KVANT_F32 or KVANT_F16"}});
}

Reason fault_of_transformation(const kvant_transformation* t) {
  if (const Reason reason = fault_of_struct(t)) return reason;
  return first_failing(
      {{t->n_rows > 0 && t->n_heads > 0, "transformation: n_rows and n_heads must be at least 1"},
       {is_head_dim(t->head_dim), kNoHeadDim},
       {t->rows != nullptr, "transformation.rows is null"},
       {is_number_type(t->type), "transformation.type must be KVANT_BF16, KVANT_F32 or KVANT_F16"},
       {t->heads_of_factors >= 0, "transformation.heads_of_factors must not be negative"},
       {is_channel_count(t->source_channels, t->head_dim) && is_channel_count(t->row_channels, t->head_dim),
        "transformation: source_channels and row_channels must be multiples of 8 up to head_dim"},
       {t->reserved == 0, "transformation.reserved must be 0"},
       {t->hadamard == 0 || is_rotatable(t->head_dim), kNotRotatable}});
}

Reason fault_of_prompts(const kvant_prompt_shape* shape) {
  if (const Reason reason = fault_of_struct(shape)) return reason;
  return first_failing(
      {{shape->n_seqs > 0, "shape.n_seqs must be at least 1"},
       {shape->n_kv_heads > 0 && shape->n_heads > 0 && shape->n_heads % shape->n_kv_heads == 0,
        "shape.n_heads must be a multiple of n_kv_heads"},
       {is_head_dim(shape->head_dim), kNoHeadDim},
       {shape->n_queries > 0 && shape->n_tokens >= 0 && shape->n_sealed_pages >= 0,
        "shape: n_queries must be at least 1, and n_tokens and n_sealed_pages not negative"},
       {shape->softmax_scale > 0, "shape.softmax_scale must be greater than 0"},
       {knows_kernels(shape->kernels), kNoKernels},
       {shape->window >= 0 && (shape->window == 0 || shape->causal != 0),
        "shape.window must not be negative, and needs causal"},
       {shape->score_softcap >= 0, "shape.score_softcap must not be negative"}});
}

Reason fault_of_prompt_pages(const kvant_prompt_shape& shape, const kvant_prompt& prompt) {
  const kvant_prompt_pages* pages = prompt.pages;
  if (const Reason reason = fault_of_struct(pages)) return reason;
  if (const Reason reason = fault_of_heads(pages->shape)) return reason;
  if (const Reason reason = fault_of_struct(pages->layer)) return reason;
  if (pages->sealed_begins != nullptr && shape.n_sealed_pages > 0) {
    if (const Reason reason = fault_of_sealed(*pages->shape, *pages->layer, false)) return reason;
    if ((pages->layer->sink > 0 || pages->layer->masks != nullptr) &&
        !are_pages(pages->layer->protected_pages))
      return kNoProtected;
  }
  return first_failing(
      {{pages->shape->n_kv_heads == shape.n_kv_heads && pages->shape->head_dim == shape.head_dim,
        "prompt.pages.shape: n_kv_heads and head_dim must be those of the prompt"},
       {prompt.k != nullptr || shape.n_tokens == 0 || are_pages(pages->layer->tail), kNoTail}});
}

Reason fault_of_prompt(const kvant_prompt_shape* shape, const kvant_prompt* prompt) {
  if (const Reason reason = fault_of_prompts(shape)) return reason;
  if (const Reason reason = fault_of_struct(prompt)) return reason;
  if (const Reason reason = fault_of_correction(prompt->correction, true)) return reason;
  if (const Reason reason = first_failing(
          {{prompt->query_begins != nullptr && prompt->token_begins != nullptr,
            "prompt: query_begins or token_begins is null"},
           {prompt->q != nullptr && prompt->out != nullptr, "prompt: q or out is null"},
           {(prompt->k == nullptr) == (prompt->v == nullptr) &&
                (prompt->k != nullptr || prompt->pages != nullptr),
            "prompt: k and v must both be there, or pages in their place"},
           {is_number_type(prompt->q_type) && is_number_type(prompt->out_type),
            "prompt: q_type and out_type must be KVANT_BF16, KVANT_F32 or KVANT_F16"},
           {prompt->correction == nullptr || shape->corrected != 0,
            "prompt.correction is there, but shape.corrected is 0"},
           {is_rotatable(shape->head_dim) || (prompt->q_hadamard == 0 && prompt->out_hadamard == 0),
            kNotRotatable}}))
    return reason;
  return prompt->pages == nullptr ? nullptr : fault_of_prompt_pages(*shape, *prompt);
}

Reason fault_of_weights(const kvant_decode_shape* shape, const kvant_token_weights* w) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  if (const Reason reason = fault_of_struct(w)) return reason;
  return first_failing(
      {{w->n_queries > 0 && w->n_tokens > 0, "weights: n_queries and n_tokens must be at least 1"},
       {w->q != nullptr && w->keys != nullptr && w->weights != nullptr,
        "weights: q, keys or weights is null"},
       {w->lse != nullptr || w->found_lse != nullptr, "weights: lse and found_lse are null"},
       {is_number_type(w->q_type), "weights.q_type must be KVANT_BF16, KVANT_F32 or KVANT_F16"}});
}

Reason fault_of_protected(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                          const kvant_protected_rows* rows) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  if (const Reason reason = fault_of_struct(layer)) return reason;
  if (const Reason reason = fault_of_struct(rows)) return reason;
  return first_failing({{rows->n_rows > 0, "rows.n_rows must be at least 1"},
                        {rows->reserved == 0, "rows.reserved must be 0"},
                        {rows->seq != nullptr && rows->head != nullptr && rows->tail_token != nullptr &&
                             rows->protected_token != nullptr,
                         "rows: seq, head, tail_token or protected_token is null"},
                        {are_pages(layer->tail), kNoTail},
                        {are_pages(layer->protected_pages), kNoProtected}});
}

Reason fault_of_table(const kvant_step_table* table, int least_of_row, int least_of_ring) {
  if (table == nullptr) return nullptr;
  if (const Reason reason = fault_of_struct(table)) return reason;
  return first_failing(
      {{table->blocks != nullptr && table->table != nullptr, "step table: blocks or table is null"},
       {table->ring > 0 || table->places == nullptr, "step table: places must be null without a ring"},
       {table->ring >= 0 && table->n_entries > 0 && table->units > 0 && table->n_pages > 0,
        "step table: n_entries, units and n_pages must be at least 1, and ring not negative"},
       {table->pages_of_block >= 0 &&
            (table->pages_of_block <= 1 || (table->places == nullptr && table->page_units > 0)),
        "step table: pages_of_block must not be negative, and more than 1 want page_units and no places"},
       {table->n_pages >= least_of_row && (table->ring == 0 || table->ring >= least_of_ring),
        "step table: n_pages or ring holds less than the windows need"}});
}

Reason fault_of_step(const kvant_step* step) {
  if (const Reason reason = fault_of_struct(step)) return reason;
  const int max_queries = std::max(step->max_queries, 1);
  if (const Reason reason = first_failing(
          {{step->n_requests > 0, "step.n_requests must be at least 1"},
           {step->max_new_tokens > 0 && step->max_new_tokens <= kMaxNewTokens,
            "step.max_new_tokens must be 1 to 128"},
           {step->max_queries >= 0 && step->max_queries <= kMostQueries, "step.max_queries must be 0 to 8"},
           {step->n_seqs == std::int64_t{step->n_requests} * parts_of(step->max_new_tokens, max_queries),
            "step.n_seqs must be n_requests, times 1 + max_new_tokens / max_queries (rounded up) where "
            "max_new_tokens is more than 1"},
           {step->n_rows > 0 && step->n_rows <= std::int64_t{step->n_requests} * step->max_new_tokens,
            "step.n_rows must be 1 to n_requests * max_new_tokens"},
           {step->query_begins != nullptr || step->n_rows == step->n_requests * step->max_new_tokens,
            "step.n_rows must be n_requests * max_new_tokens where query_begins is null"},
           {step->window >= 0 && step->window < kMostTokens, "step.window must be 0 to 2^30 - 1"},
           {step->sliding_window >= 0 && step->sliding_window < kMostTokens,
            "step.sliding_window must be 0 to 2^30 - 1"},
           {step->sink >= 0 && step->sink <= kPageTokens, "step.sink must be 0 to 128"},
           {step->sink == 0 || step->sliding_window == 0, "step.sink must be 0 with a sliding_window"},
           {step->seq_lens != nullptr, "step.seq_lens is null"},
           {step->first_tokens != nullptr || step->sliding_window == 0,
            "step.first_tokens is null, but there is a sliding_window"},
           {(step->row_seq == nullptr) == (step->row_tail_token == nullptr),
            "step: row_seq and row_tail_token must both be wanted, or neither"},
           {(step->due_tail_page == nullptr) == (step->due_sealed_page == nullptr),
            "step: due_tail_page and due_sealed_page must both be wanted, or neither"}}))
    return reason;
  const int reached = std::max(pages_for(step->sliding_window), 1);
  if (const Reason reason = fault_of_table(step->sealed, reached, reached)) return reason;
  if (const Reason reason = fault_of_table(step->tail, pages_for(step->window + kPageTokens),
                                           tail_pages_of(step->max_new_tokens, step->window)))
    return reason;
  return fault_of_table(step->protected_pages, 1, 1);
}

}  // namespace
}  // namespace kvant::device::cpu

using namespace kvant;
using namespace kvant::device;
using namespace kvant::device::cpu;

extern "C" {

int kvant_version(void) {
  return KVANT_VERSION;
}

kvant_status kvant_check_version(int version) {
  const Reason reason = fault_of_version(version);
  return reason == nullptr ? KVANT_OK : refuse(KVANT_UNSUPPORTED, reason);
}

const char* kvant_status_text(kvant_status status) {
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

const char* kvant_last_error(void) {
  return last_reason;
}

kvant_status kvant_check_device(void) {
  return KVANT_OK;
}

size_t kvant_page_bytes(const char* name, int d) {
  const Format* format = readable_format(name, d);
  return format == nullptr ? 0 : (format->page_bytes(d) + 15) / 16 * 16;
}

int kvant_can_seal(const char* name) {
  return name != nullptr && is_sealable(find_format(name)) ? 1 : 0;
}

int kvant_can_seal_rows(const char* name) {
  return kvant_can_seal(name);
}

const char* kvant_decode_kernel(const kvant_decode_shape* shape) {
  Reason fault = fault_of_heads(shape);
  if (fault == nullptr) fault = fault_of_formats(*shape, false);
  const char* name = nullptr;
  const kvant_status status = run(fault, [&] { name = kernel_name(*shape); });
  return status == KVANT_OK ? name : nullptr;
}

kvant_status kvant_supports(const kvant_plan* plan, kvant_limits* limits) {
  Reason fault = fault_of_struct(plan);
  if (fault == nullptr) fault = fault_of_plan(*plan);
  if (fault == nullptr) fault = fault_of_struct(plan->shape);
  if (fault == nullptr && limits != nullptr) fault = fault_of_struct(limits);
  if (fault != nullptr) return refuse(KVANT_INVALID_ARGUMENT, fault);
  const kvant_decode_shape& shape = *plan->shape;
  Reason of_shape = fault_of_heads(&shape);
  if (of_shape == nullptr) of_shape = fault_of_formats(shape, false);
  constexpr int kAnyNumber = 1 << 20;
  kvant_limits most{sizeof most, kAnyNumber, kAnyNumber, kMostQueries, kAnyNumber, 0, 0};
  const Reason reason = judge_plan(
      *plan, shape, of_shape,
      [&](kvant_feature feature) -> Reason {
        if (feature == KVANT_EVICTION) return kNoEviction;
        const bool seals = feature == KVANT_SEALING || feature == KVANT_SEALED_ROWS;
        return seals ? fault_of_formats(shape, true) : nullptr;
      },
      most);
  if (limits != nullptr) *limits = most;
  return reason == nullptr ? KVANT_OK : refuse(KVANT_UNSUPPORTED, reason);
}

kvant_status kvant_decode_workspace(const kvant_decode_shape* shape, size_t* bytes) {
  const Reason fault = bytes == nullptr ? "kvant_decode_workspace: bytes is null" : fault_of_heads(shape);
  return run(fault, [&] { *bytes = kWorkspaceBytes; });
}

kvant_status kvant_decode_schedule(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                                   void*, size_t, kvant_stream) {
  const Reason fault = fault_of_heads(shape);
  return run(fault != nullptr ? fault : fault_of_struct(lengths), [] {});
}

kvant_status kvant_decode_attention(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                                    const kvant_decode_layer* layer, void*, size_t, kvant_stream) {
  return run(fault_of_decode(shape, lengths, layer), [&] { decode_attention(*shape, *lengths, *layer); });
}

kvant_status kvant_append(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                          const kvant_new_rows* rows, kvant_stream) {
  return run(fault_of_append(shape, layer, rows), [&] { append(*shape, *layer, *rows); });
}

kvant_status kvant_seal(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                        const int32_t* tail_page, const int32_t* sealed_page, kvant_stream stream) {
  kvant_seal_range range{};
  range.struct_size = sizeof range;
  range.tail_page = tail_page;
  range.sealed_page = sealed_page;
  range.max_pages = 1;
  return kvant_seal_pages(shape, layer, &range, stream);
}

kvant_status kvant_seal_pages(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                              const kvant_seal_range* range, kvant_stream) {
  return run(fault_of_seal(shape, layer, range), [&] { seal_pages(*shape, *layer, *range); });
}

kvant_status kvant_seal_layers(int32_t n_layers, const kvant_decode_shape* const* shapes,
                               const kvant_decode_layer* const* layers, const kvant_seal_range* range,
                               kvant_stream) {
  return run(fault_of_layers(n_layers, shapes, layers, range),
             [&] { seal_layers(n_layers, shapes, layers, *range); });
}

kvant_status kvant_plan_step(const kvant_step* step, kvant_stream) {
  return run(fault_of_step(step), [&] { plan_step(*step); });
}

kvant_status kvant_dequantize(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                              const kvant_decode_layer* layer, const kvant_dequantization* to, kvant_stream) {
  return run(fault_of_dequantization(shape, lengths, layer, to),
             [&] { dequantize(*shape, *lengths, *layer, *to); });
}

kvant_status kvant_merge(int32_t n_seqs, int32_t n_tokens, int32_t n_heads, int32_t head_dim,
                         const kvant_partial* into, const kvant_partial* other, kvant_stream) {
  Reason fault = n_seqs > 0 && n_tokens > 0 && n_heads > 0
                     ? fault_of_partial(into)
                     : "kvant_merge: n_seqs, n_tokens and n_heads must be at least 1";
  if (fault == nullptr) fault = is_head_dim(head_dim) ? fault_of_partial(other) : kNoHeadDim;
  return run(fault, [&] { merge(n_seqs, n_tokens, n_heads, head_dim, *into, *other); });
}

kvant_status kvant_transform(const kvant_transformation* t, kvant_stream) {
  return run(fault_of_transformation(t), [&] { transform(*t); });
}

kvant_status kvant_prompt_workspace(const kvant_prompt_shape* shape, size_t* bytes) {
  const Reason fault = bytes == nullptr ? "kvant_prompt_workspace: bytes is null" : fault_of_prompts(shape);
  return run(fault, [&] { *bytes = kWorkspaceBytes; });
}

kvant_status kvant_prompt_attention(const kvant_prompt_shape* shape, const kvant_prompt* prompt, void*,
                                    size_t, kvant_stream) {
  return run(fault_of_prompt(shape, prompt), [&] {
    // KVANT_BF16 stands for the 16-bit type of the rows.
    kvant_prompt of_type = *prompt;
    for (kvant_type* type : {&of_type.q_type, &of_type.out_type})
      if (*type == KVANT_BF16 && shape->half != 0) *type = KVANT_F16;
    prompt_attention(*shape, of_type);
  });
}

kvant_status kvant_weigh_tokens(const kvant_decode_shape* shape, const kvant_token_weights* weights,
                                kvant_stream) {
  return run(fault_of_weights(shape, weights), [&] { weigh_tokens(*shape, *weights); });
}

kvant_status kvant_protect(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                           const kvant_protected_rows* rows, kvant_stream) {
  return run(fault_of_protected(shape, layer, rows), [&] { protect(*shape, *layer, *rows); });
}

}  // extern "C"
