#include <cuda_runtime.h>

#include <algorithm>

#include "device/caller_faults.h"
#include "device/cuda/common/caller_structs.h"
#include "device/cuda/common/gpu.h"
#include "device/cuda/step/plan_kernel.cuh"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

Reason read_table(const kvant_step_table* from, const device::StepTableRule& rule, StepTable* to) {
  *to = {};
  if (from == nullptr) return nullptr;
  kvant_step_table table;
  if (const Reason reason = read_struct(from, &table)) return reason;
  *to = {table.blocks,     table.block_stride, table.places,  table.ring,
         table.n_entries,  table.units,        table.n_pages, std::max(table.pages_of_block, 1),
         table.page_units, table.table};
  return device::fault_of_table(table, rule);
}

Reason read_tables(const kvant_step& step, StepArgs* args) {
  Reason reason = read_table(step.sealed, device::rule_of_sealed(step), &args->sealed);
  if (reason == nullptr) reason = read_table(step.tail, device::rule_of_tail(step), &args->tail);
  if (reason == nullptr)
    reason = read_table(step.protected_pages, device::rule_of_protected(), &args->protected_pages);
  return reason;
}

}  // namespace
}  // namespace kvant::cuda

using namespace kvant::cuda;

extern "C" {

kvant_status kvant_plan_step(const kvant_step* caller_step, kvant_stream stream) {
  kvant_step step;
  if (const Reason reason = read_struct(caller_step, &step)) return refuse_argument(reason);
  if (const Reason reason = kvant::device::fault_of_step(step)) return refuse_argument(reason);
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
