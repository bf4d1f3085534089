#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>

#include "device/cuda/api/append_rows.h"
#include "device/cuda/common/caller_pages.h"
#include "device/cuda/common/caller_structs.h"
#include "device/cuda/common/gpu.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/correction/correction.h"
#include "device/cuda/page/known_format.h"
#include "device/cuda/page/page_format.h"
#include "device/cuda/seal/append_kernel.cuh"
#include "device/cuda/seal/append_tiles.cuh"
#include "device/cuda/seal/keep_sink_kernel.cuh"
#include "device/cuda/seal/seal_registry.h"
#include "format/error_metric.h"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

// Returns whether the kernel can search the codebook. All sub-vectors must share a codebook of 2^8 to 2^12
// centroids.
bool has_searched_codebook(const PageFormat& page) {
  return page.layout.bits >= 8 && page.layout.bits <= 12 && !page.own_codebooks;
}

bool find_encoding(const char* name, PageEncoding* encoding) {
  constexpr int kAnyHead = 128;
  PageFormat& page = encoding->stored;
  if (name == nullptr || !find_page_format(name, kAnyHead, page) ||
      !find_encoding_of(page, &encoding->encoding))
    return false;
  encoding->layout = page.layout;
  return encoding->encoding != Encoding::vectors || has_searched_codebook(page);
}

void set_levels(const char* format, int d, PageEncoding* encoding) {
  set_unit_levels(format, d, encoding->levels);
  const std::span<const double> levels = find_known_format(format)->description->levels;
  for (std::size_t i = 0; i + 1 < levels.size(); ++i)
    encoding->boundaries[i] = static_cast<float>((levels[i] + levels[i + 1]) / 2);
}

Reason read(const kvant_decode_shape* from_shape, const kvant_decode_layer* from_layer,
            kvant_decode_shape* shape, kvant_decode_layer* layer) {
  Reason reason = read_struct(from_shape, shape);
  if (reason == nullptr) reason = read_struct(from_layer, layer);
  if (reason != nullptr) return reason;
  return first_failing({{shape->n_seqs > 0, "shape.n_seqs must be at least 1"},
                        {shape->n_kv_heads > 0, "shape.n_kv_heads must be at least 1"}});
}

// Returns what is wrong with the numbers of rows, wherever they go.
Reason fault_of_numbers(const kvant_new_rows& rows, int head_dim) {
  if (const Reason reason = device::fault_of_numbers(rows, head_dim)) return reason;
  return first_failing({{fits_head(rows.key_channels, head_dim) && fits_head(rows.value_channels, head_dim),
                         "rows: key_channels and value_channels must be multiples of 16 at heads of 512"}});
}

Reason fault_of(const kvant_new_rows& rows, const kvant_pages& tail, int group, int head_dim) {
  if (const Reason reason = fault_of_numbers(rows, head_dim)) return reason;
  if (const Reason reason = device::fault_of_placed_rows(rows, tail)) return reason;
  return first_failing(
      {{rows.n_rows > 0, "rows.n_rows must be at least 1"},
       {rows.queries == nullptr || group > 0, "shape.group must be at least 1 where rows have queries"}});
}

bool is_one_launch(std::int64_t pages, int n_layers) {
  constexpr std::int64_t kMostCtas = 0x7fffffff;
  return pages * std::max(n_layers, 1) <= kMostCtas && pages <= kMostCtas;
}

Reason fault_of(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
                const kvant_seal_range& range) {
  if (const Reason reason = device::fault_of_range(layer, range)) return reason;
  return is_one_launch(std::int64_t{range.max_pages} * shape.n_seqs, range.n_layers)
             ? nullptr
             : "range: too many pages for one launch";
}

Reason fault_of(const kvant_page_metrics& metrics) {
  if (const Reason reason = device::fault_of_metrics(metrics)) return reason;
  return first_failing(
      {{is_aligned(metrics.turns, sizeof(float2)), "page_metrics: turns is not 8-byte aligned"},
       {metrics.turn_layer_stride % 2 == 0, "page_metrics.turn_layer_stride must be a multiple of 2"}});
}

