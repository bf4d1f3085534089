#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "device/cuda/api/append_rows.h"
#include "device/cuda/common/caller_pages.h"
#include "device/cuda/common/caller_structs.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/common/workspace_cursor.h"
#include "device/cuda/correction/correction.h"
#include "device/cuda/decode/decode_registry.h"
#include "device/cuda/decode/decode_shared.h"
#include "device/cuda/decode/leave_segment.cuh"
#include "device/cuda/decode/page_copier.cuh"
#include "device/cuda/decode/schedule.cuh"
#include "device/cuda/decode/short_args.h"
#include "device/cuda/decode/short_attention.h"
#include "device/cuda/page/known_format.h"
#include "device/cuda/page/page_format.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

const DecodeKernel* find_decode_kernel(const Gpu& gpu, const char* key_format, const char* value_format,
                                       int head_dim, int group, bool sas, bool caps) {
  const std::span<const DecodeKernel> lists[] = {
#define KVANT_PAIR_KERNELS(group) group##_kernels(),
#include "device/cuda/decode/pair_kernels.def"
#undef KVANT_PAIR_KERNELS
  };
  for (const auto list : lists) {
    for (const DecodeKernel& kernel : list) {
      if (kernel.head_dim == head_dim && group <= kernel.max_group && (kernel.sas == SasUse::always) == sas &&
          (kernel.caps_scores || !caps) && std::strcmp(kernel.key_format, key_format) == 0 &&
          std::strcmp(kernel.value_format, value_format) == 0 && fits(kernel, gpu))
        return &kernel;
    }
  }
  return group <= kPaddedGroup ? find_generic_kernel(key_format, value_format, head_dim) : nullptr;
}

namespace {

// Returns a kernel that skips values, or null.
const DecodeKernel* find_skipping_kernel(const Gpu& gpu, const HeadGroup& group, int head_dim) {
  for (const DecodeKernel& kernel : skipping_kernels()) {
    if (kernel.head_dim == head_dim && std::strcmp(kernel.key_format, group.key_format) == 0 &&
        std::strcmp(kernel.value_format, group.value_format) == 0 && fits(kernel, gpu))
      return &kernel;
  }
  return nullptr;
}

struct Shape : kvant_decode_shape {
  HeadGroups groups;
};

Reason read_shape(const kvant_decode_shape* from, Shape* shape) {
  if (const Reason reason = read_struct<kvant_decode_shape>(from, shape)) return reason;
  const Reason reason = first_failing(
      {{shape->n_seqs > 0, "shape.n_seqs must be at least 1"},
       {shape->score_softcap >= 0, "shape.score_softcap must not be negative"},
       {shape->max_queries >= 0 && shape->max_queries <= kMaxQueries, "shape.max_queries must be 0 to 8"},
       {shape->group > 0 && shape->group <= kMaxGroup, "shape.group must be 1 to 16"},
       {shape->kernels == nullptr, "shape.kernels must be null: the kernels that it names are a CPU's"}});
  shape->max_queries = std::max(shape->max_queries, 1);
  return reason == nullptr ? group_heads(*shape, &shape->groups) : reason;
}

// Describes the work of one launch: some KV heads, some query heads of each KV head, and some queries of each
// sequence.
struct LaunchPlan {
  HeadList kv_heads;
  int first_head, n_heads;  // query heads of each KV head
  int first_query, n_queries;
  int sharers_log2;            // log2 of the warps that share pages
  const DecodeKernel* kernel;  // the registry's entry for the first KV head
  // If true, other KV heads may have codes of other widths.
  bool has_unlike_heads;
  int key_bytes, value_bytes;  // the largest pages

  // Returns the functions and sizes of pages for the launch's heads.
  DecodeKernel kernel_of_heads() const {
    DecodeKernel used = *kernel;
    used.key_bytes = key_bytes;
    used.value_bytes = value_bytes;
    if (has_unlike_heads) {
      used.function = kernel->for_unlike_heads.function;
      used.for_several = kernel->for_unlike_heads.for_several;
      used.for_short.function = kernel->for_unlike_heads.for_short;
      used.for_few.function = kernel->for_unlike_heads.for_few;
    } else {
      used.for_unlike_heads = {};
    }
    return used;
  }
};
struct LaunchPlans {
  int n = 0;
  std::array<LaunchPlan, kMaxLaunches> of{};

