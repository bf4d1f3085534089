#include "attention/device_attention.h"

#include <algorithm>

#include "cache/correction_state.h"
#include "cache/device_constants.h"
#include "cache/page_counts.h"
#include "cache/schedule.h"

namespace kvant {
namespace {

// The sums of a correction of all heads of a layer.
std::size_t layer_sums_bytes(const Plan& plan) {
  return static_cast<std::size_t>(correction_bytes(plan.geometry.head_dim)) * plan.geometry.n_kv_heads;
}

}  // namespace

std::vector<RowSight> row_sights(int first_token, const StepSlice& slice, int n_sealed, int window,
                                 int prefill) {
  int sealed = n_sealed;
  const auto seal = [&](int point) {
    if (point >= 0) sealed = std::max(sealed, sealed_pages(point, window));
  };
  std::vector<RowSight> sights;
  sights.reserve(slice.n_tokens);
  seal(seal_point_before(first_token, slice.is_prompt));
  for (const Tile& tile : schedule(first_token, slice.n_tokens, {slice.is_prompt, prefill})) {
    for (int t = tile.query_first; t < tile.query_end; ++t)
      sights.push_back({sealed, t + 1 - sealed * kPageTokens});
    seal(tile.seal_point);
  }
  return sights;
}

WindowedSight within_window(const RowSight& sight, int token, int sliding_window) {
  const int first = first_visible_token(token, sliding_window), page = first / kPageTokens;
  return {page, std::max(0, sight.sealed_pages - page),
          sight.tail_tokens - std::max(0, page - sight.sealed_pages) * kPageTokens, first % kPageTokens};
}

DeviceAttention::DeviceAttention(std::shared_ptr<PageDevice> device)
    : device_(std::move(device)),
      has_half_prompts_(has_prompt_kernel(*device_, /*head_dim=*/64, /*half_products=*/true)),
      protector_(device_) {}

DeviceAttention::~DeviceAttention() {
  device_->enter();
  device_->release(memory_);
  device_->release(workspace_);
  device_->release(sums_);
}

DeviceAttention::Part DeviceAttention::add(const std::vector<std::int32_t>& numbers) {
  constexpr std::size_t kPartNumbers = 64;  // parts begin at multiples of so many
  const Part part{(numbers_.size() + kPartNumbers - 1) / kPartNumbers * kPartNumbers};
  numbers_.resize(part.first);
  numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
  return part;
}

Status DeviceAttention::make_room(void*& memory, std::size_t& held, std::size_t bytes) {
  if (bytes <= held) return {};
  if (memory != nullptr) KVANT_RETURN_IF_ERROR(device_->finish());  // the step before may still read it
  device_->release(memory);
  held = bytes + bytes / 2;
  memory = device_->allocate(held);
  if (memory != nullptr) return {};
  held = 0;
  return shortage("out of memory on {}: no room for the page tables of {} tokens; use fewer tokens in a step",
                  device_->name(), n_rows_);
}

// Where new rows go, and which pages are due.
void DeviceAttention::list_slices(const Step& step) {
  DevicePageStore& store = step.device_pages();
  slice_tail_width_ = slice_sealed_width_ = 1;
  for (int s = 0; s < n_slices_; ++s) {
    const PageLedger& ledger = step.ledger(s);
    slice_tail_width_ =
        std::max<std::int64_t>(slice_tail_width_, pages_for(ledger.end()) - ledger.n_sealed());
    slice_sealed_width_ = std::max<std::int64_t>(slice_sealed_width_, ledger.end_sealed());
  }
  std::vector<std::int32_t> slice_of_row, token_of_row, due_tail, due_sealed, due_pages;
  std::vector<std::int32_t> tail(n_slices_ * slice_tail_width_), sealed(n_slices_ * slice_sealed_width_);
  first_sealed_.clear();
  max_due_ = 0;
  for (int s = 0; s < n_slices_; ++s) {
    const PageLedger& ledger = step.ledger(s);
    const int n_sealed = ledger.n_sealed(), due = ledger.end_sealed() - n_sealed;
    for (int page = n_sealed; page < pages_for(ledger.end()); ++page)
      tail[s * slice_tail_width_ + page - n_sealed] = store.tails().table_id(ledger.tail(page).id);
    for (int page = 0; page < ledger.end_sealed(); ++page)
      sealed[s * slice_sealed_width_ + page] = store.sealed().table_id(ledger.sealed(page).id);
    for (int t = step.first_token(s); t < ledger.end(); ++t) {
      slice_of_row.push_back(s);
      token_of_row.push_back(t - n_sealed * kPageTokens);
    }
    due_tail.push_back(due > 0 ? 0 : -1);
    due_sealed.push_back(n_sealed);
    due_pages.push_back(due);
    max_due_ = std::max(max_due_, due);
    if (n_sealed == 0 && due > 0) first_sealed_.push_back(s);
  }
  row_slice_ = add(slice_of_row);
  row_token_ = add(token_of_row);
  slice_tail_ = add(tail);
  slice_sealed_ = add(sealed);
  due_tail_page_ = add(due_tail);
  due_sealed_page_ = add(due_sealed);
  due_pages_ = add(due_pages);
}

// What each row sees. Rows of one slice that see the same pages share a table.
void DeviceAttention::list_rows(const Step& step) {
  const Plan& plan = step.plan();
  DevicePageStore& store = step.device_pages();
  const int window = device_window(plan), sink = store.has_sink() ? device_sink(plan) : 0;
  RowTables tables;
  std::vector<std::int32_t> sealed, tail, n_protected, first_tail_page;
  std::int64_t width = 1;
  for (int s = 0; s < n_slices_; ++s) {
    const PageLedger& ledger = step.ledger(s);
    for (const RowSight& sight :
         row_sights(step.first_token(s), step.slices()[s], ledger.n_sealed(), window, plan.recipe.prefill)) {
      sealed.push_back(sight.sealed_pages);
      tail.push_back(sight.tail_tokens);
      tables.max_tail = std::max(tables.max_tail, sight.tail_tokens);
      n_protected.push_back(sight.sealed_pages > 0 ? sink : 0);
      first_tail_page.push_back(sight.sealed_pages - ledger.n_sealed());
      width = std::max<std::int64_t>(width, pages_for(sight.tail_tokens));
    }
  }
  tables.sealed = add(sealed);
  tables.tail = add(tail);
  tables.n_protected = add(n_protected);
  tables.has_sealed = max_sealed_ > 0;
  const bool alike = n_slices_ == 1 && std::all_of(first_tail_page.begin(), first_tail_page.end(),
                                                   [&](int page) { return page == first_tail_page.front(); });
  if (alike) {
    tables.row_tail = {slice_tail_.first + first_tail_page.front()};
    tables.row_tail_stride = 0;
  } else {
    std::vector<std::int32_t> table(n_rows_ * width);
    for (int row = 0; row < n_rows_; ++row) {
      const std::size_t from =
          slice_tail_.first + numbers_[row_slice_.first + row] * slice_tail_width_ + first_tail_page[row];
      std::copy_n(numbers_.begin() + static_cast<std::ptrdiff_t>(from), pages_for(tail[row]),
                  table.begin() + row * width);
    }
    tables.row_tail = add(table);
    tables.row_tail_stride = width;
  }
  tables.row_sealed = slice_sealed_;
  tables.row_sealed_stride = n_slices_ == 1 ? 0 : slice_sealed_width_;
  if (n_slices_ == 1 || n_slices_ == n_rows_) {
    row_tables_.push_back(tables);
    return;
  }
  std::vector<std::int32_t> table(n_rows_ * slice_sealed_width_);
  for (int row = 0; row < n_rows_; ++row) {
    const auto from = static_cast<std::ptrdiff_t>(slice_sealed_.first +
                                                  numbers_[row_slice_.first + row] * slice_sealed_width_);
    std::copy_n(numbers_.begin() + from, slice_sealed_width_, table.begin() + row * slice_sealed_width_);
  }
  tables.row_sealed = add(table);
  row_tables_.push_back(tables);
}

// The same of layers with a sliding window. Tables begin with the page of a row's first visible token.
void DeviceAttention::list_window(const Step& step, int sliding_window) {
  const Plan& plan = step.plan();
  DevicePageStore& store = step.device_pages();
  RowTables tables;
  tables.sliding_window = sliding_window;
  std::vector<std::int32_t> sealed, tail, hidden;
  std::vector<std::vector<std::int32_t>> sealed_ids, tail_ids;
  std::size_t sealed_width = 1, tail_width = 1;
  for (int s = 0; s < n_slices_; ++s) {
    const PageLedger& ledger = step.ledger(s);
    int token = step.first_token(s);
    for (const RowSight& sight :
         row_sights(token, step.slices()[s], ledger.n_sealed(), device_window(plan), plan.recipe.prefill)) {
      const WindowedSight seen = within_window(sight, token++, sliding_window);
      sealed.push_back(seen.sealed_pages);
      tail.push_back(seen.tail_tokens);
      tables.max_tail = std::max(tables.max_tail, seen.tail_tokens);
      hidden.push_back(seen.hidden_tokens);
      std::vector<std::int32_t>& row_sealed = sealed_ids.emplace_back();
      for (int i = 0; i < seen.sealed_pages; ++i)
        row_sealed.push_back(store.sealed().table_id(ledger.sealed(seen.first_page + i).id));
      std::vector<std::int32_t>& row_tail = tail_ids.emplace_back();
      for (int i = 0; i < pages_for(seen.tail_tokens); ++i)
        row_tail.push_back(store.tails().table_id(ledger.tail(seen.first_page + seen.sealed_pages + i).id));
      sealed_width = std::max(sealed_width, row_sealed.size());
      tail_width = std::max(tail_width, row_tail.size());
      tables.has_sealed = tables.has_sealed || seen.sealed_pages > 0;
    }
  }
  const auto add_table = [&](std::vector<std::vector<std::int32_t>>& rows, std::size_t width) {
    std::vector<std::int32_t> table;
    for (std::vector<std::int32_t>& row : rows) {
      row.resize(width);
      table.insert(table.end(), row.begin(), row.end());
    }
    return add(table);
  };
  tables.sealed = add(sealed);
  tables.tail = add(tail);
  tables.hidden = add(hidden);
  tables.row_sealed = add_table(sealed_ids, sealed_width);
  tables.row_tail = add_table(tail_ids, tail_width);
  tables.row_sealed_stride = static_cast<std::int64_t>(sealed_width);
  tables.row_tail_stride = static_cast<std::int64_t>(tail_width);
  row_tables_.push_back(tables);
}

const DeviceAttention::RowTables& DeviceAttention::tables_of(int sliding_window) const {
  return *std::find_if(row_tables_.begin(), row_tables_.end(),
                       [&](const RowTables& tables) { return tables.sliding_window == sliding_window; });
}

// Which sums each row finds, and where those that the step makes go.
void DeviceAttention::list_sums(const Step& step) {
  const Plan& plan = step.plan();
  DevicePageStore& store = step.device_pages();
  page_sums_.clear();
  first_sums_.clear();
  due_.clear();
  int n_sums = 0;
  for (int s = 0; s < n_slices_; ++s) {
    due_.push_back(step.ledger(s).end_sealed() - step.ledger(s).n_sealed());
    first_sums_.push_back(n_sums);
    n_sums += due_.back() + 1;
  }
  std::vector<std::int32_t> of_rows;
  for (int s = 0; s < n_slices_; ++s) {
    const int n_sealed = step.ledger(s).n_sealed(), id = store.sums().table_id(step.sums(s).id);
    for (const RowSight& sight : row_sights(step.first_token(s), step.slices()[s], n_sealed,
                                            device_window(plan), plan.recipe.prefill))
      of_rows.push_back(max_due_ > 0 ? first_sums_[s] + sight.sealed_pages - n_sealed : id);
  }
  row_sums_ = add(of_rows);
  for (int nth = 0; nth < max_due_; ++nth) {
    std::vector<std::int32_t> tail, sealed, sums;
    for (int s = 0; s < n_slices_; ++s) {
      tail.push_back(nth < due_[s] ? nth : -1);
      sealed.push_back(step.ledger(s).n_sealed() + nth);
      sums.push_back(first_sums_[s] + std::min(nth + 1, due_[s]));
    }
    page_sums_.push_back({add(tail), add(sealed), add(sums)});
  }
}

char* DeviceAttention::layer_sums(const Step& step, int layer, PageEntry sums) const {
  const DeviceEntryTable& all = step.device_pages().sums();
  return all.data(sums.id) + all.layout().layers[layer].offset;
}

char* DeviceAttention::sums_after(const Step& step, int slice, int n_pages) const {
  return static_cast<char*>(sums_) + (first_sums_[slice] + n_pages) * layer_sums_bytes(step.plan());
}

kvant_correction DeviceAttention::correction_of_rows(const Step& step, int layer) const {
  const Plan& plan = step.plan();
  const DeviceEntryTable& all = step.device_pages().sums();
  kvant_correction correction{};
  correction.struct_size = sizeof correction;
  correction.query_maps = plan.device_constants->query_maps(layer);
  correction.states = static_cast<float*>(sums_);
  correction.state_seq_stride = static_cast<std::int64_t>(layer_sums_bytes(plan) / sizeof(float));
  if (max_due_ == 0) {  // those of the store are found as pages are
    correction.states = reinterpret_cast<float*>(all.base() + all.layout().layers[layer].offset);
    correction.state_seq_stride = kDeviceUnit / sizeof(float);
  }
  correction.state_head_stride = correction_bytes(plan.geometry.head_dim) / std::int64_t{sizeof(float)};
  correction.state_of_seq = at(row_sums_);
  correction.absolute = plan.recipe.correction == Correction::absolute ? 1 : 0;
  return correction;
}

kvant_correction DeviceAttention::correction_of_page(const Step& step, int layer, int nth) const {
  kvant_correction correction = correction_of_rows(step, layer);
  correction.key_maps = step.plan().device_constants->key_maps(layer);
  correction.state_of_seq = at(page_sums_[nth].sums);
  return correction;
}

kvant_decode_lengths DeviceAttention::lengths(const RowTables& tables, int first_row) const {
  kvant_decode_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  const bool slides = tables.sliding_window > 0;  // such layers have no sink
  lengths.sealed_pages = tables.has_sealed ? at(tables.sealed) + first_row : nullptr;
  lengths.tail_tokens = at(tables.tail) + first_row;
  lengths.protected_tokens = protects_ && !slides ? at(tables.n_protected) : nullptr;
  lengths.first_tokens = slides ? at(tables.hidden) : nullptr;
  lengths.protected_seq_stride = 1;
  lengths.max_tail_tokens = tables.max_tail;
  return lengths;
}

// One table entry a row; of prompts, a slice.
void DeviceAttention::list_sinks(const Step& step) {
  std::vector<std::int32_t> sinks(is_prompt_ ? n_slices_ : n_rows_);
  protects_ = false;
  max_sealed_ = 0;
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    const int s = is_prompt_ ? static_cast<int>(i) : numbers_[row_slice_.first + i];
    max_sealed_ = std::max(max_sealed_, step.ledger(s).end_sealed());
    if (!step.sink(s).held()) continue;
    sinks[i] = step.device_pages().sinks().table_id(step.sink(s).id);
    protects_ = true;
  }
  sinks_ = add(sinks);
}