// Returns what is wrong with rows from which pages are made.
Reason fault_of_sealed(const kvant_new_rows& rows, int head_dim) {
  if (rows.keys == nullptr || rows.values == nullptr) return "range.rows: keys or values is null";
  return fault_of_numbers(rows, head_dim);
}

constexpr Reason kCannotSeal[] = {"shape.key_format: no kernel seals it at this head size",
                                  "shape.value_format: no kernel seals it at this head size"};

// Finds how pages of a format are encoded.
kvant_status find_page_encoding(const char* format, int side, int head_dim, PageEncoding* encoding) {
  if (!find_encoding(format, encoding)) return refuse(KVANT_UNSUPPORTED, kCannotSeal[side]);
  encoding->page_bytes = static_cast<int>(kvant_page_bytes(format, head_dim));
  if (encoding->page_bytes == 0) return refuse(KVANT_UNSUPPORTED, kCannotSeal[side]);
  if (encoding->encoding == Encoding::lloyd_max) set_levels(format, head_dim, encoding);
  return KVANT_OK;
}

// trellis_seal_kernel() says what `fills_gpu` and `joins` mean.
SealKernel find_seal_kernel(const PageEncoding& encoding, bool is_shaped, int head_dim, const Gpu& gpu,
                            bool fills_gpu, bool joins) {
  switch (encoding.encoding) {
    case Encoding::vectors:
      return vector_seal_kernel(encoding, head_dim, gpu);
    case Encoding::trellis:
      return is_shaped ? shaped_seal_kernel(encoding, head_dim, gpu, fills_gpu)
                       : trellis_seal_kernel(encoding, head_dim, gpu, fills_gpu, joins);
    default:
      return scalar_seal_kernel(encoding, head_dim);
  }
}

