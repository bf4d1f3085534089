#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda/common/caller_structs.h"
#include "device/cuda/common/gpu.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/step/plan_kernel.cuh"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

// Keeps token numbers, and the table entries of one row, within int32.
constexpr int kMostTokens = 1 << 30;

Reason fault_of(const kvant_step& step) {
  const int max_queries = std::max(step.max_queries, 1);
  return first_failing({
      {step.n_requests > 0, "step.n_requests must be at least 1"},
      {step.max_new_tokens > 0 && step.max_new_tokens <= kMaxNewTokens,
       "step.max_new_tokens must be 1 to 128"},
      {step.max_queries >= 0 && step.max_queries <= kMaxQueries, "step.max_queries must be 0 to 8"},
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
      {step.sink >= 0 && step.sink <= kPageTokens, "step.sink must be 0 to 128"},
      {step.sink == 0 || step.sliding_window == 0, "step.sink must be 0 with a sliding_window"},
      {step.seq_lens != nullptr, "step.seq_lens is null"},
      {step.first_tokens != nullptr || step.sliding_window == 0,
       "step.first_tokens is null, but there is a sliding_window"},
      {(step.row_seq == nullptr) == (step.row_tail_token == nullptr),
       "step: row_seq and row_tail_token must both be wanted, or neither"},
      {(step.due_tail_page == nullptr) == (step.due_sealed_page == nullptr),
       "step: due_tail_page and due_sealed_page must both be wanted, or neither"},
  });
}

// Holds the reasons for refusing a table, for each kind of table.
struct TableReasons {
  Reason null, places, counts, blocks, width;
};
constexpr TableReasons kSealedReasons{
    "step.sealed: blocks or table is null", "step.sealed.places must be null without a ring",
    "step.sealed: n_entries, units and n_pages must be at least 1, and ring not negative",
    "step.sealed: pages_of_block must not be negative, and more than 1 want page_units and no places",
    "step.sealed: n_pages, and a ring, must hold what sliding_window reaches"};
constexpr TableReasons kTailReasons{
    "step.tail: blocks or table is null", "step.tail.places must be null without a ring",
    "step.tail: n_entries, units and n_pages must be at least 1, and ring not negative",
    "step.tail: pages_of_block must not be negative, and more than 1 want page_units and no places",
    "step.tail: n_pages must hold window + 128 tokens, a ring window + max_new_tokens + 127"};
constexpr TableReasons kProtectedReasons{
    "step.protected_pages: blocks or table is null",
    "step.protected_pages.places must be null without a ring",
    "step.protected_pages: n_entries, units and n_pages must be at least 1, and ring not negative",
    "step.protected_pages: pages_of_block must not be negative, and more than 1 want page_units and no "
    "places",
    "step.protected_pages.n_pages must be at least 1"};

// Holds the least number of pages that a table must have.
struct LeastPages {
  int of_row, of_ring;
};

Reason read_table(const kvant_step_table* from, const TableReasons& reasons, const LeastPages& least,
                  StepTable* to) {
  *to = {};
  if (from == nullptr) return nullptr;
  kvant_step_table table;
  if (const Reason reason = read_struct(from, &table)) return reason;
  *to = {table.blocks,     table.block_stride, table.places,  table.ring,
         table.n_entries,  table.units,        table.n_pages, std::max(table.pages_of_block, 1),
         table.page_units, table.table};
  return first_failing(
      {{table.blocks != nullptr && table.table != nullptr, reasons.null},
       {table.ring > 0 || table.places == nullptr, reasons.places},
       {table.ring >= 0 && table.n_entries > 0 && table.units > 0 && table.n_pages > 0, reasons.counts},
       {table.pages_of_block >= 0 &&
            (table.pages_of_block <= 1 || (table.places == nullptr && table.page_units > 0)),
        reasons.blocks},
       {table.n_pages >= least.of_row && (table.ring == 0 || table.ring >= least.of_ring), reasons.width}});
}

Reason read_tables(const kvant_step& step, StepArgs* args) {
  const int reached = std::max(pages_for(step.sliding_window), 1);  // sealed pages in a sliding window
  // All tokens of a part see an equal number of sealed pages, so its last token is at most in the page after
  // the window.
  const LeastPages of_tail{pages_for(step.window + kPageTokens),
                           tail_pages_of(step.max_new_tokens, step.window)};
  Reason reason = read_table(step.sealed, kSealedReasons, {reached, reached}, &args->sealed);
  if (reason == nullptr) reason = read_table(step.tail, kTailReasons, of_tail, &args->tail);
  if (reason == nullptr)
    reason = read_table(step.protected_pages, kProtectedReasons, {1, 1}, &args->protected_pages);
  return reason;
}

}  // namespace
}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" {

kvant_status kvant_plan_step(const kvant_step* caller_step, kvant_stream stream) {
  kvant_step step;
  if (const Reason reason = read_struct(caller_step, &step)) return refuse_argument(reason);
  if (const Reason reason = fault_of(step)) return refuse_argument(reason);
  StepArgs args{.n_requests = step.n_requests,
                .max_new_tokens = step.max_new_tokens,
                .n_parts = step.n_seqs / step.n_requests,
                .n_rows = step.n_rows,
                .rules = {step.window, step.sliding_window, std::max(step.max_queries, 1)},
                .sink = step.sink,
                .seq_lens = step.seq_lens,
                .query_begins = step.query_begins,
                .slots = step.slots,
                .sealed_before = step.sealed_before,
                .sealed_pages = step.sealed_pages,
                .tail_tokens = step.tail_tokens,
                .protected_tokens = step.protected_tokens,
                .first_tokens = step.first_tokens,
                .part_begins = step.part_begins,
                .row_seq = step.row_seq,
                .row_tail_token = step.row_tail_token,
                .due_tail_page = step.due_tail_page,
                .due_sealed_page = step.due_sealed_page,
                .n_due_pages = step.n_due_pages,
                .sealed_after = step.sealed_after,
                .sealed = {},
                .tail = {},
                .protected_pages = {}};
  if (const Reason reason = read_tables(step, &args)) return refuse_argument(reason);
  Gpu gpu;
  if (const kvant_status status = find_gpu(&gpu); status != KVANT_OK) return status;
  plan_kernel<<<args.n_requests, kPlanThreads, 0, static_cast<cudaStream_t>(stream)>>>(args);
  return launch_status();
}

}  // extern "C"
