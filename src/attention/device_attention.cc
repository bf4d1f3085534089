#include "attention/device_attention.h"

#include <algorithm>

#include "cache/device_constants.h"
#include "cache/page_counts.h"

namespace kvant {

DeviceAttention::DeviceAttention(std::shared_ptr<PageDevice> device)
    : device_(device), protector_(device), sums_(device), indices_(device), workspace_(std::move(device)) {}

// Lists which slice each row belongs to, and how many pages are due. Both are equal in all layers that seal.
void DeviceAttention::list_slices(const Step& step) {
  DevicePageStore& store = device_pages(step);
  std::vector<std::int32_t> slice_of_row, due_tail, due_pages, sinks;
  seals_first_ = false;
  max_due_ = 0;
  for (int s = 0; s < n_slices_; ++s) {
    const PageLedger& ledger = step.ledger(s, /*layer=*/0);
    const int due = ledger.end_sealed() - ledger.n_sealed();
    slice_of_row.insert(slice_of_row.end(), step.slices()[s].n_tokens, s);
    due_tail.push_back(due > 0 ? 0 : -1);
    due_pages.push_back(due);
    max_due_ = std::max(max_due_, due);
    seals_first_ = seals_first_ || (ledger.n_sealed() == 0 && due > 0);
    const std::vector<EntryHold>& rows = device_sequence(step, s).newest_rows();
    sinks.push_back(rows.empty() ? 0 : store.protected_rows().table_id(rows.front().entry().id));
  }
  row_slice_ = indices_.add(slice_of_row);
  sinks_ = indices_.add(sinks);
  due_tail_page_ = indices_.add(due_tail);
  due_pages_ = indices_.add(due_pages);
  groups_.clear();
  for (int layer = 0; layer < step.plan().geometry.n_layers; ++layer) {
    if (store.group_of(layer) == static_cast<int>(groups_.size())) list_group(step, layer);
  }
}

// Lists where new rows and due pages go in the layers of a group. `layer` is the first layer of the group.
void DeviceAttention::list_group(const Step& step, int layer) {
  GroupTables& group = groups_.emplace_back();
  SliceTables& slices = group.slices;
  slices.layer = layer;
  slices.sinks = sinks_;
  for (int s = 0; s < n_slices_; ++s) {
    const PageLedger& ledger = step.ledger(s, layer);
    slices.tail_width =
        std::max<std::int64_t>(slices.tail_width, pages_for(ledger.end()) - ledger.n_sealed());
    slices.sealed_width =
        std::max<std::int64_t>(slices.sealed_width, ledger.end_sealed() - ledger.first_page());
    group.frees = group.frees || ledger.first_page() > 0;
  }
  const DeviceEntryTable &tails = device_pages(step).tails(layer),
                         &of_sealed = device_pages(step).sealed(layer);
  std::vector<std::int32_t> token_of_row, due_sealed, due_first;
  std::vector<std::int32_t> tail(n_slices_ * slices.tail_width), sealed(n_slices_ * slices.sealed_width);
  for (int s = 0; s < n_slices_; ++s) {
    const PageLedger& ledger = step.ledger(s, layer);
    const int n_sealed = ledger.n_sealed(), first = ledger.first_page();
    for (int page = n_sealed; page < pages_for(ledger.end()); ++page)
      tail[s * slices.tail_width + page - n_sealed] = tails.table_id(ledger.tail(page).id);
    for (int page = first; page < ledger.end_sealed(); ++page)
      sealed[s * slices.sealed_width + page - first] = of_sealed.table_id(ledger.sealed(page).id);
    for (int t = step.first_token(s); t < ledger.end(); ++t)
      token_of_row.push_back(t - n_sealed * kPageTokens);
    due_sealed.push_back(n_sealed - first);
    due_first.push_back(n_sealed);
  }
  group.row_token = indices_.add(token_of_row);
  slices.tail = indices_.add(tail);
  slices.sealed = indices_.add(sealed);
  group.due_sealed_page = indices_.add(due_sealed);
  group.due_first_page = group.frees ? indices_.add(due_first) : group.due_sealed_page;
}

bool DeviceAttention::go_the_same_way(const Plan& plan, const StepSlice& a, const StepSlice& b) const {
  return takes_prompt_kernel(a) == takes_prompt_kernel(b) &&
         (takes_prompt_kernel(a) || takes_rows_together(plan, a) == takes_rows_together(plan, b));
}

// Neighbouring slices that are served alike form one run. Slices of one row and slices of several rows are
// separate runs, because a call has an equal number of product columns for each sequence.
void DeviceAttention::list_runs(const Step& step) {
  row_tables_.clear();
  prompts_.clear();
  RowRun run;
  for (int s = 0; s < n_slices_; ++s) {
    const StepSlice& slice = step.slices()[s];
    ++run.n_slices;
    run.n_rows += slice.n_tokens;
    if (s + 1 < n_slices_ && go_the_same_way(step.plan(), slice, step.slices()[s + 1])) continue;
    takes_prompt_kernel(slice) ? list_prompt(step, run) : list_rows(step, run);
    run = {s + 1, 0, run.first_row + run.n_rows, 0};
  }
}

Status DeviceAttention::begin(Step& step) {
  const Plan& plan = step.plan();
  device_->enter();
  indices_.clear();
  n_rows_ = step.n_rows();
  n_slices_ = static_cast<int>(step.slices().size());
  list_slices(step);
  list_runs(step);
  appends_within_ = n_rows_ == n_slices_ && max_due_ == 0;
  if (protects_by_score(plan)) {
    std::vector<bool> in_blocks;
    for (const StepSlice& slice : step.slices()) in_blocks.push_back(takes_prompt_kernel(slice));
    KVANT_RETURN_IF_ERROR(protector_.begin(step, std::move(in_blocks)));
  }
  if (is_corrected(plan)) KVANT_RETURN_IF_ERROR(sums_.begin(step, indices_));
  if (sized_for_ != step.shared_plan()) workspace_of_rows_.clear();
  sized_for_ = step.shared_plan();
  KVANT_RETURN_IF_ERROR(place_rows(plan));
  const auto of_prompts = prompt_workspace(plan);
  if (!of_prompts.ok()) return of_prompts.error();
  KVANT_RETURN_IF_ERROR(indices_.send());
  KVANT_RETURN_IF_ERROR(workspace_.reserve(rows_workspace_ + *of_prompts, "for its attention"));
  return divide_rows(plan);
}

bool DeviceAttention::check(Step& step, const char* doing, kvant_status status) const {
  const Status checked = library_status(*device_, doing, status);
  if (!checked.ok()) step.fail(checked.error());
  return checked.ok();
}

bool DeviceAttention::seal(Step& step, int layer, const kvant_decode_shape& of_slices,
                           const kvant_decode_layer& at_layer) {
  const GroupTables& group = group_of(step, layer);
  const kvant_page_metrics* metrics = device_pages(step).constants().page_metrics(layer);
  kvant_page_metrics of_pages{};
  if (metrics != nullptr && group.frees) {  // The turns depend on the position of a page in its sequence.
    of_pages = *metrics;
    of_pages.first_pages = indices_.at(group.due_first_page);
    metrics = &of_pages;
  }
  const kvant_seal_range range{sizeof range,
                               indices_.at(due_tail_page_),
                               indices_.at(group.due_sealed_page),
                               indices_.at(due_pages_),
                               max_due_,
                               0,
                               metrics,
                               /*n_layers=*/1,
                               /*keep_sink=*/seals_first_ && at_layer.sink > 0};
  return check(step, "sealing",
               is_corrected(step.plan(), layer)
                   ? sums_.seal(step, layer, of_slices, at_layer, range, indices_)
                   : device_->library().seal_pages(&of_slices, &at_layer, &range, device_->stream()));
}

bool DeviceAttention::turn_queries(Step& step, int layer, const DeviceRows& rows) {
  if (!rows.key_transform.hadamard) return true;
  kvant_transformation t{};
  t.rows = rows.q;
  t.type = KVANT_F32;
  t.hadamard = 1;
  t.factors = rows.key_transform.inverses;
  return transform(step, layer, t, RowRun{0, n_slices_, 0, n_rows_});
}

// Queries are transformed in place while keys and values are appended.
kvant_new_rows DeviceAttention::new_rows(const Plan& plan, int layer, const DeviceRows& rows,
                                         const GroupTables& group) const {
  const Geometry& g = plan.geometry;
  kvant_new_rows appended{};
  appended.struct_size = sizeof appended;
  appended.n_rows = n_rows_;
  appended.seq = indices_.at(row_slice_);
  appended.tail_token = indices_.at(group.row_token);
  appended.keys = rows.k;
  appended.values = rows.v;
  appended.key_row_stride = appended.value_row_stride = g.n_kv(layer);
  appended.key_head_stride = appended.value_head_stride = g.dim(layer);
  appended.key_factors = rows.key_transform.factors;
  appended.key_hadamard = rows.key_transform.hadamard ? 1 : 0;
  appended.value_factors = rows.value_transform.factors;
  appended.value_hadamard = rows.value_transform.hadamard ? 1 : 0;
  appended.type = KVANT_F32;
  if (rows.key_transform.hadamard) {
    appended.queries = rows.q;
    appended.query_row_stride = g.n_q(layer);
    appended.query_head_stride = g.dim(layer);
    appended.query_factors = rows.key_transform.inverses;
  }
  return appended;
}

void DeviceAttention::run_layer(Step& step, int layer, const DeviceRows& rows) {
  if (step.failed()) return;
  const Plan& plan = step.plan();
  DevicePageStore& store = device_pages(step);
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape of_slices = formats.of(n_slices_, plan);
  const GroupTables& group = group_of(step, layer);
  const SliceTables& slices = group.slices;
  kvant_decode_layer at_layer{};
  at_layer.struct_size = sizeof at_layer;
  at_layer.tail = store.tails(layer).pages(layer);
  at_layer.tail.table = indices_.at(slices.tail);
  at_layer.tail.seq_stride = slices.tail_width;
  store.add_sealed(at_layer, layer);
  at_layer.sealed.table = indices_.at(slices.sealed);
  at_layer.sealed.seq_stride = slices.sealed_width;
  at_layer.protected_pages = store.protected_rows().pages(layer);
  at_layer.protected_pages.table = indices_.at(slices.sinks);
  at_layer.protected_pages.seq_stride = 1;
  at_layer.sink = store.has_sink() ? plan.layers[layer].sink : 0;
  store.constants().add_to(at_layer, layer);

  kvant_new_rows appended{};
  if (rows.k == nullptr) {
    if (!turn_queries(step, layer, rows)) return;
  } else {
    appended = new_rows(plan, layer, rows, group);
    const bool by_score = protects_by_score(plan, layer);
    const bool within = appends_within_ && !by_score;
    if (!within && !check(step, "appending",
                          device_->library().append(&of_slices, &at_layer, &appended, device_->stream())))
      return;
    if (by_score) {
      attend_and_protect(step, layer, rows, at_layer);
      return;
    }
    if (max_due_ > 0 && !seal(step, layer, of_slices, at_layer)) return;
    at_layer.new_rows = within ? &appended : nullptr;
  }

  for (const RowTables& tables : row_tables_) {
    if (tables.group == store.group_of(layer) && !attend_rows(step, layer, rows, at_layer, tables)) return;
  }
  attend_prompts(step, layer, rows, at_layer);
}

}  // namespace kvant