// Launches a kernel for the units of `args`. sharing_ctas CTAs share a page. If `overlaps` is true, the
// launch may start before the previous launch ends.
cudaError_t launch(const SealKernel& kernel, const SealArgs& args, int sharing_ctas, bool overlaps,
                   const Gpu& gpu, cudaStream_t stream) {
  cudaError_t error =
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
  // An SM changes the size of its shared memory only when it is idle. With the largest size from the start,
  // CTAs of another launch can join those that run.
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  int ctas = args.due.n_layers * args.n_seqs * args.due.max_pages;
  int threads = kernel.threads;
  if (kernel.persistent_ctas > 0) {
    // If there are few pages, each gets an SM of its own.
    const int rows = args.n_units;
    const int share = ctas * rows < gpu.multiprocessors * kernel.persistent_ctas ? 1 : kernel.persistent_ctas;
    threads /= share;
    ctas = std::clamp(gpu.multiprocessors * share / rows, 1, ctas);
  }
  cudaLaunchAttribute attributes[2]{};
  unsigned n_attributes = 0;
  if (sharing_ctas > 1) {
    attributes[n_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[n_attributes++].val.clusterDim = {static_cast<unsigned>(sharing_ctas), 1, 1};
  }
  attributes[n_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[n_attributes].val.programmaticStreamSerializationAllowed = 1;
  if (overlaps) n_attributes += gpu.overlap_attributes();
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas * sharing_ctas, args.n_units);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = kernel.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = n_attributes;
  void* arguments[] = {const_cast<SealArgs*>(&args)};
  return cudaLaunchKernelExC(&config, kernel.function, arguments);
}

DueArgs due_args(const kvant_decode_layer& layer, const kvant_seal_range& range) {
  return {.tail_page = range.tail_page,
          .sealed_page = range.sealed_page,
          .n_pages = range.n_pages,
          .max_pages = range.max_pages,
          .n_layers = std::max(range.n_layers, 1),
          .sealed = {layer.sealed.layer_stride, layer.sealed.layer_offset},
          .tail = {layer.tail.layer_stride, layer.tail.layer_offset},
          .layer_offsets = range.layer_offsets};
}

cudaError_t keep_sink(const kvant_decode_shape& shape, const kvant_decode_layer& layer, const DueArgs& due,
                      const SealedRows& rows, cudaStream_t stream) {
  const KeepSinkArgs args{
      .n_seqs = shape.n_seqs,
      .sink = layer.sink,
      .due = due,
      .tail = source_of(layer.tail, layer.layer),
      .protected_pages = source_of(layer.protected_pages, layer.layer),
      .of_protected = {layer.protected_pages.layer_stride, layer.protected_pages.layer_offset},
      .rows = rows};
  with_head_dim(shape.head_dim, [&](auto d) {
    keep_sink_kernel<d.value>
        <<<dim3(due.n_layers * shape.n_seqs, shape.n_kv_heads, 2), d.value, 0, stream>>>(args);
  });
  return cudaGetLastError();
}

// SealPlan collects the units that a call seals, and launches a kernel for each kind of page.
class SealPlan {
 public:
  SealPlan(int n_layers, const kvant_decode_shape& shape)
      : head_dim_(shape.head_dim),
        units_(new (std::nothrow) PlacedUnit[std::size_t{2} * n_layers * shape.n_kv_heads]) {}

  // Adds the units of the call's layer `nth`, whose heads have the formats of `groups`.
  kvant_status add(const HeadGroups& groups, const kvant_decode_layer& layer, const SealedSource& sealed,
                   const kvant_page_metrics& page_metrics, int nth) {
    if (units_ == nullptr) return refuse(KVANT_OUT_OF_MEMORY, "there is not enough memory for this call");
    const PageSource tail = source_of(layer.tail, layer.layer);
    for (int i = 0; i < groups.n; ++i) {
      for (int side = 0; side < 2; ++side) {
        const bool has_metric =
            side == KVANT_KEY && (layer.key_metrics != nullptr || page_metrics.directions != nullptr);
        int kind = 0;
        if (const kvant_status status =
                find_kind(side == KVANT_KEY ? groups.of[i].key_format : groups.of[i].value_format, side,
                          has_metric, &kind);
            status != KVANT_OK)
          return status;
        const void* codebooks = side == KVANT_KEY ? layer.key_codebooks : layer.value_codebooks;
        if (kinds_[kind].encoding.encoding == Encoding::vectors && codebooks == nullptr)
          return refuse_argument("layer: a vector format has no codebooks");
        const HeadList& heads = groups.of[i].heads;
        for (int j = 0; j < heads.n; ++j) {
          SealUnit unit = unit_of(layer, sealed, tail, heads.at[j], side);
          if (has_metric) set_metric(layer, page_metrics, nth, &unit);
          units_[n_units_++] = {unit, kind};
        }
        kinds_[kind].n_units += heads.n;
      }
    }
    return KVANT_OK;
  }

  // Returns whether is_it(encoding, side) is true for all pages.
  template <class IsIt>
  bool all(const IsIt& is_it) const {
    return std::all_of(kinds_, kinds_ + n_kinds_,
                       [&](const SealKind& kind) { return is_it(kind.encoding, kind.side); });
  }

  kvant_status check_shared_memory(const Gpu& gpu) const {
    for (int i = 0; i < n_kinds_; ++i)
      if (kernel_of(kinds_[i], gpu, false).shared_bytes > gpu.shared_bytes)
        return refuse(KVANT_UNSUPPORTED,
                      "shape: this GPU has too little shared memory to seal heads of this size");
    return KVANT_OK;
  }

  // Launches the kernels. `args` has everything but encodings and units.
  cudaError_t launch(SealArgs args, const Gpu& gpu, cudaStream_t stream) const {
    // If each sequence has at most one page, as in decode steps, only a few pages are due.
    const std::int64_t pages = std::int64_t{args.due.max_pages} * args.n_seqs * n_units_;
    const bool fills_gpu = args.due.max_pages > 1 && pages > 3 * gpu.multiprocessors;
    SealWork works[kMaxKinds];
    const int n_works = divide(gpu, fills_gpu, works);
    int n_left = 0;
    for (int i = 0; i < n_works; ++i) n_left += (works[i].n_units + kMaxSealUnits - 1) / kMaxSealUnits;
    bool overlaps = false;
    for (int i = 0; i < n_works; ++i) {
      const SealWork& work = works[i];
      for (int side = 0; side < 2; ++side)
        if (work.kinds[side] >= 0) args.sides[side] = kinds_[work.kinds[side]].encoding;
      args.n_units = 0;
      for (int j = 0, n_left_units = work.n_units; n_left_units > 0; ++j) {
        const PlacedUnit& placed = units_[j];
        if (work.kinds[placed.unit.side] != placed.kind) continue;
        args.units[args.n_units++] = placed.unit;
        --n_left_units;
        if (args.n_units < kMaxSealUnits && n_left_units > 0) continue;
        args.admits_next = --n_left > 0 ? 1 : 0;
        const cudaError_t error =
            cuda::launch(work.kernel, args, sharing_ctas(work, args, gpu), overlaps, gpu, stream);
        if (error != cudaSuccess) return error;
        overlaps = true;
        args.n_units = 0;
      }
    }
    return cudaSuccess;
  }

 private:
  static constexpr int kMaxKinds = 64;

  // Describes what the pages of some units have in common.
  struct SealKind {
    const char* format;
    int side;
    bool is_shaped;
    PageEncoding encoding;
    int n_units;
  };
  struct PlacedUnit {
    SealUnit unit;
    int kind;
  };
  // Describes the units of one kernel, with at most one kind of each side; -1 means none.
  struct SealWork {
    SealKernel kernel;
    int kinds[2];
    int n_units;
  };

  kvant_status find_kind(const char* format, int side, bool has_metric, int* kind) {
    for (int i = 0; i < n_kinds_; ++i) {
      const SealKind& of = kinds_[i];
      const bool is_shaped = has_metric && of.encoding.encoding == Encoding::trellis;
      if (of.side != side || of.is_shaped != is_shaped || std::strcmp(of.format, format) != 0) continue;
      *kind = i;
      return KVANT_OK;
    }
    if (n_kinds_ == kMaxKinds) return refuse_argument("shapes: the layers have more than 64 formats");
    SealKind& added = kinds_[n_kinds_];
    added = {format, side, false, {}, 0};
    const kvant_status status = find_page_encoding(format, side, head_dim_, &added.encoding);
    if (status != KVANT_OK) return status;
    added.is_shaped = has_metric && added.encoding.encoding == Encoding::trellis;
    *kind = n_kinds_++;
    return KVANT_OK;
  }

  static SealUnit unit_of(const kvant_decode_layer& layer, const SealedSource& sealed, const PageSource& tail,
                          int head, int side) {
    SealUnit unit{};
    unit.sealed = pages_of_head(sealed.pages, head, side);
    unit.sealed.pool += sealed.offset_of(head, side);
    unit.tail = pages_of_head(tail, head, side);
    const void* codebooks = side == KVANT_KEY ? layer.key_codebooks : layer.value_codebooks;
    const std::int64_t stride = side == KVANT_KEY ? layer.key_codebook_stride : layer.value_codebook_stride;
    if (codebooks != nullptr) unit.codebook = static_cast<const std::uint16_t*>(codebooks) + head * stride;
    unit.pages_out_of_range = layer.pages_out_of_range;
    unit.head = static_cast<std::uint8_t>(head);
    unit.side = static_cast<std::uint8_t>(side);
    unit.sink = static_cast<std::uint8_t>(layer.sink);
    return unit;
  }

  void set_metric(const kvant_decode_layer& layer, const kvant_page_metrics& page_metrics, int nth,
                  SealUnit* unit) const {
    if (page_metrics.directions == nullptr) {
      unit->metric = layer.key_metrics + std::int64_t{unit->head} * head_dim_ * (1 + 2 * kMetricRank);
      return;
    }
    unit->metric = page_metrics.directions + nth * page_metrics.direction_layer_stride +
                   std::int64_t{unit->head} * head_dim_ * kMetricRank;
    unit->turns = reinterpret_cast<const float2*>(page_metrics.turns + nth * page_metrics.turn_layer_stride);
  }

  SealKernel kernel_of(const SealKind& kind, const Gpu& gpu, bool fills_gpu) const {
    const bool joins =
        gpu.has.overlaps_launches && std::any_of(kinds_, kinds_ + n_kinds_, [](const SealKind& other) {
          return other.is_shaped && other.encoding.layout.bits >= kLeastJoinedBits;
        });
    return find_seal_kernel(kind.encoding, kind.is_shaped, head_dim_, gpu, fills_gpu, joins);
  }

  // Returns how many CTAs share each page of a kernel. CTAs share pages if all CTAs of the call's kernels for
  // metrics run at once. Otherwise sharing saves no time, because each CTA prepares the page and its metric.
  int sharing_ctas(const SealWork& work, const SealArgs& args, const Gpu& gpu) const {
    const int most = work.kernel.most_sharing_ctas;
    if (most == 1) return 1;
    std::int64_t n_units = 0;
    for (int i = 0; i < n_kinds_; ++i) n_units += kinds_[i].is_shaped ? kinds_[i].n_units : 0;
    const std::int64_t pages = n_units * args.due.n_layers * args.n_seqs * args.due.max_pages;
    return most * pages <= gpu.multiprocessors ? most : 1;
  }

  // Groups the units into `works`, each of which has one kernel, and returns the number of works. Searches
  // with a metric take longest, so they come first.
  int divide(const Gpu& gpu, bool fills_gpu, SealWork (&works)[kMaxKinds]) const {
    int n = 0;
    for (const bool is_shaped : {true, false}) {
      for (int i = 0; i < n_kinds_; ++i) {
        if (kinds_[i].is_shaped != is_shaped) continue;
        const SealKernel kernel = kernel_of(kinds_[i], gpu, fills_gpu);
        const int side = kinds_[i].side;
        SealWork* const work = std::find_if(works, works + n, [&](const SealWork& other) {
          return other.kernel.function == kernel.function &&
                 other.kernel.shared_bytes == kernel.shared_bytes && other.kinds[side] < 0;
        });
        if (work == works + n) works[n++] = {kernel, {-1, -1}, 0};
        work->kinds[side] = i;
        work->n_units += kinds_[i].n_units;
      }
    }
    return n;
  }

  int head_dim_;
  SealKind kinds_[kMaxKinds];
  int n_kinds_ = 0;
  std::unique_ptr<PlacedUnit[]> units_;
  int n_units_ = 0;
};

SealArgs seal_args(const kvant_decode_shape& shape, const kvant_decode_layer& layer, const DueArgs& due,
                   const kvant_page_metrics& page_metrics, const SealedRows& rows) {
  SealArgs args{};
  args.n_seqs = shape.n_seqs;
  args.due = due;
  args.masks = reinterpret_cast<const uint4*>(layer.masks);
  args.mask_seq_stride = layer.mask_seq_stride;
  args.mask_head_stride = layer.mask_head_stride;
  args.page_metrics = {.basis = page_metrics.basis,
                       .basis_head_stride = page_metrics.basis_head_stride,
                       .direction_layer_stride = page_metrics.direction_layer_stride,
                       .turn_layer_stride = page_metrics.turn_layer_stride / 2,
                       .first_pages = page_metrics.first_pages};
  args.rows = rows;
  return args;
}

// Returns the arguments for adding the pages of a group of heads to the states of a correction.
StateUpdateArgs state_update(const kvant_decode_shape& shape, const HeadGroup& group,
                             const SealedSource& sealed, const kvant_correction& correction,
                             const kvant_decode_layer& layer, const SealArgs& args) {
  StateUpdateArgs update{};
  update.n_seqs = shape.n_seqs;
  update.heads = group.heads;
  update.sealed = sealed;
  update.tail = source_of(layer.tail, layer.layer);
  update.due = args.due;
  update.sink = layer.sink;
  update.masks = args.masks;
  update.mask_seq_stride = args.mask_seq_stride;
  update.mask_head_stride = args.mask_head_stride;
  find_page_format(group.key_format, shape.head_dim, update.stored[KVANT_KEY]);
  find_page_format(group.value_format, shape.head_dim, update.stored[KVANT_VALUE]);
  update.key_maps = correction.key_maps;
  update.states = states_of(correction);
  update.page_stride = correction.state_page_stride;
  return update;
}

Reason read_page_metrics(const kvant_seal_range& range, kvant_page_metrics* page_metrics) {
  if (range.page_metrics == nullptr) return nullptr;
  if (const Reason reason = read_struct(range.page_metrics, page_metrics)) return reason;
  return fault_of(*page_metrics);
}

}  // namespace

