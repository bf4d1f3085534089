// DeviceAttention: append, seal and attend at the attention sites of a step whose pages lie on a device.
//
// Every row of a step is a sequence of its own to the library: it has the pages sealed that its token's index
// says (design section 2), and a tail that ends with itself. So prompts and decoded tokens are one call a
// layer, and what a token sees doesn't depend on how its text was cut. All rows of a layer are appended
// first, and pages that the step seals are sealed before anyone attends: rows that see them unsealed read
// them in the tail, where they stay until the step ends. A correction's sums are made page by page then, so
// that each row finds those of the pages that it sees sealed.
//
// Steps of which every slice is many tokens of a prompt go to the library's prompt kernel instead, where it
// knows all that the plan asks for (device_prompt.cc): rows see the same tokens, in half precision or, with
// prompt=flashq, as INT8.
#pragma once

#include <memory>
#include <vector>

#include "attention/device_protector.h"
#include "cache/cache.h"
#include "cache/device_page_store.h"

namespace kvant {

// Of a row: the tokens that it sees.
struct RowSight {
  int sealed_pages = 0;
  int tail_tokens = 0;  // behind these pages, its own included
};
// Of the tokens of a slice, in order. n_sealed: pages that are sealed when the step begins.
std::vector<RowSight> row_sights(int first_token, const StepSlice& slice, int n_sealed, int window,
                                 int prefill);

// What a window of so many tokens leaves of a row's sight, the last token of which is `token`.
struct WindowedSight {
  int first_page = 0;                     // of the sequence
  int sealed_pages = 0, tail_tokens = 0;  // from there on
  int hidden_tokens = 0;                  // of that page
};
WindowedSight within_window(const RowSight& sight, int token, int sliding_window);

// A transform that the library makes by itself: channels times factors, then the Walsh-Hadamard matrix.
struct LibraryTransform {
  bool hadamard = false;            // not: the identity
  const float* factors = nullptr;   // on the device: [n_kv_heads, head_dim], or null: all are 1
  const float* inverses = nullptr;  // 1 / factors
};

// What a layer's site reads and writes in the device's memory: rows one after another. k and v are yet to be
// transformed by these, q and the output to match; q is overwritten.
struct DeviceRows {
  float* q;        // [n_rows, n_heads, head_dim]
  const float* k;  // [n_rows, n_kv_heads, head_dim]
  const float* v;
  float* out;  // [n_rows, n_heads, head_dim]
  LibraryTransform key_transform, value_transform;
};

class DeviceAttention {
 public:
  explicit DeviceAttention(std::shared_ptr<PageDevice> device);
  ~DeviceAttention();
  DeviceAttention(const DeviceAttention&) = delete;
  DeviceAttention& operator=(const DeviceAttention&) = delete;

  // Tables, lengths and the division of work for a step. An error: memory is exhausted, or the device has
  // failed.
  Status begin(Step& step);
  // Of the step that has begun; each layer once. Failures go to step.fail().
  void run_layer(Step& step, int layer, const DeviceRows& rows);

