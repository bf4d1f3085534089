// Makes the inputs of a step's calls from lengths that lie on the device (kvant_plan_step). A CTA plans a
// request. All threads of the CTA compute the same numbers, one thread writes the numbers, and all threads
// write rows and tables.
#pragma once

#include <cstdint>

#include "cache/step_parts.h"

namespace kvant::cuda {

inline constexpr int kPlanThreads = 128;

// Holds a kvant_step_table in the form that the kernel takes.
struct StepTable {
  const std::int32_t* blocks;
  std::int64_t block_stride;
  const std::int32_t* places;  // may be null
  int ring, n_entries, units, n_pages;
  int pages_of_block, page_units;
  std::int32_t* table;  // null if the caller does not need it
};

// Holds a kvant_step in the form that the kernel takes.
struct StepArgs {
  int n_requests, max_new_tokens, n_parts, n_rows;
  StepRules rules;
  int sink;
  const std::int32_t *seq_lens, *query_begins;
  const std::int64_t* slots;
  const std::int32_t* sealed_before;
  std::int32_t *sealed_pages, *tail_tokens, *protected_tokens, *first_tokens, *part_begins;
  std::int32_t *row_seq, *row_tail_token;
  std::int32_t *due_tail_page, *due_sealed_page, *n_due_pages, *sealed_after;
  StepTable sealed, tail, protected_pages;
};

// Writes the page table of a sequence that is part of a request. The table has n pages from page first_page
// of the request on.
__device__ inline void write_table(const StepTable& to, int request, int seq, int first_page, int n) {
  if (to.table == nullptr) return;
  n = min(n, to.n_pages);
  const std::int32_t* blocks = to.blocks + request * to.block_stride;
  std::int32_t* row = to.table + static_cast<std::int64_t>(seq) * to.n_entries * to.n_pages;
  for (int i = static_cast<int>(threadIdx.x); i < n * to.n_entries; i += kPlanThreads) {
    const int entry = i / n;
    const int page = first_page + i % n;
    const int in_turn = to.ring > 0 ? page % to.ring : page;
    const int index = in_turn / to.pages_of_block * to.n_entries + entry;
    const int place = to.places == nullptr ? index : to.places[2 * index];
    const int offset =
        to.places == nullptr ? in_turn % to.pages_of_block * to.page_units : to.places[2 * index + 1];
    row[entry * to.n_pages + i % n] = blocks[place] * to.units + offset;
  }
}

// Describes a request in the form that the plan uses.
struct PlannedRequest {
  int number;
  int first_row;
  // For padding, tokens.n_tokens is 0.
  StepTokens tokens;
};
// Reads the lengths of a request and finds whether the request is padding.

__device__ inline PlannedRequest planned_request(const StepArgs& args, int number) {
  PlannedRequest request{number, number * args.max_new_tokens, {args.seq_lens[number], args.max_new_tokens}};
  StepTokens& tokens = request.tokens;
  if (args.query_begins != nullptr) {
    request.first_row = args.query_begins[number];
    tokens.n_new = min(args.query_begins[number + 1] - request.first_row, args.max_new_tokens);
  }
  const bool has_place =
      args.slots == nullptr || tokens.n_new == 0 || args.slots[request.first_row + tokens.n_new - 1] >= 0;
  if (!has_place || tokens.n_new == 0) tokens.n_tokens = 0;
  if (tokens.n_tokens > 0)
    tokens.n_sealed = args.sealed_before == nullptr ? sealed_pages(tokens.first_new(), args.rules.window)
                                                    : args.sealed_before[number];
  return request;
}

// Writes the numbers, rows and tables of part `nth` of a request. All threads of the CTA must call this
// function.
__device__ inline void write_part(const StepArgs& args, const PlannedRequest& request, int nth) {
  const StepTokens& tokens = request.tokens;
  const StepPart part = step_part(args.rules, tokens, nth);
  const int seq = request.number * args.n_parts + nth;
  const bool has_sink = args.sink > 0 && part.sealed_pages > 0;
  if (threadIdx.x == 0) {
    if (args.sealed_pages != nullptr) args.sealed_pages[seq] = part.sealed_pages;
    if (args.tail_tokens != nullptr) args.tail_tokens[seq] = part.tail_tokens;
    if (args.protected_tokens != nullptr) args.protected_tokens[seq] = has_sink ? args.sink : 0;
    if (args.first_tokens != nullptr) args.first_tokens[seq] = part.hidden_tokens;
    if (args.part_begins != nullptr) args.part_begins[seq] = request.first_row + part.first;
  }
  for (int i = static_cast<int>(threadIdx.x); i < part.n && args.row_seq != nullptr; i += kPlanThreads) {
    args.row_seq[request.first_row + part.first + i] = seq;
    args.row_tail_token[request.first_row + part.first + i] = max(part.tail_tokens - (part.n - i), -1);
  }
  if (tokens.n_tokens == 0 || part.n == 0) return;
  write_table(args.sealed, request.number, seq, part.first_page, part.sealed_pages);
  // The table also covers tokens after this part, because due pages may contain these tokens.
  const int n_tail_pages = pages_for(tokens.n_tokens) - part.first_tail_page();
  write_table(args.tail, request.number, seq, part.first_tail_page(), n_tail_pages);
  write_table(args.protected_pages, request.number, seq, 0, 1);
}

// Writes the due pages of a request.
__device__ inline void write_due(const StepArgs& args, const PlannedRequest& request) {
  const int i = request.number;
  if (threadIdx.x > 0) return;
  const DuePages due = due_pages(args.rules, request.tokens);
  const int first_tail_page = step_part(args.rules, request.tokens, 0).first_tail_page();
  const bool is_due = request.tokens.n_tokens > 0 && due.n > 0;
  if (args.due_tail_page != nullptr) args.due_tail_page[i] = is_due ? due.first - first_tail_page : -1;
  if (args.due_sealed_page != nullptr) args.due_sealed_page[i] = is_due ? due.first : 0;
  if (args.n_due_pages != nullptr) args.n_due_pages[i] = is_due ? due.n : 0;
  if (args.sealed_after == nullptr) return;
  const bool is_padding = request.tokens.n_tokens == 0;
  const int before = args.sealed_before == nullptr ? 0 : args.sealed_before[i];
  args.sealed_after[i] = is_padding ? before : due.sealed_after;
}

// Plans the CTA's request. The last CTA also writes the numbers that follow the numbers of all requests.
__device__ inline void plan_request(const StepArgs& args) {
  const PlannedRequest request = planned_request(args, static_cast<int>(blockIdx.x));
  for (int nth = 0; nth < args.n_parts; ++nth) write_part(args, request, nth);
  // All threads must have read sealed_before, because sealed_after may be the same memory.
  __syncthreads();
  write_due(args, request);
  if (request.number + 1 < args.n_requests) return;
  const int end = args.query_begins == nullptr ? args.n_rows : args.query_begins[args.n_requests];
  if (threadIdx.x == 0 && args.part_begins != nullptr) args.part_begins[args.n_requests * args.n_parts] = end;
  if (args.row_seq == nullptr) return;
  for (int row = end + static_cast<int>(threadIdx.x); row < args.n_rows; row += kPlanThreads) {
    args.row_seq[row] = 0;
    args.row_tail_token[row] = -1;
  }
}

__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const __grid_constant__ StepArgs args) {
  plan_request(args);
  // If the step has no schedule and pages are settled, its attention kernel may follow at once. That kernel
  // begins when all CTAs here have ended, and then reads lengths and tables.
  __threadfence();
}

}  // namespace kvant::cuda