Reason fault_of_last(const kvant_new_rows& rows, const kvant_decode_shape& shape,
                     const kvant_decode_lengths& lengths, const kvant_decode_layer& layer) {
  if (const Reason reason = fault_of_numbers(rows, shape.head_dim)) return reason;
  const bool has_queries = rows.queries != nullptr;
  const int n_queries = std::max(shape.max_queries, 1);
  const std::int64_t most = std::int64_t{shape.n_seqs} * n_queries;
  return first_failing(
      {{lengths.query_begins != nullptr || n_queries > 1 || rows.n_rows == shape.n_seqs,
        "layer.new_rows: n_rows must be shape.n_seqs"},
       {lengths.query_begins != nullptr || rows.n_rows == most,
        "layer.new_rows: n_rows must be shape.n_seqs times shape.max_queries"},
       {rows.n_rows > 0 && rows.n_rows <= most,
        "layer.new_rows: n_rows must be at least 1 and at most shape.n_seqs times shape.max_queries"},
       {rows.keys != nullptr && rows.values != nullptr, "layer.new_rows: keys or values is null"},
       {lengths.tail_tokens != nullptr, "layer.new_rows: lengths.tail_tokens is null"},
       {!has_queries ||
            (rows.queries == layer.q && rows.type == layer.q_type &&
             rows.query_row_stride == layer.q_seq_stride && rows.query_head_stride == layer.q_head_stride &&
             channels_or_all(rows.key_channels, shape.head_dim) ==
                 channels_or_all(layer.q_channels, shape.head_dim)),
        "layer.new_rows: queries must be layer.q, of its type, strides and channels"}});
}