  // Returns whether the first launch serves only some of the KV heads. Usually the other launches then do,
  // too.
  bool differ_by_head(const kvant_decode_shape& shape) const { return of[0].kv_heads.n < shape.n_kv_heads; }
  // Returns whether several warps share each page in the kernels of all launches for short sequences.
  bool share_short_pages() const {
    return std::all_of(of.begin(), of.begin() + n, [](const LaunchPlan& plan) {
      return plan.kernel->for_short.function != nullptr && plan.kernel->for_short.page_warps > 1;
    });
  }
};

int launches_for_queries(const Shape& shape) {
  const int together = queries_of_launch(shape.max_queries, shape.group);
  return (shape.max_queries + together - 1) / together;
}

// Returns the columns for which partial results have space. The columns belong to one warp, or to all warps
// that share pages.
int columns_of_partials(const Shape& shape) {
  return std::max(kPaddedGroup,
                  queries_of_launch(shape.max_queries, shape.group) * std::min(shape.group, kPaddedGroup));
}

// Returns the kernel for launches whose columns belong to 2^sharers_log2 warps.
DecodeKernel for_columns(const DecodeKernel& kernel, const Gpu& gpu, int sharers_log2) {
  if (sharers_log2 == 0) return kernel;
  const bool by_warpgroups =
      gpu.has.warpgroup_products && sharers_log2 == 2 && kernel.by_warpgroups.function != nullptr;
  const ManyColumnsKernel& many = by_warpgroups ? kernel.by_warpgroups : kernel.for_many[sharers_log2 - 1];
  if (many.function == nullptr) return kernel;
  DecodeKernel shared = kernel;
  shared.for_several = many.function;
  shared.copying_warps = by_warpgroups ? kWarpgroupWarps : 1;
  shared.max_warps = many.max_warps;
  shared.table_bytes = many.table_bytes;
  shared.warp_bytes = many.warp_bytes;
  return fits(shared, gpu, 1 << sharers_log2) ? shared : kernel;
}

// Adds the KV heads of a plan to a launch whose kernel also serves their code widths. Returns false if there
// is no such launch. Kernels whose warps share pages by columns serve one code width.
bool join_launch(const LaunchPlan& plan, const Gpu& gpu, LaunchPlans* plans) {
  if (plan.kernel->for_unlike_heads.function == nullptr || plan.sharers_log2 > 0) return false;
  for (LaunchPlan& other : std::span(plans->of).first(plans->n)) {
    if (other.kernel->function != plan.kernel->function || other.first_head != plan.first_head ||
        other.first_query != plan.first_query || other.sharers_log2 > 0)
      continue;
    LaunchPlan both = other;
    both.has_unlike_heads = true;
    both.key_bytes = std::max(other.key_bytes, plan.key_bytes);
    both.value_bytes = std::max(other.value_bytes, plan.value_bytes);
    if (!fits(both.kernel_of_heads(), gpu)) continue;
    std::copy_n(plan.kv_heads.at, plan.kv_heads.n, both.kv_heads.at + both.kv_heads.n);
    both.kv_heads.n += plan.kv_heads.n;
    other = both;
    return true;
  }
  return false;
}

// Returns why there is no kernel for some heads, or null.
Reason plan_launches_of(const Shape& shape, const Gpu& gpu, const HeadGroup& group, int first_query,
                        int n_queries, LaunchPlans* plans) {
  for (int first = 0; first < shape.group; first += kPaddedGroup) {
    const int n = std::min(shape.group - first, kPaddedGroup);
    const int columns = n * n_queries;
    const int sharers_log2 = columns <= kPaddedGroup ? 0 : columns <= 2 * kPaddedGroup ? 1 : 2;
    const bool skips = shape.skip_threshold > 0 && shape.sas == 0 && shape.score_softcap == 0;
    // Values can be skipped only if one warp has all columns, because that warp decides alone whether to copy
    // the values.
    const DecodeKernel* kernel =
        skips && sharers_log2 == 0 ? find_skipping_kernel(gpu, group, shape.head_dim) : nullptr;
    if (kernel == nullptr)
      kernel = find_decode_kernel(gpu, group.key_format, group.value_format, shape.head_dim,
                                  std::min(columns, kPaddedGroup), shape.sas != 0, shape.score_softcap > 0);
    // Warps share pages either by tokens or by columns, not both.
    if (kernel != nullptr && kernel->page_warps > 1 && sharers_log2 > 0)
      kernel = find_generic_kernel(group.key_format, group.value_format, shape.head_dim);
    if (kernel == nullptr) return "no kernel reads these formats of keys and values at this head size";
    if (!fits(for_columns(*kernel, gpu, sharers_log2), gpu, 1 << sharers_log2))
      return "pages of these formats are larger than the shared memory of this GPU";
    const LaunchPlan plan{group.heads,  first,  n,     first_query,       n_queries,
                          sharers_log2, kernel, false, kernel->key_bytes, kernel->value_bytes};
    if (!join_launch(plan, gpu, plans)) plans->of[plans->n++] = plan;
  }
  return nullptr;
}

// Returns why there is no kernel for some heads, or null.
Reason plan_launches(const Shape& shape, const Gpu& gpu, LaunchPlans* plans) {
  if (shape.corrected != 0 && (!can_be_corrected(shape.head_dim) || shape.group > kPaddedGroup))
    return "a correction needs heads of 64 or 128 and at most 8 query heads of a KV head";
  if (!is_head_dim(shape.head_dim)) return kNoHeadDim;
  if (channel_warps(shape.head_dim) > 1 && shape.max_queries > 1)
    return "heads of 512 are for one query of a sequence (shape.max_queries)";
  if (shape.corrected != 0 && shape.score_softcap > 0)
    return "a correction is not there for scores that are capped (shape.score_softcap)";
  if (shape.corrected != 0 && shape.max_queries > 1)
    return "a correction is for one query of a sequence (shape.max_queries)";
  const int together = queries_of_launch(shape.max_queries, shape.group);
  for (int i = 0; i < shape.groups.n; ++i) {
    for (int first = 0; first < shape.max_queries; first += together) {
      const Reason reason = plan_launches_of(shape, gpu, shape.groups.of[i], first,
                                             std::min(shape.max_queries - first, together), plans);
      if (reason != nullptr) return reason;
    }
  }
  return nullptr;
}

// Describes the contents of the workspace.
struct Workspace {
  Schedule schedule;
  std::size_t n_arrivals;
  std::size_t partials_at;                    // offset of the partial results
  std::size_t partial_bytes;                  // bytes for the maximum number of launches
  float *features, *numerator, *denominator;  // For a correction, as in CorrectionArgs.
};

// Counts the floats in a launch's partial results: sums, followed by outputs.
struct PartialFloats {
  std::size_t sums, outs;

