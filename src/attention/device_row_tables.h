// RowTables: what rows of a step find on a device when they are sequences to the library's decode kernel,
// each of its own or up to 8 neighbours that see the same pages sealed: lengths and page tables by sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/device_buffer.h"
#include "cache/cache.h"
#include "cache/device_layout.h"
#include "cache/page_counts.h"
#include "kvant/kvant.h"

namespace kvant {

// Rows one after another: all of some slices, or some of one.
struct RowRun {
  int first_slice = 0, n_slices = 0;
  int first_row = 0, n_rows = 0;  // of the step

  bool one_each() const { return n_rows == n_slices; }
};

// What slices find in the layers of a group: tables of the pages that each has or will have when the step
// ends, from the first that no sliding window has freed, and the entry of its sink.
struct SliceTables {
  int layer = 0;                   // the group's first
  IndexBuffer::Part tail, sealed;  // [n_slices, width]
  std::int64_t tail_width = 1, sealed_width = 1;
  IndexBuffer::Part sinks;
};

// Of the rows of a run, in the layers of a group.
struct RowTables {
  int group = 0;
  int first_row = 0, n_seqs = 0;
  int max_queries = 1;             // rows of a sequence
  IndexBuffer::Part query_begins;  // [n_seqs + 1], from the first row on; where max_queries is more than 1
  int sliding_window = 0;          // tokens; 0: none
  IndexBuffer::Part sealed_pages, tail_tokens;
  IndexBuffer::Part n_protected;  // of the sink; without a window
  IndexBuffer::Part hidden;       // tokens before the last row's window, from the first page on; with one
  IndexBuffer::Part tail, sealed, sinks;
  std::int64_t tail_stride = 0, sealed_stride = 0;
  bool has_protected = false;
  int max_tail = 0;    // tokens
  int max_sealed = 0;  // pages

  // Where the division of their work lies, and partial results: in the step's workspace.
  std::size_t workspace = 0, workspace_bytes = 0;

  // Of a layer.
  kvant_decode_shape shape(const LayerShape& formats, const Plan& plan) const;
  // The same from a row of the step on, where rows are sequences of their own.
  kvant_decode_lengths lengths(const IndexBuffer& indices, int from_row) const;
  void add_to(kvant_decode_layer& at_layer, const IndexBuffer& indices, int from_row) const;
};

// together: rows that are a sequence, at most.
RowTables list_row_tables(const Step& step, const RowRun& run, int together, const SliceTables& slices,
                          IndexBuffer& indices);

// Returns what each token of a slice sees, in order. n_sealed: pages that are sealed when the step begins.
std::vector<VisibleTokens> visible_tokens(int first_token, const StepSlice& slice, int n_sealed, int window,
                                          int prefill);
// Returns the same for a slice of a step in a layer, where the pages lie on a device.
std::vector<VisibleTokens> visible_tokens(const Step& step, int slice, int layer);

}  // namespace kvant
