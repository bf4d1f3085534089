// Implements the calls of the CPU library. Every call checks its arguments here, and no exception leaves a
// call.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/caller_faults.h"
#include "device/cpu/calls.h"
#include "device/cpu/rows.h"
#include "device/support.h"
#include "format/format.h"
#include "kvant/kvant.h"

namespace kvant::device::cpu {
namespace {

constexpr int kLeastHeadDim = 16;
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

// Runs a call, unless its arguments have a fault.
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

Reason fault_of_sealed(const kvant_decode_shape& shape, const kvant_decode_layer& layer, bool seals) {
  if (const Reason reason = fault_of_formats(shape, seals)) return reason;
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

Reason fault_of_stored(const kvant_new_rows& rows, int d) {
  if (const Reason reason = fault_of_numbers(rows, d)) return reason;
  return first_failing(
      {{rows.n_rows >= 0, "rows.n_rows must not be negative"},
       {rows.n_rows == 0 || (rows.keys != nullptr && rows.values != nullptr), "rows: keys or values is null"},
       {is_rotatable(d) || (rows.key_hadamard == 0 && rows.value_hadamard == 0), kNotRotatable}});
}

Reason fault_of_correction(const kvant_correction* correction, bool reads_queries) {
  if (correction == nullptr) return nullptr;
  if (const Reason reason = fault_of_struct(correction)) return reason;
  if (reads_queries && correction->query_maps == nullptr) return "correction: query_maps is null";
  return kvant::device::fault_of_correction(*correction);
}

Reason fault_of_append(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                       const kvant_new_rows* rows) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  if (const Reason reason = fault_of_struct(layer)) return reason;
  if (const Reason reason = fault_of_struct(rows)) return reason;
  if (const Reason reason = fault_of_stored(*rows, shape->head_dim)) return reason;
  return rows->n_rows == 0 ? nullptr : fault_of_placed_rows(*rows, layer->tail);
}

Reason fault_of_last(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                     const kvant_decode_layer& layer) {
  const kvant_new_rows* rows = layer.new_rows;
  if (rows == nullptr) return nullptr;
  if (const Reason reason = fault_of_struct(rows)) return reason;
  if (const Reason reason = fault_of_stored(*rows, shape.head_dim)) return reason;
  const int end = query_rows(shape, lengths, shape.n_seqs - 1).second;
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
  if (const Reason reason = fault_of_attention(*layer, *lengths, shape->head_dim)) return reason;
  return layer->out_hadamard == 0 || is_rotatable(shape->head_dim) ? nullptr : kNotRotatable;
}

Reason fault_of_seal(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                     const kvant_seal_range* range) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  if (const Reason reason = fault_of_struct(layer)) return reason;
  if (const Reason reason = fault_of_struct(range)) return reason;
  if (const Reason reason = fault_of_sealed(*shape, *layer, true)) return reason;
  if (const Reason reason = fault_of_correction(layer->correction, false)) return reason;
  if (const Reason reason = fault_of_range(*layer, *range)) return reason;
  if (range->page_metrics != nullptr) {
    if (const Reason reason = fault_of_struct(range->page_metrics)) return reason;
    if (const Reason reason = fault_of_metrics(*range->page_metrics)) return reason;
  }
  if (range->rows == nullptr) return nullptr;
  const Reason reason = fault_of_struct(range->rows);
  return reason != nullptr ? reason : fault_of_stored(*range->rows, shape->head_dim);
}

Reason fault_of_layers(int n_layers, const kvant_decode_shape* const* shapes,
                       const kvant_decode_layer* const* layers, const kvant_seal_range* range) {
  if (const Reason reason = kvant::device::fault_of_layers(n_layers, shapes, layers)) return reason;
  if (const Reason reason = fault_of_struct(range)) return reason;
  if (const Reason reason = fault_of_range_of_layers(*range)) return reason;
  for (int i = 0; i < n_layers; ++i) {
    if (const Reason reason = fault_of_seal(shapes[i], layers[i], range)) return reason;
    if (const Reason reason = fault_of_one_of_several(*shapes[i], *shapes[0], *layers[i])) return reason;
  }
  return nullptr;
}

Reason fault_of_dequantization(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                               const kvant_decode_layer* layer, const kvant_dequantization* to) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  if (const Reason reason = fault_of_struct(lengths)) return reason;
  if (const Reason reason = fault_of_struct(layer)) return reason;
  if (const Reason reason = fault_of_struct(to)) return reason;
  if (lengths->sealed_pages != nullptr)
    if (const Reason reason = fault_of_sealed(*shape, *layer, false)) return reason;
  if (const Reason reason = kvant::device::fault_of_dequantization(*shape, *lengths, *layer, *to))
    return reason;
  return is_rotatable(shape->head_dim) || (to->key_hadamard == 0 && to->value_hadamard == 0) ? nullptr
                                                                                             : kNotRotatable;
}

