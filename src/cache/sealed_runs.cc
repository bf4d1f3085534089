#include "cache/sealed_runs.h"

#include <algorithm>

#include "cache/byte_stream.h"
#include "cache/layer_groups.h"
#include "cache/page_counts.h"
#include "cache/page_layout.h"
#include "format/format.h"

namespace kvant {
namespace {

constexpr int kStartNumbers =
    7;  // The image begins with this many numbers, before the numbers of the groups (sequence_image.cc).
constexpr int kMaxImageTokens = 1 << 30;

// Returns the bytes of the unsealed pages of a group's layers.
std::size_t unsealed_bytes(const Plan& plan, const std::vector<int>& layers, int n_sealed, int length) {
  std::size_t sum = 0;
  for (const int layer : layers) {
    const int d = plan.geometry.dim(layer);
    std::size_t of_side = 0;
    for (int page = n_sealed; page < pages_for(length); ++page)
      of_side += plan.tail->short_page_bytes(d, std::min(kPageTokens, length - page * kPageTokens));
    sum += 2 * of_side * static_cast<std::size_t>(plan.geometry.kv_heads(layer));
  }
  return sum;
}

}  // namespace

std::size_t image_start_bytes(const Plan& plan) {
  return sizeof(std::int32_t) * (kStartNumbers + 2 * layer_groups(plan).size());
}

std::optional<std::vector<SealedRun>> sealed_runs(const Plan& plan, std::span<const std::byte> start,
                                                  std::size_t n_bytes) {
  ByteReader from(start);
  from.skip(sizeof(std::int32_t) * (kStartNumbers - 2));
  const int length = from.read_int(0, kMaxImageTokens);
  from.skip(sizeof(std::int32_t));
  std::vector<SealedRun> runs;
  std::size_t from_first_run = 0;  // bytes from the first run's beginning
  for (const LayersOfEntry& group : layer_groups(plan)) {
    const int n_sealed = from.read_int(0, length / kPageTokens), first = from.read_int(0, n_sealed);
    SealedRun run{group.layers, from_first_run, PageLayout(plan, group.layers).entry_bytes(), first,
                  n_sealed - first};
    if (!from.ok() || (run.n_pages > 0 && run.entry_bytes > n_bytes / static_cast<std::size_t>(run.n_pages)))
      return std::nullopt;
    from_first_run += run.bytes() + unsealed_bytes(plan, group.layers, n_sealed, length);
    runs.push_back(std::move(run));
  }
  if (!from.ok() || from_first_run > n_bytes - std::min(n_bytes, image_start_bytes(plan)))
    return std::nullopt;
  for (SealedRun& run : runs) run.first += n_bytes - from_first_run;
  return runs;
}

}  // namespace kvant