  PartialFloats(int n_ctas, std::size_t n_columns, int head_dim)
      : sums(std::size_t{2} * part_places(n_ctas) * n_columns * slices_of_column(head_dim) * 2),
        outs(std::size_t{2} * part_places(n_ctas) * n_columns * head_dim) {}
  std::size_t both() const { return sums + outs; }
};

std::size_t lay_out(const Shape& shape, int n_ctas, void* memory, Workspace* workspace) {
  WorkspaceCursor cursor(memory);
  Schedule* schedule = &workspace->schedule;
  const std::size_t n_seqs = shape.n_seqs;
  const std::size_t n_columns = columns_of_partials(shape);
  const std::size_t n_slices = n_columns * slices_of_column(shape.head_dim);
  schedule->first_unit = cursor.take<std::int32_t>(n_seqs + 1);
  schedule->protected_pages = cursor.take<std::int32_t>(n_seqs);
  schedule->starts = cursor.take<WorkStart>(std::size_t{kDivisions} * shape.n_kv_heads * n_ctas);
  const std::size_t passes = query_passes(shape.group) * launches_for_queries(shape);
  const std::size_t launches = shape.groups.n * passes;
  // Shapes that differ in their groups of KV heads may share a schedule.
  workspace->n_arrivals = kMaxHeadGroups * passes * arrival_rows(n_ctas) * n_slices;
  schedule->arrivals = cursor.take<std::int32_t>(workspace->n_arrivals);
  // Shapes with different groups must find each launch's partial results at one place, with nothing else
  // there. The call that makes the schedule marks the results as unwritten, and launches restore the mark.
  const PartialFloats of_launch(n_ctas, n_columns, shape.head_dim);
  const std::size_t max_launches = kMaxHeadGroups * passes;
  workspace->partials_at = cursor.used();
  workspace->partial_bytes = max_launches * of_launch.both() * sizeof(float);
  schedule->partial_sums =
      cursor.take<float>((shape.corrected != 0 ? max_launches : launches) * of_launch.both());
  schedule->partial_out = schedule->partial_sums + of_launch.sums;
  const std::size_t rows = shape.corrected != 0 ? n_seqs * shape.n_kv_heads * shape.group : 0;
  workspace->features = cursor.take<float>(rows * kFeatures);
  workspace->numerator = cursor.take<float>(rows * shape.head_dim);
  workspace->denominator = cursor.take<float>(rows);
  return cursor.used();
}

// Fills in what both the schedule and the layers need.
kvant_status common_args(const Shape& shape, const kvant_decode_lengths& lengths, void* memory,
                         std::size_t workspace_bytes, DecodeArgs* args, Gpu* gpu, Workspace* workspace) {
  if (memory == nullptr || !is_aligned(memory, kWorkspaceAlignment))
    return refuse_argument("workspace is null or not 256-byte aligned");
  if (const kvant_status status = find_gpu(gpu); status != KVANT_OK) return status;
  if (lay_out(shape, gpu->multiprocessors, memory, workspace) > workspace_bytes)
    return refuse(KVANT_WORKSPACE_TOO_SMALL, "workspace_bytes is less than kvant_decode_workspace says");
  args->schedule = workspace->schedule;
  args->n_seqs = shape.n_seqs;
  args->n_kv_heads = shape.n_kv_heads;
  args->group = shape.group;
  args->softmax_scale_log2 = shape.softmax_scale * 1.44269504F;
  args->sas = shape.sas;
  args->softcap_log2 = shape.score_softcap * 1.44269504F;
  args->skip_below = std::ldexp(shape.skip_threshold, static_cast<int>(kWeightBits));
  args->sealed_pages = lengths.sealed_pages;
  args->tail_tokens = lengths.tail_tokens;
  args->protected_tokens = lengths.protected_tokens;
  args->protected_seq_stride = lengths.protected_seq_stride;
  args->protected_head_stride = lengths.protected_head_stride;
  args->first_tokens = lengths.first_tokens;
  return KVANT_OK;
}

// Describes the codes of `format`: their width, their levels, and the factor of the levels. If a token's
// factor is its largest magnitude, the unit is divided by the number that stands for this magnitude.
void set_levels(const char* format, int d, int* bits, float* unit, float* levels) {
  const FormatDescription& described = *find_known_format(format)->description;
  *bits = described.page.bits;
  *unit = described.unit / described.largest;
  if (described.of_unit_vectors) *unit /= std::sqrt(static_cast<float>(d));
  std::copy(described.levels.begin(), described.levels.end(), levels);
}

void describe_page(const AnyPage& page, float unit, const float* levels, AnyPage* described) {
  *described = page;
  described->unit *= unit;
  std::copy_n(levels, kMaxLevels, described->levels);
}

// Launches a kernel whose setup overlaps the end of the previous kernel.
cudaError_t launch(const void* kernel, int n_ctas, int copying_warps, const Gpu& gpu, int shared_bytes,
                   SeveralArgs& args, cudaStream_t stream) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(n_ctas);
  config.blockDim = dim3((args.consumer_warps + copying_warps) * kLanes);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = gpu.overlap_attributes();
  void* arguments[] = {&args};  // Kernels for one query read a prefix of the arguments.
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

// Sets the code widths of a launch's heads, for a kernel that serves unlike widths.
void set_code_widths(const Shape& shape, const LaunchPlan& plan, DecodeArgs* args) {
  const auto width = [&](const char* const* by_head, const char* of_all, int head) {
    const FormatDescription& described =
        *find_known_format(by_head != nullptr ? by_head[head] : of_all)->description;
    args->trellis_units[described.page.bits] = described.unit;
    return described.page.bits;
  };
  for (const int head : std::span(plan.kv_heads.at).first(plan.kv_heads.n)) {
    const int of_keys = width(shape.head_key_formats, shape.key_format, head);
    const int of_values = width(shape.head_value_formats, shape.value_format, head);
    args->bits_of_heads[head] = static_cast<std::uint8_t>(of_keys | of_values << 4);
  }
}

// Sets the arguments that differ between the launches of a call: heads, and the levels of their codes.
void select_heads(const Shape& shape, const LaunchPlan& plan, int nth, DecodeArgs* args) {
  const DecodeKernel& kernel = *plan.kernel;
  args->heads = plan.kv_heads;
  args->n_queries = plan.n_heads;
  args->follows = nth > 0 ? 1 : 0;
  set_levels(kernel.key_format, shape.head_dim, &args->key_bits, &args->key_unit, args->key_levels);
  set_levels(kernel.value_format, shape.head_dim, &args->value_bits, &args->value_unit, args->value_levels);
  if (plan.has_unlike_heads) set_code_widths(shape, plan, args);
  describe_page(kernel.key_page, args->key_unit, args->key_levels, &args->key_page);
  describe_page(kernel.value_page, args->value_unit, args->value_levels, &args->value_page);
}

// Points the arguments at the query heads and queries of a launch.
void select_queries(const LaunchPlan& plan, SeveralArgs* args) {
  const int q_bytes = bytes_of(args->q_type), out_bytes = bytes_of(args->out_type);
  args->q = static_cast<const std::byte*>(args->q) + plan.first_head * args->q_head_stride * q_bytes;
  args->out = static_cast<std::byte*>(args->out) + plan.first_head * args->out_head_stride * out_bytes;
  if (args->lse != nullptr) args->lse += plan.first_head;
  if (args->sink_logits != nullptr) args->sink_logits += plan.first_head;
  constexpr int kTwoToThe16th = 1 << 16;
  args->queries.first = plan.first_query;
  args->queries.n = plan.n_queries;
  args->queries.sharers_log2 = plan.sharers_log2;
  args->queries.per_head = (kTwoToThe16th + plan.n_heads - 1) / plan.n_heads;
}

// Returns whether CTAs have at most `most` sealed pages each, if all launches of a call are counted. The
// caller's maximum decides. Without a maximum, the function returns false.
bool has_at_most(int most, const Shape& shape, const kvant_decode_lengths& lengths, const Gpu& gpu) {
  const std::int64_t pages = std::int64_t{shape.n_seqs} * shape.n_kv_heads * lengths.max_sealed_pages;
  return lengths.sealed_pages != nullptr && pages > 0 && pages <= std::int64_t{most} * gpu.multiprocessors;
}

// Returns whether CTAs have so few pages that the last pages take much of the time.
bool has_few_pages(const Shape& shape, const kvant_decode_lengths& lengths, const Gpu& gpu) {
  constexpr int kFewPages = 6;  // pages of a CTA; with 15 the launch is slower
  return gpu.has.shares_few_pages && has_at_most(kFewPages, shape, lengths, gpu);
}

// Returns whether the launches on groups of heads should run at the same time, each on some of the SMs. CTAs
// then begin and end once, and not once for each group. With many pages, the launches go on one after another
// on all SMs, because side by side the launches do not end at quite the same time.
bool is_side_by_side(const Shape& shape, const LaunchPlans& plans, const kvant_decode_lengths& lengths,
                     const Gpu& gpu) {
  constexpr int kSideBySidePages = 160;  // pages of a CTA; with 230 the launches are up to 5 % slower
  return plans.differ_by_head(shape) && gpu.has.overlaps_launches &&
         shape.n_kv_heads <= gpu.multiprocessors && has_at_most(kSideBySidePages, shape, lengths, gpu);
}

DecodeKernel for_few_pages(DecodeKernel kernel) {
  const FewPagesKernel& few = kernel.for_few;
  if (few.function == nullptr) return kernel;
  kernel.function = few.function;
  kernel.page_warps = few.page_warps;
  kernel.table_bytes = few.table_bytes;
  kernel.warp_bytes = few.warp_bytes;
  return kernel;
}

// Runs launch `nth` of a call. Launches of one call overlap, so each has its own place for partial results.
cudaError_t launch_plan(const Shape& shape, const LaunchPlan& plan, int nth, bool few_pages,
                        Division division, const Gpu& gpu, SeveralArgs args, cudaStream_t stream) {
  const int n_sms = gpu.multiprocessors;
  const bool several = shape.max_queries > 1 || args.queries.begins != nullptr;
  const DecodeKernel kernel = few_pages && !several
                                  ? for_few_pages(plan.kernel_of_heads())
                                  : for_columns(plan.kernel_of_heads(), gpu, plan.sharers_log2);
  select_heads(shape, plan, nth, &args);
  select_queries(plan, &args);
  args.schedule.starts +=
      ((plan.kv_heads.n - 1) * kDivisions + static_cast<int>(division)) * static_cast<std::ptrdiff_t>(n_sms);
  if (args.follows != 0) args.settled = 0;  // The launch waits only before its own end.
  const std::size_t n_columns = args.queries.n_columns;
  const std::size_t n_slices = n_columns * slices_of_column(shape.head_dim);
  args.schedule.arrivals += static_cast<std::size_t>(nth) * arrival_rows(n_sms) * n_slices;
  const PartialFloats partials(n_sms, n_columns, shape.head_dim);
  args.schedule.partial_sums += nth * partials.both();
  args.schedule.partial_out += nth * partials.both();
  const void* function = several ? kernel.for_several : kernel.function;
  const int shared_bytes = lay_out_shared(kernel, gpu, 1 << plan.sharers_log2, &args);
  const cudaError_t error =
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  const int n_ctas = division == Division::side_by_side
                         ? side_by_side_ctas(n_sms, plan.kv_heads.n, shape.n_kv_heads)
                         : n_sms;
  return error == cudaSuccess
             ? launch(function, n_ctas, kernel.copying_warps, gpu, shared_bytes, args, stream)
             : error;
}

// Returns the plan for half of a launch's query heads, if a kernel for fewer query heads exists. Such a
// kernel takes less time for a page. Otherwise, returns the plan unchanged.
LaunchPlan plan_of_half(const Shape& shape, const LaunchPlan& plan, const Gpu& gpu) {
  LaunchPlan half = plan;
  half.n_heads = (plan.n_heads + 1) / 2;
  half.kernel = find_decode_kernel(gpu, plan.kernel->key_format, plan.kernel->value_format, shape.head_dim,
                                   half.n_heads, false, shape.score_softcap > 0);
  const bool is_narrower = half.kernel != nullptr && half.kernel->max_group < plan.kernel->max_group &&
                           half.n_heads <= half.kernel->max_group;
  return is_narrower && half.kernel_of_heads().for_short.function != nullptr ? half : plan;
}

// Runs all launches of a layer for short sequences with some sealed pages.
cudaError_t launch_short(const Shape& shape, const kvant_decode_lengths& lengths,
                         const kvant_decode_layer& layer, const AppendArgs* new_rows,
                         const LaunchPlans& plans, const Gpu& gpu, const DecodeArgs& of_layer,
                         cudaStream_t stream) {
  const bool halves = halves_are_faster(shape, lengths, gpu);
  cudaError_t error = cudaSuccess;
  for (int i = 0; i < plans.n && error == cudaSuccess; ++i) {
    const LaunchPlan plan = halves ? plan_of_half(shape, plans.of[i], gpu) : plans.of[i];
    ShortSealedArgs args{of_layer};
    args.first_query = plan.first_head;
    args.end_query = plan.first_head + plans.of[i].n_heads;
    select_heads(shape, plan, i, &args);
    error = attend_short_sealed(shape, lengths, layer, new_rows, plan.kernel_of_heads(), gpu, args, stream);
  }
  return error;
}

Reason fault_of(const kvant_decode_layer& layer, const kvant_decode_lengths& lengths, int head_dim,
                const DecodeKernel& kernel) {
  const auto complete = [](const char* format, const void* codebooks) {
    return codebooks != nullptr || !find_known_format(format)->has_constants;
  };
  if (const Reason reason = device::fault_of_attention(layer, lengths, head_dim)) return reason;
  return first_failing({
      {fits_head(layer.q_channels, head_dim) && fits_head(layer.out_channels, head_dim),
       "layer: q_channels and out_channels must be multiples of 16 at heads of 512"},
      {layer.correction == nullptr || channels_or_all(layer.q_channels, head_dim) == head_dim,
       "layer.q_channels must be 0 where a layer has a correction"},
      {layer.layer >= 0, "layer.layer is negative"},
      {lengths.max_tail_tokens >= 0, "lengths.max_tail_tokens is negative"},
      {lengths.max_sealed_pages >= 0, "lengths.max_sealed_pages is negative"},
      {layer.correction == nullptr || lengths.query_begins == nullptr,
       "lengths.query_begins must be null where a layer has a correction"},
      {layer.q_seq_stride % 8 == 0 && layer.q_head_stride % 8 == 0,
       "layer: q_seq_stride and q_head_stride must be multiples of 8"},
      {is_aligned(layer.q, 16), "layer.q must be 16-byte aligned"},
      {lengths.sealed_pages == nullptr || kernel.key_bytes != 0,
       "lengths: there are sealed pages, but the formats are bf16, which has none"},
      {complete(kernel.key_format, layer.key_codebooks), "layer.key_codebooks is null"},
      {complete(kernel.value_format, layer.value_codebooks), "layer.value_codebooks is null"},
  });
}

// Launches the computation of a layer's correction, which the decode kernel then adds.
kvant_status start_correction(const Shape& shape, const Gpu& gpu, const kvant_decode_layer& layer,
                              const Workspace& workspace, cudaStream_t stream, DecodeArgs* args) {
  kvant_correction correction;
  if (shape.corrected == 0)
    return refuse_argument("layer.correction: shape.corrected is 0, and the workspace has no room for it");
  if (const Reason reason = read_correction(layer.correction, &correction)) return refuse_argument(reason);
  if (correction.query_maps == nullptr) return refuse_argument("correction: query_maps is null");
  const CorrectionArgs correction_args{shape.n_seqs,          shape.n_kv_heads,      shape.group,
                                       correction.query_maps, states_of(correction), layer.q,
                                       args->q_type,          layer.q_seq_stride,    layer.q_head_stride,
                                       workspace.features,    workspace.numerator,   workspace.denominator};
  args->correction_numerator = workspace.numerator;
  args->correction_denominator = workspace.denominator;
  args->correction_absolute = correction.absolute;
  // Everything before the correction's last kernel has finished when the decode kernel begins.
  args->settled = 1;
  return status_of(attend_to_states(correction_args, shape.head_dim, gpu, stream));
}

}  // namespace
}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" {

