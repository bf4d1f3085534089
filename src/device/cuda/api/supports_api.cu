// Implements kvant_supports, which says for a whole plan what the calls of the other files would refuse.
#include "device/cuda/common/caller_pages.h"
#include "device/cuda/common/caller_structs.h"
#include "device/cuda/common/gpu.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/correction/correction.h"
#include "device/cuda/page/page_format.h"
#include "device/cuda/prompt/launch.h"
#include "device/cuda/seal/encode_args.h"
#include "device/support.h"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

constexpr int kWidestCommonHead = 256;  // Wider heads lack some kernels.

bool encodes_as(const char* format, int head_dim, Encoding wanted) {
  PageFormat page;
  Encoding encoding;
  return find_page_format(format, head_dim, page) && find_encoding_of(page, &encoding) && encoding == wanted;
}

Reason without_correction(const kvant_decode_shape& shape, const HeadGroups& groups) {
  for (int i = 0; i < groups.n; ++i) {
    if (!encodes_as(groups.of[i].key_format, shape.head_dim, Encoding::channel_grid) ||
        !encodes_as(groups.of[i].value_format, shape.head_dim, Encoding::token_grid))
      return "KVANT_CORRECTION: a correction is there for keys of ch formats with values of tok formats";
  }
  return can_be_corrected(shape.head_dim) && shape.group <= kPaddedGroup
             ? nullptr
             : "KVANT_CORRECTION: a correction needs heads of 64 or 128 and at most 8 query heads of a KV "
               "head";
}

Reason without_sealing(const HeadGroups& groups, int (*can_seal)(const char*), Reason otherwise) {
  for (int i = 0; i < groups.n; ++i) {
    if (can_seal(groups.of[i].key_format) == 0 || can_seal(groups.of[i].value_format) == 0) return otherwise;
  }
  return nullptr;
}

Reason reason_without(kvant_feature feature, const kvant_decode_shape& shape, const HeadGroups& groups) {
  switch (feature) {
    case KVANT_SEALING:
      return without_sealing(groups, kvant_can_seal, "KVANT_SEALING: no kernel writes pages of a format");
    case KVANT_SEALED_ROWS:
      return without_sealing(groups, kvant_can_seal_rows,
                             "KVANT_SEALED_ROWS: pages of a format are made of the tail alone");
    case KVANT_PROTECTION:
      return shape.head_dim <= kWidestCommonHead
                 ? nullptr
                 : "KVANT_PROTECTION: tokens are weighed in heads of up to 256 channels";
    case KVANT_CORRECTION:
      return without_correction(shape, groups);
    case KVANT_INTEGER_PROMPTS:
      return shape.head_dim <= kWidestCommonHead
                 ? nullptr
                 : "KVANT_INTEGER_PROMPTS: prompts in integers are there for heads of up to 256 channels";
    case KVANT_HALF_PROMPTS:
      // Tiles of smaller heads fit into the shared memory of every GPU.
      return shape.head_dim <= kWidestCommonHead || mma_prompt_sizes<512>(gpu_or_h100()).block_rows > 0
                 ? nullptr
                 : "KVANT_HALF_PROMPTS: this GPU has too little shared memory for prompts of heads of 512";
    case KVANT_EVICTION:
      return device::kNoEviction;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" kvant_status kvant_supports(const kvant_plan* from, kvant_limits* limits) {
  kvant_plan plan;
  Reason fault = read_struct(from, &plan);
  if (fault == nullptr) fault = kvant::device::fault_of_plan(plan);
  kvant_decode_shape shape;
  if (fault == nullptr) fault = read_struct(plan.shape, &shape);
  kvant_limits most;
  if (fault == nullptr && limits != nullptr) fault = read_struct(limits, &most);
  if (fault != nullptr) return refuse_argument(fault);
  HeadGroups groups;
  Reason of_shape = group_heads(shape, &groups);
  if (of_shape == nullptr && kvant_decode_kernel(&shape) == nullptr) of_shape = kvant_last_error();
  most = {sizeof most, kMaxKvHeads, kMaxGroup, kMaxQueries, kMaxHeadGroups, 0, 0};
  const Reason reason = kvant::device::judge_plan(
      plan, shape, of_shape, [&](kvant_feature feature) { return reason_without(feature, shape, groups); },
      most);
  if (limits != nullptr) *limits = most;
  return reason == nullptr ? KVANT_OK : refuse(KVANT_UNSUPPORTED, reason);
}