Status DeviceAttention::begin(Step& step) {
  device_->enter();
  numbers_.clear();
  n_rows_ = step.n_rows();
  n_slices_ = static_cast<int>(step.slices().size());
  is_prompt_ = takes_prompt_kernel(step);
  list_slices(step);
  list_sinks(step);
  appends_within_ = !is_prompt_ && n_rows_ == n_slices_ && max_due_ == 0;
  return is_prompt_ ? begin_prompt(step) : begin_rows(step);
}

// Of the rows of one sliding window: as much as the layer that needs most. Steps mostly have the plan and the
// number of rows of the one before.
Status DeviceAttention::size_workspace(const Step& step) {
  const Plan& plan = step.plan();
  if (sized_for_ == step.shared_plan() && sized_rows_ == n_rows_) return {};
  constexpr std::size_t kAlignment = 256;
  std::size_t most = 0;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    const LayerShape formats = layer_shape(plan, layer);
    const kvant_decode_shape shape = formats.of(n_rows_, plan);
    std::size_t bytes = 0;
    KVANT_RETURN_IF_ERROR(library_status(*device_, "dividing a step's work",
                                         device_->library().decode_workspace(&shape, &bytes)));
    most = std::max(most, bytes);
  }
  workspace_of_tables_ = (most + kAlignment - 1) / kAlignment * kAlignment;
  sized_for_ = step.shared_plan();
  sized_rows_ = n_rows_;
  return {};
}