AppendArgs append_args(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
                       const kvant_new_rows& rows, const kvant_decode_lengths* lengths) {
  const int key_channels = channels_or_all(rows.key_channels, shape.head_dim);
  AppendArgs args{.n_rows = rows.n_rows,
                  .n_kv_heads = shape.n_kv_heads,
                  .group = shape.group,
                  .type = number_type(rows.type),
                  .tail = source_of(layer.tail, layer.layer),
                  .seq = rows.seq,
                  .tail_token = rows.tail_token,
                  .tail_tokens = lengths == nullptr ? nullptr : lengths->tail_tokens,
                  .query_begins = lengths == nullptr ? nullptr : lengths->query_begins,
                  .n_seqs = shape.n_seqs,
                  .n_queries = std::max(shape.max_queries, 1),
                  .sides = {{const_cast<void*>(rows.keys), rows.key_row_stride, rows.key_head_stride,
                             key_channels, 0, rows.key_factors, rows.key_hadamard},
                            {const_cast<void*>(rows.values), rows.value_row_stride, rows.value_head_stride,
                             channels_or_all(rows.value_channels, shape.head_dim), 0, rows.value_factors,
                             rows.value_hadamard}},
                  .queries = {rows.queries, rows.query_row_stride, rows.query_head_stride, key_channels, 0,
                              rows.query_factors, rows.key_hadamard}};
  for (AppendedRows* of : {&args.sides[KVANT_KEY], &args.sides[KVANT_VALUE], &args.queries})
    of->is_wide = is_wide(of->rows, of->row_stride, of->head_stride) ? 1 : 0;
  return args;
}