Reason fault_of_partial(const kvant_partial* partial) {
  const Reason reason = fault_of_struct(partial);
  return reason != nullptr ? reason : kvant::device::fault_of_partial(*partial);
}

Reason fault_of_transformation(const kvant_transformation* t) {
  if (const Reason reason = fault_of_struct(t)) return reason;
  if (const Reason reason = kvant::device::fault_of_transformation(*t)) return reason;
  return first_failing({{is_head_dim(t->head_dim), kNoHeadDim},
                        {t->hadamard == 0 || is_rotatable(t->head_dim), kNotRotatable}});
}

Reason fault_of_prompts(const kvant_prompt_shape* shape) {
  if (const Reason reason = fault_of_struct(shape)) return reason;
  if (const Reason reason = fault_of_prompt_shape(*shape)) return reason;
  return first_failing(
      {{is_head_dim(shape->head_dim), kNoHeadDim}, {knows_kernels(shape->kernels), kNoKernels}});
}

Reason fault_of_prompt_pages(const kvant_prompt_shape& shape, const kvant_prompt& prompt) {
  const kvant_prompt_pages* pages = prompt.pages;
  if (const Reason reason = fault_of_struct(pages)) return reason;
  if (const Reason reason = fault_of_heads(pages->shape)) return reason;
  if (const Reason reason = fault_of_struct(pages->layer)) return reason;
  const bool reads_sealed = pages->sealed_begins != nullptr && shape.n_sealed_pages > 0;
  if (reads_sealed)
    if (const Reason reason = fault_of_sealed(*pages->shape, *pages->layer, false)) return reason;
  return kvant::device::fault_of_prompt_pages(shape, *pages->shape, *pages->layer, reads_sealed,
                                              prompt.k == nullptr && shape.n_tokens > 0);
}

Reason fault_of_prompt(const kvant_prompt_shape* shape, const kvant_prompt* prompt) {
  if (const Reason reason = fault_of_prompts(shape)) return reason;
  if (const Reason reason = fault_of_struct(prompt)) return reason;
  if (const Reason reason = fault_of_correction(prompt->correction, true)) return reason;
  if (const Reason reason = kvant::device::fault_of_prompt(*prompt, *shape)) return reason;
  if (!is_rotatable(shape->head_dim) && (prompt->q_hadamard != 0 || prompt->out_hadamard != 0))
    return kNotRotatable;
  return prompt->pages == nullptr ? nullptr : fault_of_prompt_pages(*shape, *prompt);
}

Reason fault_of_weights(const kvant_decode_shape* shape, const kvant_token_weights* w) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  const Reason reason = fault_of_struct(w);
  return reason != nullptr ? reason : kvant::device::fault_of_weights(*w);
}

Reason fault_of_protected(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                          const kvant_protected_rows* rows) {
  if (const Reason reason = fault_of_heads(shape)) return reason;
  if (const Reason reason = fault_of_struct(layer)) return reason;
  const Reason reason = fault_of_struct(rows);
  return reason != nullptr ? reason : kvant::device::fault_of_protected(*layer, *rows);
}

Reason fault_of_table(const kvant_step_table* table, const StepTableRule& rule) {
  if (table == nullptr) return nullptr;
  const Reason reason = fault_of_struct(table);
  return reason != nullptr ? reason : kvant::device::fault_of_table(*table, rule);
}

Reason fault_of_step(const kvant_step* step) {
  if (const Reason reason = fault_of_struct(step)) return reason;
  if (const Reason reason = kvant::device::fault_of_step(*step)) return reason;
  if (const Reason reason = fault_of_table(step->sealed, rule_of_sealed(*step))) return reason;
  if (const Reason reason = fault_of_table(step->tail, rule_of_tail(*step))) return reason;
  return fault_of_table(step->protected_pages, rule_of_protected());
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
  return text_of_status(status);
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
  Reason fault = fault_of_merge(n_seqs, n_tokens, n_heads);
  if (fault == nullptr) fault = fault_of_partial(into);
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