Status DeviceAttention::begin_rows(const Step& step) {
  const Plan& plan = step.plan();
  row_tables_.clear();
  for (const LayerPlan& layer : plan.layers) {
    const int sliding = layer.sliding_window;
    if (std::any_of(row_tables_.begin(), row_tables_.end(),
                    [&](const RowTables& tables) { return tables.sliding_window == sliding; }))
      continue;
    if (sliding > 0) {
      list_window(step, sliding);
    } else {
      list_rows(step);
    }
  }
  if (protects_by_score(plan)) KVANT_RETURN_IF_ERROR(protector_.begin(step));
  if (is_corrected(plan)) {
    list_sums(step);
    const std::size_t n_sums = max_due_ > 0 ? first_sums_.back() + due_.back() + 1 : 0;
    KVANT_RETURN_IF_ERROR(make_room(sums_, sums_bytes_, n_sums * layer_sums_bytes(plan)));
  }
  KVANT_RETURN_IF_ERROR(size_workspace(step));
  KVANT_RETURN_IF_ERROR(make_room(memory_, memory_bytes_, numbers_.size() * sizeof numbers_[0]));
  for (std::size_t i = 0; i < row_tables_.size(); ++i) row_tables_[i].workspace = i * workspace_of_tables_;
  KVANT_RETURN_IF_ERROR(make_room(workspace_, workspace_bytes_, row_tables_.size() * workspace_of_tables_));
  device_->upload(memory_, numbers_.data(), numbers_.size() * sizeof numbers_[0]);
  const LayerShape formats = layer_shape(plan, 0);
  const kvant_decode_shape shape = formats.of(n_rows_, plan);
  for (const RowTables& tables : row_tables_) {
    if (tables.sliding_window == 0 && protects_by_score(plan)) continue;  // divided in each layer
    const kvant_decode_lengths of_rows = lengths(tables);
    const kvant_status status = device_->library().decode_schedule(
        &shape, &of_rows, static_cast<char*>(workspace_) + tables.workspace, workspace_of_tables_,
        device_->stream());
    KVANT_RETURN_IF_ERROR(library_status(*device_, "dividing a step's work", status));
  }
  return {};
}