kvant_status append(const AppendArgs& args, int head_dim, const Gpu& gpu, cudaStream_t stream) {
  const int n_heads = args.n_kv_heads * (2 + (args.queries.rows != nullptr ? args.group : 0));
  const bool in_tiles =
      args.queries.rows == nullptr && args.tail_tokens == nullptr && args.n_rows >= kRowsForTiles;
  const std::int64_t n_warps = in_tiles ? (args.n_rows + kTileRows - 1) / kTileRows : args.n_rows;
  const unsigned ctas = ctas_for(n_warps * n_heads, kAppendThreads);
  if (ctas == 0) return refuse_argument("rows.n_rows: too many for one launch");
  // The setup overlaps the predecessor's end, as in kvant_transform.
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(kAppendThreads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = gpu.overlap_attributes();
  cudaError_t error = cudaSuccess;
  with_head_dim(head_dim, [&](auto d) {
    error =
        cudaLaunchKernelEx(&config, in_tiles ? append_tiles_kernel<d.value> : append_kernel<d.value>, args);
  });
  return status_of(error);
}

}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" {

int kvant_can_seal(const char* format) {
  PageEncoding encoding;
  return find_encoding(format, &encoding) ? 1 : 0;
}

int kvant_can_seal_rows(const char* format) {
  PageEncoding encoding;
  return find_encoding(format, &encoding) && encoding.takes_rows() ? 1 : 0;
}

