// DeviceAttention: append, seal and attend at the attention sites of a step whose pages lie on a device.
//
// All rows of a layer are appended first, and pages that the step seals are sealed before anyone attends:
// rows that see them unsealed read them in the tail, where they stay until the step ends. A correction's sums
// are made page by page then, so that each row finds those of the pages that it sees sealed.
//
// To the library's decode kernel rows are sequences (device_rows.cc), those of a slice that see the same
// pages sealed several together: each has the pages sealed that its token's index says (design section 2),
// and a tail that ends with itself. So what a token sees doesn't depend on what else is in its step.
//
// Slices of many tokens of a prompt go to the library's prompt kernel instead, where it knows all that the
// plan asks for (device_prompt.cc): their rows see the same tokens, in half precision or, with prompt=flashq,
// as INT8. A step may have both, in any order.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "attention/device_buffer.h"
#include "attention/device_protector.h"
#include "attention/device_row_tables.h"
#include "attention/device_sums.h"
#include "cache/device_sequence.h"

namespace kvant {

// A transform that the library makes by itself: channels times factors, then the Walsh-Hadamard matrix.
struct LibraryTransform {
  bool hadamard = false;            // not: the identity
  const float* factors = nullptr;   // on the device: [n_kv_heads, head_dim], or null: all are 1
  const float* inverses = nullptr;  // 1 / factors
};

// What a layer's site reads and writes in the device's memory: rows one after another. k and v are yet to be
// transformed by these, q and the output to match; q is overwritten. Without k and v they are those of a
// layer that attends to another one's cache.
struct DeviceRows {
  float* q;        // [n_rows, n_heads, head_dim]
  const float* k;  // [n_rows, n_kv_heads, head_dim]; or null
  const float* v;
  float* out;  // [n_rows, n_heads, head_dim]
  LibraryTransform key_transform, value_transform;
};

class DeviceAttention {
 public:
  explicit DeviceAttention(std::shared_ptr<PageDevice> device);
  DeviceAttention(const DeviceAttention&) = delete;
  DeviceAttention& operator=(const DeviceAttention&) = delete;

  // Tables, lengths and the division of work for a step. An error: memory is exhausted, or the device has
  // failed.
  Status begin(Step& step);
  // Of the step that has begun; each layer once, and once for each layer that shares its cache, later.
  // Failures go to step.fail().
  void run_layer(Step& step, int layer, const DeviceRows& rows);

 private:
  // The layers whose pages are opened, sealed and freed together (cache/layer_groups.h).
  struct GroupTables {
    SliceTables slices;
    IndexBuffer::Part row_token;        // where rows go in the tails
    IndexBuffer::Part due_sealed_page;  // of the table of slices
    IndexBuffer::Part due_first_page;   // of the sequence
    bool frees = false;                 // of any slice: then tables begin behind its first page
  };

  // Slices of prompts one after another, for one call of the prompt kernel, in the layers of a group.
  struct PromptTables {
    int group = 0;
    RowRun run;
    int n_tokens = 0, n_pages = 0;  // in tails, and sealed, of all slices
    int n_kept = 0;                 // that scores may protect, where they are kept out of INT8 tiles
    IndexBuffer::Part query_begins, token_begins, sealed_begins, first_row_tokens;
    IndexBuffer::Part query_pages;  // that rows see sealed
  };

  void list_slices(const Step& step);
  void list_group(const Step& step, int layer);
  void list_runs(const Step& step);
  bool go_the_same_way(const Plan& plan, const StepSlice& a, const StepSlice& b) const;
  bool append(Step& step, const kvant_decode_shape& of_slices, const kvant_decode_layer& at_layer,
              const kvant_new_rows& new_rows);
  kvant_new_rows new_rows(const Plan& plan, int layer, const DeviceRows& rows,
                          const GroupTables& group) const;
  const GroupTables& group_of(const Step& step, int layer) const {
    return groups_[device_pages(step).group_of(layer)];
  }
  // Brings queries into the keys' basis, where nothing is appended.
  bool turn_queries(Step& step, int layer, const DeviceRows& rows);
  // Seals the step's due pages of a layer, and keeps its sinks.
  bool seal(Step& step, int layer, const kvant_decode_shape& of_slices, const kvant_decode_layer& at_layer);
  bool check(Step& step, const char* doing, kvant_status status) const;

  // Rows as sequences (device_rows.cc). False: the step has failed. at_layer has the tables of slices.
  void list_rows(const Step& step, const RowRun& run);
  Status place_rows(const Plan& plan);
  Status divide_rows(const Plan& plan);
  bool takes_rows_together(const Plan& plan, const StepSlice& slice) const;
  Result<std::size_t> workspace_of(const Plan& plan, const RowTables& tables);
  bool attend_rows(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer at_layer,
                   const RowTables& tables);
  // What rows from from_row on find in a layer.
  void point_to_rows(kvant_decode_layer& at_layer, int layer, const DeviceRows& rows, const RowTables& tables,
                     const Geometry& geometry, int from_row) const;

  // Attend in rounds, in a layer that protects by score (device_rows.cc).
  bool attend_run(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer at_layer,
                  const RowRun& run);
  bool attend_and_protect(Step& step, int layer, const DeviceRows& rows, const kvant_decode_layer& at_layer);

  // Prompts in blocks of rows (device_prompt.cc).
  bool takes_prompt_kernel(const StepSlice& slice) const;
  void list_prompt(const Step& step, const RowRun& run);
  void list_prompt_in(const Step& step, const RowRun& run, int layer);
  Result<std::size_t> prompt_workspace(const Plan& plan) const;
  bool attend_prompts(Step& step, int layer, const DeviceRows& rows, const kvant_decode_layer& at_layer);
  bool attend_prompt(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer at_layer,
                     const PromptTables& prompt);
  // With prompt=flashq queries and outputs of a prompt are BF16 in the workspace.
  bool round_queries(Step& step, int layer, const float* q, const RowRun& run);
  bool widen_outputs(Step& step, int layer, const DeviceRows& rows, const RowRun& run);
  // Back from the basis of the values.
  bool turn_outputs_back(Step& step, int layer, const DeviceRows& rows, const RowRun& run);
  bool transform(Step& step, int layer, kvant_transformation t, const RowRun& run);
  char* prompt_memory() const { return workspace_.memory() + rows_workspace_; }

  std::shared_ptr<PageDevice> device_;
  DeviceProtector protector_;
  DeviceSums sums_;
  IndexBuffer indices_;
  // The parts of row_tables_, and behind them what one prompt needs.
  DeviceBuffer workspace_;
  std::shared_ptr<const Plan> sized_for_;                         // that workspace_of_rows_ is for
  std::map<std::pair<int, int>, std::size_t> workspace_of_rows_;  // of n_seqs and max_queries: bytes

  // Of the step.
  int n_rows_ = 0, n_slices_ = 0, max_due_ = 0;
  // Each slice is one token, and nothing is sealed between appending and attention: both are one call.
  bool appends_within_ = false;
  std::vector<int> first_sealed_;  // slices that seal their first page
  IndexBuffer::Part row_slice_;
  IndexBuffer::Part sinks_;
  IndexBuffer::Part due_tail_page_, due_pages_;
  std::vector<GroupTables> groups_;
  std::vector<RowTables> row_tables_;  // of each run and group
  std::size_t rows_workspace_ = 0;     // bytes
  std::vector<PromptTables> prompts_;  // likewise
};

}  // namespace kvant