size_t kvant_page_bytes(const char* format, int head_dim) {
  PageFormat page;
  if (format == nullptr || !is_head_dim(head_dim) || !find_page_format(format, head_dim, page)) return 0;
  return round_up_16(static_cast<int>(find_known_format(format)->format->page_bytes(head_dim)));
}

const char* kvant_decode_kernel(const kvant_decode_shape* shape) {
  Shape known;
  LaunchPlans plans;
  Reason reason = read_shape(shape, &known);
  const Gpu gpu = gpu_or_h100();
  if (reason == nullptr) reason = plan_launches(known, gpu, &plans);
  if (reason == nullptr) return name_on(gpu, *plans.of[0].kernel);
  refuse(KVANT_UNSUPPORTED, reason);
  return nullptr;
}

kvant_status kvant_decode_workspace(const kvant_decode_shape* shape, size_t* bytes) {
  Shape known;
  if (const Reason reason = read_shape(shape, &known)) return refuse_argument(reason);
  if (bytes == nullptr) return refuse_argument("kvant_decode_workspace: bytes is null");
  Gpu gpu;
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  Workspace workspace;
  *bytes = lay_out(known, gpu.multiprocessors, nullptr, &workspace);
  return KVANT_OK;
}

kvant_status kvant_decode_schedule(const kvant_decode_shape* shape, const kvant_decode_lengths* of_caller,
                                   void* workspace, size_t workspace_bytes, kvant_stream stream) {
  Shape known;
  kvant_decode_lengths lengths;
  if (const Reason reason = read_shape(shape, &known)) return refuse_argument(reason);
  if (const Reason reason = read_struct(of_caller, &lengths)) return refuse_argument(reason);
  DecodeArgs args{};
  Gpu gpu;
  Workspace parts;
  const kvant_status status = common_args(known, lengths, workspace, workspace_bytes, &args, &gpu, &parts);
  if (status != KVANT_OK) return status;
  // Layers of any formats may follow.
  if (takes_short_kernel(known, lengths, gpu, /*share_pages=*/false)) return KVANT_OK;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (known.max_queries == 1) {  // With several queries, counters detect which parts are done.
    const std::size_t partial_bytes = std::min(parts.partial_bytes, workspace_bytes - parts.partials_at);
    const cudaError_t error =
        cudaMemsetAsync(parts.schedule.partial_sums, kUnwrittenByte, partial_bytes, cuda_stream);
    if (error != cudaSuccess) return status_of(error);
  }
  schedule_kernel<<<known.n_kv_heads, kScheduleThreads, 0, cuda_stream>>>(args, gpu.multiprocessors,
                                                                          static_cast<int>(parts.n_arrivals));
  return launch_status();
}