kvant_status kvant_append(const kvant_decode_shape* caller_shape, const kvant_decode_layer* caller_layer,
                          const kvant_new_rows* caller_rows, kvant_stream stream) {
  kvant_decode_shape shape;
  kvant_decode_layer layer;
  kvant_new_rows rows;
  if (const Reason reason = read(caller_shape, caller_layer, &shape, &layer)) return refuse_argument(reason);
  if (const Reason reason = read_struct(caller_rows, &rows)) return refuse_argument(reason);
  if (const Reason reason = fault_of(rows, layer.tail, shape.group, shape.head_dim))
    return refuse_argument(reason);
  if (!is_head_dim(shape.head_dim)) return refuse(KVANT_UNSUPPORTED, kNoHeadDim);
  Gpu gpu;
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  return append(append_args(shape, layer, rows, nullptr), shape.head_dim, gpu,
                static_cast<cudaStream_t>(stream));
}

kvant_status kvant_seal(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                        const int32_t* tail_page, const int32_t* sealed_page, kvant_stream stream) {
  const kvant_seal_range range{.struct_size = sizeof range,
                               .tail_page = tail_page,
                               .sealed_page = sealed_page,
                               .n_pages = nullptr,
                               .max_pages = 1,
                               .reserved = 0,
                               .page_metrics = nullptr,
                               .n_layers = 1,
                               .keep_sink = 0,
                               .layer_offsets = nullptr,
                               .rows = nullptr,
                               .first_rows = nullptr};
  return kvant_seal_pages(shape, layer, &range, stream);
}

