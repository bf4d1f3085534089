#include "attention/device_attention.h"

#include <algorithm>

#include "cache/device_constants.h"
#include "cache/page_counts.h"

namespace kvant {

DeviceAttention::DeviceAttention(std::shared_ptr<PageDevice> device)
    : device_(device), protector_(device), sums_(device), indices_(device), workspace_(std::move(device)) {}

// Where new rows go, and which pages are due.
void DeviceAttention::list_slices(const Step& step) {
  DevicePageStore& store = step.device_pages();
  slices_.tail_width = slices_.sealed_width = 1;
  for (int s = 0; s < n_slices_; ++s) {
    const PageLedger& ledger = step.ledger(s);
    slices_.tail_width =
        std::max<std::int64_t>(slices_.tail_width, pages_for(ledger.end()) - ledger.n_sealed());
    slices_.sealed_width = std::max<std::int64_t>(slices_.sealed_width, ledger.end_sealed());
  }
  std::vector<std::int32_t> slice_of_row, token_of_row, due_tail, due_sealed, due_pages, sinks;
  std::vector<std::int32_t> tail(n_slices_ * slices_.tail_width), sealed(n_slices_ * slices_.sealed_width);
  first_sealed_.clear();
  max_due_ = 0;
  for (int s = 0; s < n_slices_; ++s) {
    const PageLedger& ledger = step.ledger(s);
    const int n_sealed = ledger.n_sealed(), due = ledger.end_sealed() - n_sealed;
    for (int page = n_sealed; page < pages_for(ledger.end()); ++page)
      tail[s * slices_.tail_width + page - n_sealed] = store.tails().table_id(ledger.tail(page).id);
    for (int page = 0; page < ledger.end_sealed(); ++page)
      sealed[s * slices_.sealed_width + page] = store.sealed().table_id(ledger.sealed(page).id);
    for (int t = step.first_token(s); t < ledger.end(); ++t) {
      slice_of_row.push_back(s);
      token_of_row.push_back(t - n_sealed * kPageTokens);
    }
    due_tail.push_back(due > 0 ? 0 : -1);
    due_sealed.push_back(n_sealed);
    due_pages.push_back(due);
    max_due_ = std::max(max_due_, due);
    if (n_sealed == 0 && due > 0) first_sealed_.push_back(s);
    const PageEntry sink = step.sink(s);
    sinks.push_back(sink.held() ? store.sinks().table_id(sink.id) : 0);
  }
  row_slice_ = indices_.add(slice_of_row);
  row_token_ = indices_.add(token_of_row);
  slices_.tail = indices_.add(tail);
  slices_.sealed = indices_.add(sealed);
  slices_.sinks = indices_.add(sinks);
  due_tail_page_ = indices_.add(due_tail);
  due_sealed_page_ = indices_.add(due_sealed);
  due_pages_ = indices_.add(due_pages);
}

bool DeviceAttention::go_the_same_way(const Plan& plan, const StepSlice& a, const StepSlice& b) const {
  return takes_prompt_kernel(a) == takes_prompt_kernel(b) &&
         (takes_prompt_kernel(a) || takes_rows_together(plan, a) == takes_rows_together(plan, b));
}

// Neighbouring slices that go the same way are one run: prompts, and slices of one row and of several, since
// a call has as many columns of products for each sequence.
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
  const kvant_seal_range range{sizeof range,
                               indices_.at(due_tail_page_),
                               indices_.at(due_sealed_page_),
                               indices_.at(due_pages_),
                               max_due_,
                               0,
                               step.plan().device_constants->page_metrics(layer)};
  return check(step, "sealing",
               is_corrected(step.plan(), layer)
                   ? sums_.seal(step, layer, of_slices, at_layer, range, indices_)
                   : device_->library().seal_pages(&of_slices, &at_layer, &range, device_->stream()));
}

// Queries are turned as they are appended, where they lie.
kvant_new_rows DeviceAttention::new_rows(const Plan& plan, const DeviceRows& rows) const {
  const Geometry& g = plan.geometry;
  kvant_new_rows appended{};
  appended.struct_size = sizeof appended;
  appended.n_rows = n_rows_;
  appended.seq = indices_.at(row_slice_);
  appended.tail_token = indices_.at(row_token_);
  appended.keys = rows.k;
  appended.values = rows.v;
  appended.key_row_stride = appended.value_row_stride = std::int64_t{g.n_kv_heads} * g.head_dim;
  appended.key_head_stride = appended.value_head_stride = g.head_dim;
  appended.key_factors = rows.key_transform.factors;
  appended.key_hadamard = rows.key_transform.hadamard ? 1 : 0;
  appended.value_factors = rows.value_transform.factors;
  appended.value_hadamard = rows.value_transform.hadamard ? 1 : 0;
  appended.type = KVANT_F32;
  if (rows.key_transform.hadamard) {
    appended.queries = rows.q;
    appended.query_row_stride = std::int64_t{g.n_heads} * g.head_dim;
    appended.query_head_stride = g.head_dim;
    appended.query_factors = rows.key_transform.inverses;
  }
  return appended;
}

void DeviceAttention::run_layer(Step& step, int layer, const DeviceRows& rows) {
  if (step.failed()) return;
  const Plan& plan = step.plan();
  DevicePageStore& store = step.device_pages();
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape of_slices = formats.of(n_slices_, plan);
  kvant_decode_layer at_layer{};
  at_layer.struct_size = sizeof at_layer;
  at_layer.tail = store.tails().pages(layer);
  at_layer.tail.table = indices_.at(slices_.tail);
  at_layer.tail.seq_stride = slices_.tail_width;
  store.add_sealed(at_layer, layer);
  at_layer.sealed.table = indices_.at(slices_.sealed);
  at_layer.sealed.seq_stride = slices_.sealed_width;
  at_layer.sink = store.has_sink() ? plan.layers[layer].sink : 0;
  plan.device_constants->add_to(at_layer, layer);

  const kvant_new_rows appended = new_rows(plan, rows);
  const bool within = appends_within_ && !protects_by_score(plan, layer);
  if (!within && !check(step, "appending",
                        device_->library().append(&of_slices, &at_layer, &appended, device_->stream())))
    return;
  if (protects_by_score(plan, layer)) {
    attend_and_protect(step, layer, rows, at_layer);
    return;
  }
  if (max_due_ > 0) {
    if (!seal(step, layer, of_slices, at_layer)) return;
    for (const int s : first_sealed_) {
      if (step.sink(s).held()) store.keep_sink(step.ledger(s).tail(0), step.sink(s), layer);
    }
  }

  at_layer.protected_pages = store.sinks().pages(layer);
  at_layer.protected_pages.table = indices_.at(slices_.sinks);
  at_layer.protected_pages.seq_stride = 1;
  at_layer.new_rows = within ? &appended : nullptr;
  for (const RowTables& tables : row_tables_) {
    if (tables.sliding_window == plan.layers[layer].sliding_window &&
        !attend_rows(step, layer, rows, at_layer, tables))
      return;
  }
  for (const PromptTables& prompt : prompts_) {
    if (!attend_prompt(step, layer, rows, at_layer, prompt)) return;
  }
}

}  // namespace kvant