bool DeviceAttention::check(Step& step, const char* doing, kvant_status status) const {
  const Status checked = library_status(*device_, doing, status);
  if (!checked.ok()) step.fail(checked.error());
  return checked.ok();
}

bool DeviceAttention::seal(Step& step, const kvant_decode_shape& of_slices,
                           const kvant_decode_layer& at_layer) {
  const kvant_seal_range range{sizeof range,   at(due_tail_page_), at(due_sealed_page_),
                               at(due_pages_), max_due_,           0};
  return check(step, "sealing",
               device_->library().seal_pages(&of_slices, &at_layer, &range, device_->stream()));
}

// Page by page: the sums after each are those before it, to which the library adds. Heads that aren't
// corrected keep their zeros.
bool DeviceAttention::seal_and_sum(Step& step, int layer, const kvant_decode_shape& of_slices,
                                   const kvant_decode_layer& at_layer) {
  const Plan& plan = step.plan();
  const std::size_t bytes = layer_sums_bytes(plan);
  const auto head_bytes = static_cast<std::size_t>(correction_bytes(plan.geometry.head_dim));
  for (int s = 0; s < n_slices_; ++s)
    device_->copy(sums_after(step, s, 0), layer_sums(step, layer, step.sums(s)), bytes);
  for (int nth = 0; nth < max_due_; ++nth) {
    for (int s = 0; s < n_slices_; ++s) {
      if (nth < due_[s]) device_->copy(sums_after(step, s, nth + 1), sums_after(step, s, nth), bytes);
    }
    const kvant_correction correction = correction_of_page(step, layer, nth);
    kvant_decode_layer corrected = at_layer;
    corrected.correction = &correction;
    const PageSums& page = page_sums_[nth];
    const kvant_seal_range range{sizeof range, at(page.tail_page), at(page.sealed_page), nullptr, 1, 0};
    if (!check(step, "sealing",
               device_->library().seal_pages(&of_slices, &corrected, &range, device_->stream())))
      return false;
    for (int s = 0; s < n_slices_; ++s) {
      for (int h = 0; nth < due_[s] && h < plan.geometry.n_kv_heads; ++h) {
        if (plan.head(layer, h).corrected) continue;
        device_->copy(sums_after(step, s, nth + 1) + h * head_bytes,
                      sums_after(step, s, nth) + h * head_bytes, head_bytes);
      }
    }
  }
  for (int s = 0; s < n_slices_; ++s) {
    if (due_[s] > 0)
      device_->copy(layer_sums(step, layer, step.next_sums(s)), sums_after(step, s, due_[s]), bytes);
  }
  return true;
}