kvant_status kvant_seal_pages(const kvant_decode_shape* caller_shape, const kvant_decode_layer* caller_layer,
                              const kvant_seal_range* caller_range, kvant_stream stream) {
  kvant_decode_shape shape;
  kvant_decode_layer layer;
  kvant_correction correction{};
  kvant_seal_range range;
  kvant_page_metrics page_metrics{};
  HeadGroups groups;
  if (const Reason reason = read(caller_shape, caller_layer, &shape, &layer)) return refuse_argument(reason);
  if (const Reason reason = read_struct(caller_range, &range)) return refuse_argument(reason);
  if (const Reason reason = fault_of(shape, layer, range)) return refuse_argument(reason);
  if (const Reason reason = read_page_metrics(range, &page_metrics)) return refuse_argument(reason);
  if (layer.correction != nullptr)
    if (const Reason reason = read_correction(layer.correction, &correction)) return refuse_argument(reason);
  SealedRows rows{};
  if (range.rows != nullptr) {
    kvant_new_rows new_rows;
    if (const Reason reason = read_struct(range.rows, &new_rows)) return refuse_argument(reason);
    if (const Reason reason = fault_of_sealed(new_rows, shape.head_dim)) return refuse_argument(reason);
    const AppendArgs as_appended = append_args(shape, layer, new_rows, nullptr);
    rows = {range.first_rows, as_appended.type, {as_appended.sides[0], as_appended.sides[1]}};
  }
  if (const Reason reason = group_heads(shape, &groups)) return refuse_argument(reason);
  SealedSource sealed;
  if (const Reason reason = read_sealed(layer, shape.n_kv_heads, &sealed)) return refuse_argument(reason);
  const DueArgs due = due_args(layer, range);
  // All arguments are checked before any launch.
  SealPlan plan(1, shape);
  if (const kvant_status status = plan.add(groups, layer, sealed, page_metrics, 0); status != KVANT_OK)
    return status;
  if (rows.first != nullptr && !plan.all([](const PageEncoding& of, int) { return of.takes_rows(); }))
    return refuse(KVANT_UNSUPPORTED, "range.rows: trellis formats are sealed from the tail alone");
  const bool corrects = correction.key_maps != nullptr;
  if (corrects && (!can_be_corrected(shape.head_dim) || !plan.all([](const PageEncoding& of, int side) {
        return of.encoding == (side == KVANT_KEY ? Encoding::channel_grid : Encoding::token_grid);
      })))
    return refuse(KVANT_UNSUPPORTED,
                  "a correction with key_maps needs heads of 64 or 128, ch... keys and tok... values");
  Gpu gpu;
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  if (const kvant_status status = plan.check_shared_memory(gpu); status != KVANT_OK) return status;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaSuccess;
  if (range.keep_sink != 0 && layer.sink > 0) error = keep_sink(shape, layer, due, rows, cuda_stream);
  const SealArgs args = seal_args(shape, layer, due, page_metrics, rows);
  if (error == cudaSuccess) error = plan.launch(args, gpu, cuda_stream);
  for (int i = 0; i < groups.n && error == cudaSuccess && corrects; ++i)
    error = add_sealed_to_states(state_update(shape, groups.of[i], sealed, correction, layer, args),
                                 shape.head_dim, gpu, cuda_stream);
  return status_of(error);
}

kvant_status kvant_seal_layers(int32_t n_layers, const kvant_decode_shape* const* shapes,
                               const kvant_decode_layer* const* layers, const kvant_seal_range* caller_range,
                               kvant_stream stream) {
  kvant_seal_range range;
  kvant_page_metrics page_metrics{};
  if (const Reason reason = kvant::device::fault_of_layers(n_layers, shapes, layers))
    return refuse_argument(reason);
  if (const Reason reason = read_struct(caller_range, &range)) return refuse_argument(reason);
  if (const Reason reason = kvant::device::fault_of_range_of_layers(range)) return refuse_argument(reason);
  if (const Reason reason = read_page_metrics(range, &page_metrics)) return refuse_argument(reason);
  std::optional<SealPlan> plan;
  kvant_decode_shape shape, first;
  kvant_decode_layer layer;
  for (int i = 0; i < n_layers; ++i) {
    HeadGroups groups;
    SealedSource sealed;
    if (const Reason reason = read(shapes[i], layers[i], &shape, &layer)) return refuse_argument(reason);
    if (i == 0) first = shape;
    if (const Reason reason = fault_of(shape, layer, range)) return refuse_argument(reason);
    if (const Reason reason = kvant::device::fault_of_one_of_several(shape, first, layer))
      return refuse_argument(reason);
    if (const Reason reason = group_heads(shape, &groups)) return refuse_argument(reason);
    if (const Reason reason = read_sealed(layer, shape.n_kv_heads, &sealed)) return refuse_argument(reason);
    if (i == 0) plan.emplace(n_layers, shape);
    if (const kvant_status status = plan->add(groups, layer, sealed, page_metrics, i); status != KVANT_OK)
      return status;
  }
  Gpu gpu;
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  if (const kvant_status status = plan->check_shared_memory(gpu); status != KVANT_OK) return status;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaSuccess;
  for (int i = 0; i < n_layers && range.keep_sink != 0 && error == cudaSuccess; ++i) {
    read(shapes[i], layers[i], &shape, &layer);
    if (layer.sink > 0) error = keep_sink(shape, layer, due_args(layer, range), {}, cuda_stream);
  }
  if (error == cudaSuccess)
    error = plan->launch(seal_args(shape, layer, due_args(layer, range), page_metrics, {}), gpu, cuda_stream);
  return status_of(error);
}

}  // extern "C"
