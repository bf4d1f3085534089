// DeviceAttention appends, seals and attends in all layers of a step whose pages lie on a device.
//
// All rows of a layer are appended first. The step's due pages are then sealed before any row attends, except
// in layers that protect by score (device_protector.h). A row that sees such a page unsealed reads it in the
// tail, where pages stay until the step ends. A correction's sums are made page by page, so each row finds
// the sums of exactly the pages that it sees sealed.
//
// The library's decode kernel takes rows as sequences (device_rows.cc). Rows of a slice that see equal pages
// sealed may form one sequence. The index of a row's token decides which pages the row sees sealed, and the
// row's tail ends with the row itself. So what a token sees does not depend on the other tokens of its step.
//
// Long slices of a prompt go to the library's prompt kernel instead (device_prompt.cc). Their rows see the
// same tokens, in half precision or, with prompt=flashq, as INT8. A step may have both kinds of slices, in
// any order.
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

// Describes a transform that the library applies: channels times factors, then the Walsh-Hadamard matrix.
struct LibraryTransform {
  bool hadamard = false;            // False means the identity instead of the matrix.
  const float* factors = nullptr;   // on the device: [n_kv_heads, head_dim]; null means 1
  const float* inverses = nullptr;  // 1 / factors
};

// Describes the rows that a layer reads and writes in the device's memory, one after another. run_layer()
// transforms k and v by the transforms below, and q and the output to match. The call overwrites q. Rows
// without k and v belong to a layer that attends to another layer's cache.
struct DeviceRows {
  float* q;        // [n_rows, n_heads, head_dim]
  const float* k;  // [n_rows, n_kv_heads, head_dim], or null
  const float* v;
  float* out;  // [n_rows, n_heads, head_dim]
  LibraryTransform key_transform, value_transform;
};

class DeviceAttention {
 public:
  explicit DeviceAttention(std::shared_ptr<PageDevice> device);
  DeviceAttention(const DeviceAttention&) = delete;
  DeviceAttention& operator=(const DeviceAttention&) = delete;

  // Prepares tables, lengths and the division of work for a step. An error says that memory is exhausted or
  // that the device has failed.
  Status begin(Step& step);
  // Runs a layer of the step that has begun. Each layer runs once, and then once for each layer that shares
  // its cache. Failures go to step.fail().
  void run_layer(Step& step, int layer, const DeviceRows& rows);

 private:
  // Holds the tables of layers whose pages are opened, sealed and freed together (cache/layer_groups.h).
  struct GroupTables {
    SliceTables slices;
    IndexBuffer::Part row_token;        // The places of new rows in the tails.
    IndexBuffer::Part due_sealed_page;  // indices in the table of slices
    IndexBuffer::Part due_first_page;   // page indices in the sequence
    // True if a window has freed pages of any slice. Tables then begin after the freed pages.
    bool frees = false;
  };

  // Holds the tables of consecutive prompt slices for one call of the prompt kernel, in the layers of a
  // group.
  struct PromptTables {
    int group = 0;
    RowRun run;
    int n_tokens = 0, n_pages = 0;  // Tokens in tails, and sealed pages, of all slices.
    int n_kept = 0;                 // Tokens that scores may protect, if INT8 tiles leave them out.
    IndexBuffer::Part query_begins, token_begins, sealed_begins, first_row_tokens;
    IndexBuffer::Part query_pages;  // The pages that rows see sealed.
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
  // Transforms queries to match the keys in a layer that appends nothing.
  bool turn_queries(Step& step, int layer, const DeviceRows& rows);
  // Seals the step's due pages of a layer, and keeps the sinks of first pages.
  bool seal(Step& step, int layer, const kvant_decode_shape& of_slices, const kvant_decode_layer& at_layer);
  bool check(Step& step, const char* doing, kvant_status status) const;

  // These functions treat rows as sequences (device_rows.cc). False means that the step has failed. at_layer
  // has the tables of slices.
  void list_rows(const Step& step, const RowRun& run);
  Status place_rows(const Plan& plan);
  Status divide_rows(const Plan& plan);
  bool takes_rows_together(const Plan& plan, const StepSlice& slice) const;
  Result<std::size_t> workspace_of(const Plan& plan, const RowTables& tables);
  bool attend_rows(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer at_layer,
                   const RowTables& tables);
  // Points the layer's description at the rows from from_row on.
  void point_to_rows(kvant_decode_layer& at_layer, int layer, const DeviceRows& rows, const RowTables& tables,
                     const Geometry& geometry, int from_row) const;

  // These functions attend in rounds, in a layer that protects by score (device_rows.cc).
  bool attend_run(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer at_layer,
                  const RowRun& run);
  bool attend_and_protect(Step& step, int layer, const DeviceRows& rows, const kvant_decode_layer& at_layer);

  // These functions attend with prompts in blocks of rows (device_prompt.cc).
  bool takes_prompt_kernel(const StepSlice& slice) const;
  void list_prompt(const Step& step, const RowRun& run);
  void list_prompt_in(const Step& step, const RowRun& run, int layer);
  Result<std::size_t> prompt_workspace(const Plan& plan) const;
  bool attend_prompts(Step& step, int layer, const DeviceRows& rows, const kvant_decode_layer& at_layer);
  bool attend_prompt(Step& step, int layer, const DeviceRows& rows, kvant_decode_layer at_layer,
                     const PromptTables& prompt);
  // With prompt=flashq, queries and outputs of a prompt are BF16 in the workspace.
  bool round_queries(Step& step, int layer, const float* q, const RowRun& run);
  bool widen_outputs(Step& step, int layer, const DeviceRows& rows, const RowRun& run);
  // Transforms outputs from the basis of the values back to the model's basis.
  bool turn_outputs_back(Step& step, int layer, const DeviceRows& rows, const RowRun& run);
  bool transform(Step& step, int layer, kvant_transformation t, const RowRun& run);
  char* prompt_memory() const { return workspace_.memory() + rows_workspace_; }

  std::shared_ptr<PageDevice> device_;
  DeviceProtector protector_;
  DeviceSums sums_;
  IndexBuffer indices_;
  // The workspace begins with the parts of row_tables_. The memory after them serves one prompt at a time.
  DeviceBuffer workspace_;
  std::shared_ptr<const Plan> sized_for_;  // The plan for which workspace_of_rows_ holds sizes.
  std::map<std::pair<int, int>, std::size_t> workspace_of_rows_;  // bytes by n_seqs and max_queries

  // The members below describe the step.
  int n_rows_ = 0, n_slices_ = 0, max_due_ = 0;
  // True if one call appends and attends. Each slice is then one token, and nothing is sealed in between.
  bool appends_within_ = false;
  bool seals_first_ = false;  // True if a slice seals its first page.
  IndexBuffer::Part row_slice_;
  IndexBuffer::Part sinks_;
  IndexBuffer::Part due_tail_page_, due_pages_;
  std::vector<GroupTables> groups_;
  std::vector<RowTables> row_tables_;  // One entry for each run and group.
  std::size_t rows_workspace_ = 0;     // bytes
  std::vector<PromptTables> prompts_;  // One entry for each prompt run and group.
};

}  // namespace kvant