void DeviceAttention::run_layer(Step& step, int layer, const DeviceRows& rows) {
  if (step.failed()) return;
  const Plan& plan = step.plan();
  const Geometry& g = plan.geometry;
  const PageLibrary& library = device_->library();
  DevicePageStore& store = step.device_pages();
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape of_slices = formats.of(n_slices_, plan);
  kvant_decode_layer at_layer{};
  at_layer.struct_size = sizeof at_layer;
  at_layer.tail = store.tails().pages(layer);
  at_layer.tail.table = at(slice_tail_);
  at_layer.tail.seq_stride = slice_tail_width_;
  store.add_sealed(at_layer, layer);
  at_layer.sealed.table = at(slice_sealed_);
  at_layer.sealed.seq_stride = slice_sealed_width_;
  at_layer.sink = store.has_sink() ? plan.layers[layer].sink : 0;
  plan.device_constants->add_to(at_layer, layer);

  kvant_new_rows new_rows{};
  new_rows.struct_size = sizeof new_rows;
  new_rows.n_rows = n_rows_;
  new_rows.seq = at(row_slice_);
  new_rows.tail_token = at(row_token_);
  new_rows.keys = rows.k;
  new_rows.values = rows.v;
  new_rows.key_row_stride = new_rows.value_row_stride = std::int64_t{g.n_kv_heads} * g.head_dim;
  new_rows.key_head_stride = new_rows.value_head_stride = g.head_dim;
  new_rows.key_factors = rows.key_transform.factors;
  new_rows.key_hadamard = rows.key_transform.hadamard ? 1 : 0;
  new_rows.value_factors = rows.value_transform.factors;
  new_rows.value_hadamard = rows.value_transform.hadamard ? 1 : 0;
  new_rows.type = KVANT_F32;
  if (rows.key_transform.hadamard) {
    new_rows.queries = rows.q;
    new_rows.query_row_stride = std::int64_t{g.n_heads} * g.head_dim;
    new_rows.query_head_stride = g.head_dim;
    new_rows.query_factors = rows.key_transform.inverses;
  }
  const bool within = appends_within_ && !protects_by_score(plan, layer);
  if (!within &&
      !check(step, "appending", library.append(&of_slices, &at_layer, &new_rows, device_->stream())))
    return;
  if (protects_by_score(plan, layer)) {
    attend_and_protect(step, layer, rows, at_layer);
    return;
  }
  if (max_due_ > 0) {
    const bool sealed = is_corrected(plan, layer) ? seal_and_sum(step, layer, of_slices, at_layer)
                                                  : seal(step, of_slices, at_layer);
    if (!sealed) return;
    for (const int s : first_sealed_) {
      if (step.sink(s).held()) store.keep_sink(step.ledger(s).tail(0), step.sink(s), layer);
    }
  }

  at_layer.protected_pages = store.sinks().pages(layer);
  at_layer.protected_pages.table = at(sinks_);
  at_layer.protected_pages.seq_stride = 1;
  if (is_prompt_) {
    attend_prompt(step, layer, rows, at_layer);
  } else {
    at_layer.new_rows = within ? &new_rows : nullptr;
    attend_rows(step, layer, rows, at_layer);
  }
}

