// RowTables holds the lengths and page tables of rows that the library's decode kernel takes as sequences. A
// sequence is one row, or up to 8 neighbouring rows that see equal pages sealed.
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

// Describes consecutive rows of a step: all rows of some slices, or some rows of one slice.
struct RowRun {
  int first_slice = 0, n_slices = 0;
  int first_row = 0, n_rows = 0;  // rows of the step

  bool one_each() const { return n_rows == n_slices; }
};

// Holds the tables of slices in the layers of a group. The tables of a slice name its pages, including those
// that the step makes, from the first page that no sliding window has freed. A slice also names the entry of
// its sink.
struct SliceTables {
  int layer = 0;                   // The first layer of the group.
  IndexBuffer::Part tail, sealed;  // [n_slices, width]
  std::int64_t tail_width = 1, sealed_width = 1;
  IndexBuffer::Part sinks;
};

// Holds the tables of the rows of a run, in the layers of a group.
struct RowTables {
  int group = 0;
  int first_row = 0, n_seqs = 0;
  int max_queries = 1;             // maximum rows of a sequence
  IndexBuffer::Part query_begins;  // [n_seqs + 1], from the first row on; only if max_queries > 1
  int sliding_window = 0;          // tokens; 0 for no window
  IndexBuffer::Part sealed_pages, tail_tokens;
  IndexBuffer::Part n_protected;  // Protected tokens of the sink, in layers without a window.
  IndexBuffer::Part
      hidden;  // In layers with a window: tokens of the first page that lie before the last row's window.
  IndexBuffer::Part tail, sealed, sinks;
  std::int64_t tail_stride = 0, sealed_stride = 0;
  bool has_protected = false;
  int max_tail = 0;    // tokens
  int max_sealed = 0;  // pages

  // This part of the step's workspace holds the division of work and partial results.
  std::size_t workspace = 0, workspace_bytes = 0;

  // Returns the shape of a layer's call.
  kvant_decode_shape shape(const LayerShape& formats, const Plan& plan) const;
  // Both functions serve the step's rows from from_row on. lengths() returns the lengths, and add_to() adds
  // the tables. If from_row is not the first row, each row must be a sequence of its own.
  kvant_decode_lengths lengths(const IndexBuffer& indices, int from_row) const;
  void add_to(kvant_decode_layer& at_layer, const IndexBuffer& indices, int from_row) const;
};

// `together` is the maximum number of rows of a sequence.
RowTables list_row_tables(const Step& step, const RowRun& run, int together, const SliceTables& slices,
                          IndexBuffer& indices);

// Returns what each token of a slice sees, in order. n_sealed pages are sealed when the step begins.
std::vector<VisibleTokens> visible_tokens(int first_token, const StepSlice& slice, int n_sealed, int window,
                                          int prefill);
// Returns what each token of a step's slice sees in a layer whose pages lie on a device.
std::vector<VisibleTokens> visible_tokens(const Step& step, int slice, int layer);

}  // namespace kvant