 private:
  struct RowTables;
  // Numbers for the library, gathered here and sent at once: at(part) is where a part lies on the device.
  struct Part {
    std::size_t first = 0;
  };
  Part add(const std::vector<std::int32_t>& numbers);
  const std::int32_t* at(Part part) const { return static_cast<const std::int32_t*>(memory_) + part.first; }
  Status make_room(void*& memory, std::size_t& held, std::size_t bytes);
  void list_slices(const Step& step);
  void list_sinks(const Step& step);
  void list_rows(const Step& step);
  void list_window(const Step& step, int sliding_window);
  Status begin_rows(const Step& step);
  Status size_workspace(const Step& step);
  // Attention at a site, of rows or of prompts; at_layer has the tables of slices. False: the step has
  // failed.
  bool attend_rows(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer& at_layer);
  // The same of a run of rows, of a layer that protects by score.
  bool attend_run(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer at_layer,
                  const RowRun& run);
  bool attend_and_protect(Step& step, int layer, const DeviceRows& rows, const kvant_decode_layer& at_layer);
  // What rows from first_row on find in a layer's tables.
  void point_to_rows(kvant_decode_layer& at_layer, const DeviceRows& rows, const RowTables& tables,
                     const Geometry& geometry, int first_row) const;
  // Whether the step's attention is the library's prompt kernel's.
  bool takes_prompt_kernel(const Step& step) const;
  void list_prompt(const Step& step);
  Status begin_prompt(const Step& step);
  kvant_prompt_shape prompt_shape(const Plan& plan, int layer) const;
  bool attend_prompt(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer& at_layer);
  // Of prompts in INT8, whose queries and outputs are BF16 in the workspace.
  bool round_queries(Step& step, const float* q);
  bool widen_outputs(Step& step, const DeviceRows& rows);
  // Back from the basis of the values.
  bool turn_outputs_back(Step& step, const DeviceRows& rows);
  bool transform(Step& step, kvant_transformation t);
  void list_sums(const Step& step);
  // Of rows, in layers with a window of so many tokens, or none.
  const RowTables& tables_of(int sliding_window) const;
  kvant_decode_lengths lengths(const RowTables& tables, int first_row = 0) const;
  // Seals the step's due pages of a layer.
  bool seal(Step& step, const kvant_decode_shape& of_slices, const kvant_decode_layer& at_layer);
  bool seal_and_sum(Step& step, int layer, const kvant_decode_shape& of_slices,
                    const kvant_decode_layer& at_layer);
  // The sums of a corrected layer as rows find them, or slices leave them once their nth page is sealed.
  kvant_correction correction_of_rows(const Step& step, int layer) const;
  kvant_correction correction_of_page(const Step& step, int layer, int nth) const;
  // The sums of a layer in an entry, and those of a slice in sums_ when so many of its pages are sealed.
  char* layer_sums(const Step& step, int layer, PageEntry sums) const;
  char* sums_after(const Step& step, int slice, int n_pages) const;
  bool check(Step& step, const char* doing, kvant_status status) const;

  std::shared_ptr<PageDevice> device_;
  bool has_half_prompts_;
  DeviceProtector protector_;
  void *memory_ = nullptr, *workspace_ = nullptr, *sums_ = nullptr;
  std::size_t memory_bytes_ = 0, workspace_bytes_ = 0, sums_bytes_ = 0;
  std::vector<std::int32_t> numbers_;

  // Of the step.
  int n_rows_ = 0, n_slices_ = 0, max_due_ = 0, max_sealed_ = 0;
  bool protects_ = false;          // any row's sink
  // Each slice is one token, and nothing is sealed between appending and attention: both are one call.
  bool appends_within_ = false;
  std::vector<int> first_sealed_;  // slices that seal their first page
  Part row_slice_, row_token_;     // where rows go in the tails
  Part slice_tail_, slice_sealed_, due_tail_page_, due_sealed_page_, due_pages_;
  std::int64_t slice_tail_width_ = 0, slice_sealed_width_ = 0;
  // What rows see in the layers of one sliding window: lengths and tables by row, and where in the workspace
  // their work is divided.
  struct RowTables {
    int sliding_window = 0;
    Part sealed, tail, n_protected, hidden;
    Part row_tail, row_sealed;
    std::int64_t row_tail_stride = 0, row_sealed_stride = 0;
    bool has_sealed = false;
    int max_tail = 0;  // tokens
    std::size_t workspace = 0;
  };
  std::vector<RowTables> row_tables_;
  std::size_t workspace_of_tables_ = 0;
  std::shared_ptr<const Plan> sized_for_;  // what it is for
  int sized_rows_ = 0;
  Part sealed_;  // of prompts: pages that rows see sealed
  Part sinks_;   // tables, by row, or by slice of prompts
  // Of a step of prompts.
  bool is_prompt_ = false;
  int n_prompt_tokens_ = 0, n_prompt_pages_ = 0;  // in tails, and sealed, of all slices
  Part query_begins_, token_begins_, sealed_begins_, first_row_tokens_;
  // Of a corrected plan. Where a step seals, one layer's sums are worked on in sums_: of each slice those
  // that it has, then those after each of its pages.
  std::vector<int> first_sums_;  // of a slice, in units of a layer's sums
  std::vector<int> due_;         // pages that a slice seals
  Part row_sums_;                // where each row's sums are: in sums_, or in the store
  struct PageSums {
    Part tail_page, sealed_page, sums;  // by slice; tail_page -1: it has no such page
  };
  std::vector<PageSums> page_sums_;  // of the nth page that slices seal
};

}  // namespace kvant