void DeviceAttention::point_to_rows(kvant_decode_layer& at_layer, const DeviceRows& rows,
                                    const RowTables& tables, const Geometry& g, int first_row) const {
  const std::int64_t stride = std::int64_t{g.n_heads} * g.head_dim;
  at_layer.tail.table = at(tables.row_tail) + first_row * tables.row_tail_stride;
  at_layer.tail.seq_stride = tables.row_tail_stride;
  at_layer.sealed.table = at(tables.row_sealed) + first_row * tables.row_sealed_stride;
  at_layer.sealed.seq_stride = tables.row_sealed_stride;
  at_layer.q = rows.q + first_row * stride;
  at_layer.q_type = KVANT_F32;
  at_layer.out = rows.out + first_row * stride;
  at_layer.out_type = KVANT_F32;
  at_layer.q_seq_stride = at_layer.out_seq_stride = stride;
  at_layer.q_head_stride = at_layer.out_head_stride = g.head_dim;
  at_layer.reproducible = 1;
  if (rows.value_transform.hadamard) {
    at_layer.out_hadamard = 1;
    at_layer.out_factors = rows.value_transform.inverses;
  }
}

bool DeviceAttention::attend_rows(Step& step, int layer, const DeviceRows& rows,
                                  kvant_decode_layer& at_layer) {
  const Plan& plan = step.plan();
  const Geometry& g = plan.geometry;
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape of_rows = formats.of(n_rows_, plan);
  const RowTables& tables = tables_of(plan.layers[layer].sliding_window);
  point_to_rows(at_layer, rows, tables, g, /*first_row=*/0);
  at_layer.settled = max_due_ == 0 ? 1 : 0;  // then nothing but appending precedes
  kvant_correction correction{};
  if (is_corrected(plan, layer)) {
    correction = correction_of_rows(step, layer);
    at_layer.correction = &correction;
  }
  const kvant_decode_lengths sights = lengths(tables);
  const kvant_status attended = device_->library().decode_attention(
      &of_rows, &sights, &at_layer, static_cast<char*>(workspace_) + tables.workspace, workspace_of_tables_,
      device_->stream());
  return check(step, "attending", attended);
}

}  // namespace kvant