kvant_status kvant_decode_attention(const kvant_decode_shape* shape,
                                    const kvant_decode_lengths* caller_lengths,
                                    const kvant_decode_layer* caller_layer, void* workspace,
                                    size_t workspace_bytes, kvant_stream stream) {
  Shape known;
  kvant_decode_lengths lengths;
  kvant_decode_layer layer;
  Reason reason = read_shape(shape, &known);
  if (reason == nullptr) reason = read_struct(caller_lengths, &lengths);
  if (reason == nullptr) reason = read_struct(caller_layer, &layer);
  if (reason != nullptr) return refuse_argument(reason);
  SeveralArgs args{};
  Gpu gpu;
  Workspace parts;
  kvant_status status = common_args(known, lengths, workspace, workspace_bytes, &args, &gpu, &parts);
  if (status != KVANT_OK) return status;
  LaunchPlans plans;
  reason = plan_launches(known, gpu, &plans);
  if (reason != nullptr) return refuse(KVANT_UNSUPPORTED, reason);
  for (int i = 0; i < plans.n; ++i) {
    reason = fault_of(layer, lengths, known.head_dim, *plans.of[i].kernel);
    if (reason != nullptr) return refuse_argument(reason);
  }
  reason = read_sealed(layer, known.n_kv_heads, &args.sealed);
  if (reason != nullptr) return refuse_argument(reason);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  AppendArgs new_rows{};
  if (layer.new_rows != nullptr) {
    kvant_new_rows rows;
    reason = read_struct(layer.new_rows, &rows);
    if (reason == nullptr) reason = fault_of_last(rows, known, lengths, layer);
    if (reason != nullptr) return refuse_argument(reason);
    new_rows = append_args(known, layer, rows, &lengths);
  }
  const bool is_short = takes_short_kernel(known, lengths, gpu, plans.share_short_pages());
  const AppendArgs* appended = layer.new_rows == nullptr ? nullptr : &new_rows;
  if (is_short && lengths.sealed_pages == nullptr)
    return attend_short(known, lengths, layer, appended, gpu, cuda_stream);
  if (layer.new_rows != nullptr && !is_short) {
    status = append(new_rows, known.head_dim, gpu, cuda_stream);
    if (status != KVANT_OK) return status;
  }
  args.tail = source_of(layer.tail, layer.layer);
  args.protected_pages = source_of(layer.protected_pages, layer.layer);
  args.sink = layer.sink;
  args.masks = reinterpret_cast<const uint4*>(layer.masks);
  args.mask_seq_stride = layer.mask_seq_stride;
  args.mask_head_stride = layer.mask_head_stride;
  args.key_codebooks = layer.key_codebooks;
  args.value_codebooks = layer.value_codebooks;
  args.key_codebook_stride = layer.key_codebook_stride;
  args.value_codebook_stride = layer.value_codebook_stride;
  args.q = layer.q;
  args.q_type = number_type(layer.q_type);
  args.q_channels = channels_or_all(layer.q_channels, known.head_dim);
  args.q_seq_stride = layer.q_seq_stride;
  args.q_head_stride = layer.q_head_stride;
  args.out = layer.out;
  args.out_type = number_type(layer.out_type);
  args.out_channels = channels_or_all(layer.out_channels, known.head_dim);
  args.out_hadamard = layer.out_hadamard;
  args.out_factors = layer.out_factors;
  args.settled = layer.settled;
  args.reproducible = layer.reproducible;
  args.lse = layer.lse;
  args.sink_logits = layer.sink_logits;
  args.skip_counts = reinterpret_cast<unsigned long long*>(layer.skip_counts);
  args.out_seq_stride = layer.out_seq_stride;
  args.out_head_stride = layer.out_head_stride;
  // Formats with larger pages come first, because a shorter last launch costs less at its end.
  std::stable_sort(plans.of.begin(), plans.of.begin() + plans.n,
                   [](const LaunchPlan& a, const LaunchPlan& b) {
                     return a.key_bytes + a.value_bytes > b.key_bytes + b.value_bytes;
                   });
  if (is_short)
    return status_of(launch_short(known, lengths, layer, appended, plans, gpu, args, cuda_stream));
  args.queries.begins = lengths.query_begins;
  args.queries.of_sequence = known.max_queries;
  args.queries.n_columns = columns_of_partials(known);
  if (layer.correction != nullptr) {
    status = start_correction(known, gpu, layer, parts, cuda_stream, &args);
    if (status != KVANT_OK) return status;
  }
  cudaError_t error = cudaSuccess;
  const bool few_pages = has_few_pages(known, lengths, gpu);
  const bool side_by_side = is_side_by_side(known, plans, lengths, gpu);
  for (int i = 0; i < plans.n && error == cudaSuccess; ++i) {
    const bool is_graded = i > 0 && i + 1 == plans.n && plans.differ_by_head(known);
    const Division division = side_by_side ? Division::side_by_side
                              : is_graded  ? Division::graded
                                           : Division::equal;
    error = launch_plan(known, plans.of[i], i, few_pages, division, gpu, args, cuda_stream);
  }
  return status_of(error);
}

}  // extern "C"
