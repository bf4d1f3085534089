#include "attention/device_protector.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cache/device_constants.h"
#include "cache/page_counts.h"
#include "cache/schedule.h"

namespace kvant {
namespace {

// Completes the error about exhausted memory.
constexpr const char* kPurpose = "to choose the tokens that it protects";

// Returns how many numbers the query heads of a token have.
std::ptrdiff_t query_size(const Geometry& g) {
  return std::ptrdiff_t{g.n_heads} * g.head_dim;
}

// Returns how many numbers the KV heads of a token have.
std::int64_t key_size(const Geometry& g) {
  return std::int64_t{g.n_kv_heads} * g.head_dim;
}

// Points to the observers of a layer in the store.
struct LayerObservers {
  float *q, *lse;
};
LayerObservers observer_rows(DevicePageStore& store, PageEntry entry, int layer) {
  const EntryLayout::Layer& of_layer = store.observers().layout().layers[layer];
  char* const at = store.observers().data(entry.id);
  return {reinterpret_cast<float*>(at + of_layer.place(0, Side::key)),
          reinterpret_cast<float*>(at + of_layer.place(0, Side::value))};
}

void list_slice(const Step& step, int slice, bool in_blocks, std::vector<ProtectionRound>& rounds) {
  const Plan& plan = step.plan();
  const StepSlice& s = step.slices()[slice];
  const int first = step.first_token(slice), n_sealed = step.ledger(slice, /*layer=*/0).n_sealed();
  const std::vector<Tile> tiles =
      schedule(first, s.n_tokens, {s.is_prompt, plan.recipe.prefill, device_window(plan), n_sealed});
  if (tiles.front().n_sealed > n_sealed)
    rounds.front().then.push_back({slice, 0, n_sealed, tiles.front().n_sealed});
  if (!in_blocks) rounds.resize(std::max(rounds.size(), tiles.size() + 1));
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const Tile& tile = tiles[i];
    const SealPoint after{slice, tile.query_end % kPageTokens == 0 ? tile.query_end : 0, tile.n_sealed,
                          tile.end_sealed};
    ProtectionRound& round = rounds[in_blocks ? 0 : i + 1];
    if (after.page_end > 0 || after.end_sealed > after.n_sealed) round.then.push_back(after);
    if (in_blocks) continue;
    const RowRun run{slice, 1, step.first_row(slice) + tile.query_first - first,
                     tile.query_end - tile.query_first};
    RowRun* const before_it = round.runs.empty() ? nullptr : &round.runs.back();
    if (s.n_tokens == 1 && before_it != nullptr && before_it->one_each() &&
        before_it->first_row + before_it->n_rows == run.first_row) {
      ++before_it->n_slices;
      ++before_it->n_rows;
    } else {
      round.runs.push_back(run);
    }
  }
}

}  // namespace

std::vector<ProtectionRound> protection_rounds(const Step& step, const std::vector<bool>& in_blocks) {
  std::vector<ProtectionRound> rounds(1);
  for (int s = 0; s < static_cast<int>(step.slices().size()); ++s) list_slice(step, s, in_blocks[s], rounds);
  return rounds;
}

DeviceProtector::DeviceProtector(std::shared_ptr<PageDevice> device)
    : device_(device),
      tables_(device),
      lse_(device),
      keys_(device),
      weights_(device),
      indices_(std::move(device)) {}

Status DeviceProtector::begin(const Step& step, std::vector<bool> in_blocks) {
  const Plan& plan = step.plan();
  const Geometry& g = plan.geometry;
  n_slices_ = static_cast<int>(step.slices().size());
  n_kv_heads_ = g.n_kv_heads;
  lse_stride_ = g.n_heads;
  in_blocks_ = std::move(in_blocks);
  keys_of_ = {};
  rounds_ = protection_rounds(step, in_blocks_);
  KVANT_RETURN_IF_ERROR(lse_.reserve(sizeof(float) * step.n_rows() * g.n_heads, kPurpose));
  std::size_t most_tokens = 0, most_chosen = 0;
  for (const ProtectionRound& round : rounds_) {
    for (const SealPoint& point : round.then) {
      most_tokens = std::max<std::size_t>(most_tokens, point.page_end);
      most_chosen = std::max<std::size_t>(most_chosen, (point.end_sealed - point.n_sealed) * kPageTokens);
    }
  }
  KVANT_RETURN_IF_ERROR(keys_.reserve(std::size_t{2} * most_tokens * g.n_kv_heads * g.head_dim, kPurpose));
  KVANT_RETURN_IF_ERROR(weights_.reserve(sizeof(float) * most_tokens * g.n_kv_heads, kPurpose));
  // A seal point takes four numbers, and so does every row that it protects.
  KVANT_RETURN_IF_ERROR(
      indices_.reserve(sizeof(std::int32_t) * 4 * (1 + most_chosen * g.n_kv_heads), kPurpose));
  return send_tables(step);
}

// If nothing is sealed and the slices equal the slices of the previous step, the previous tables stay.
Status DeviceProtector::send_tables(const Step& step) {
  const Plan& plan = step.plan();
  const Geometry& g = plan.geometry;
  DevicePageStore& store = device_pages(step);
  std::vector<std::shared_ptr<const ProtectedTokens>> wanted;
  bool changes = false;
  int n_pages = 1, n_protected = 1;
  any_rows_ = false;
  for (int s = 0; s < n_slices_; ++s) {
    const DeviceSequence& sequence = device_sequence(step, s);
    const auto n_rows = static_cast<int>(sequence.newest_rows().size());
    wanted.push_back(sequence.tokens());
    changes = changes || sequence.next_tokens() != nullptr;
    n_pages = std::max(n_pages, step.ledger(s, /*layer=*/0).end_sealed());
    n_protected = std::max(n_protected, n_rows);
    any_rows_ = any_rows_ || n_rows > 0;
  }
  if (!changes && sent_ == wanted && n_pages == n_pages_ && n_protected == n_protected_) return {};
  sent_.clear();
  n_pages_ = n_pages;
  n_protected_ = n_protected;
  const std::size_t n_heads = static_cast<std::size_t>(g.n_layers) * n_slices_ * n_kv_heads_;
  std::vector<TokenMask> masks(n_heads * n_pages_);
  std::vector<std::int32_t> indices(n_heads);
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int s = 0; s < n_slices_; ++s) {
      for (int h = 0; h < n_kv_heads_; ++h) {
        const ProtectedTokens::Head& head = wanted[s]->heads[g.head_index(layer, h)];
        const std::size_t at = head_of(layer, s) + h;
        indices[at] = static_cast<std::int32_t>(head.tokens.size());
        for (const PageMask& page : head.masks) masks[at * n_pages_ + page.page] = page.mask;
      }
    }
  }
  for (int s = 0; s < n_slices_; ++s) {
    const std::size_t first = indices.size();
    indices.resize(first + n_protected_);
    const std::vector<EntryHold>& pages = device_sequence(step, s).newest_rows();
    for (std::size_t i = 0; i < pages.size(); ++i)
      indices[first + i] = store.protected_rows().table_id(pages[i].entry().id);
  }
  const std::size_t mask_bytes = masks.size() * sizeof masks[0],
                    number_bytes = indices.size() * sizeof indices[0];
  KVANT_RETURN_IF_ERROR(tables_.reserve(mask_bytes + number_bytes, kPurpose));
  counts_ = reinterpret_cast<std::int32_t*>(tables_.memory() + mask_bytes);
  pages_ = counts_ + n_heads;
  device_->upload(tables_.memory(), masks.data(), mask_bytes);
  device_->upload(counts_, indices.data(), number_bytes);
  if (!changes) sent_ = std::move(wanted);
  return {};
}

bool DeviceProtector::check(Step& step, const char* doing, kvant_status status) const {
  const Status checked = library_status(*device_, doing, status);
  if (!checked.ok()) step.fail(checked.error());
  return checked.ok();
}

void DeviceProtector::add_to(kvant_decode_layer& at_layer, kvant_decode_lengths& of_rows, int layer,
                             const RowRun& run) const {
  at_layer.lse = lse_of(run.first_row);
  if (!any_rows_) return;
  at_layer.masks = reinterpret_cast<const std::uint32_t*>(masks_at(layer, run.first_slice));
  at_layer.mask_head_stride = n_pages_;
  at_layer.mask_seq_stride = run.one_each() ? std::int64_t{n_kv_heads_} * n_pages_ : 0;
  at_layer.protected_pages.table = pages_at(run.first_slice);
  at_layer.protected_pages.seq_stride = run.one_each() ? n_protected_ : 0;
  of_rows.protected_tokens = counts_at(layer, run.first_slice);
  of_rows.protected_head_stride = 1;
  of_rows.protected_seq_stride = run.one_each() ? n_kv_heads_ : 0;
}

void DeviceProtector::add_slices_to(kvant_decode_layer& at_layer, int layer) const {
  if (!any_rows_) return;
  at_layer.masks = reinterpret_cast<const std::uint32_t*>(masks_at(layer, 0));
  at_layer.mask_head_stride = n_pages_;
  at_layer.mask_seq_stride = std::int64_t{n_kv_heads_} * n_pages_;
  at_layer.protected_pages.table = pages_at(0);
  at_layer.protected_pages.seq_stride = n_protected_;
}

bool DeviceProtector::seal(Step& step, int layer, const SealPoint& point, const kvant_decode_layer& at_layer,
                           const float* q) {
  kvant_decode_layer of_slice = at_layer;
  of_slice.tail.table += point.slice * at_layer.tail.seq_stride;
  of_slice.sealed.table += point.slice * at_layer.sealed.seq_stride;
  if (any_rows_) {
    of_slice.masks = reinterpret_cast<const std::uint32_t*>(masks_at(layer, point.slice));
    of_slice.mask_head_stride = n_pages_;
    of_slice.protected_pages.table = pages_at(point.slice);
  }
  return (point.page_end == 0 || weigh(step, layer, point, of_slice, q)) &&
         (point.end_sealed == point.n_sealed || choose_and_seal(step, layer, point, of_slice));
}

// Writes the keys of all tokens up to the page's end as BF16 rows. If the previous call was for the same
// layer and slice, the rows of pages that were sealed before that call are still there, and only the rows
// after them are written.
bool DeviceProtector::make_keys(Step& step, int layer, const SealPoint& point,
                                const kvant_decode_layer& of_slice) {
  const Plan& plan = step.plan();
  const Geometry& g = plan.geometry;
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape shape = formats.of(1, plan);
  const std::int32_t counts[] = {point.n_sealed, point.page_end - point.n_sealed * kPageTokens};
  device_->upload(indices_.memory(), counts, sizeof counts);
  const auto* on_device = reinterpret_cast<const std::int32_t*>(indices_.memory());
  kvant_decode_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  lengths.sealed_pages = point.n_sealed > 0 ? on_device : nullptr;
  lengths.tail_tokens = on_device + 1;
  kvant_decode_layer at_page = of_slice;
  at_page.tail.table += point.n_sealed - step.ledger(point.slice, layer).n_sealed();
  const bool go_on = keys_of_.layer == layer && keys_of_.slice == point.slice;
  kvant_dequantization rows{};
  rows.struct_size = sizeof rows;
  rows.n_seqs = 1;
  rows.first_page = go_on ? keys_of_.n_sealed : 0;
  rows.n_pages = point.page_end / kPageTokens - rows.first_page;
  rows.n_heads = g.n_kv_heads;
  rows.token_stride = key_size(g);
  rows.head_stride = g.head_dim;
  rows.keys = keys_.memory() + 2 * rows.first_page * kPageTokens * rows.token_stride;
  keys_of_ = {layer, point.slice, point.n_sealed};
  return check(step, "weighing tokens",
               device_->library().dequantize(&shape, &lengths, &at_page, &rows, device_->stream()));
}

// Sums the weights that the observers of the ending page give to each token, and updates the scores.
bool DeviceProtector::weigh(Step& step, int layer, const SealPoint& point, const kvant_decode_layer& of_slice,
                            const float* q) {
  const Plan& plan = step.plan();
  const Geometry& g = plan.geometry;
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape shape = formats.of(1, plan);
  if (!make_keys(step, layer, point, of_slice)) return false;
  kvant_token_weights weights{};
  weights.struct_size = sizeof weights;
  weights.n_tokens = point.page_end;
  weights.q_type = KVANT_F32;
  weights.q_token_stride = query_size(g);
  weights.q_head_stride = g.head_dim;
  weights.lse_token_stride = g.n_heads;
  weights.lse_head_stride = 1;
  weights.keys = keys_.memory();
  weights.key_token_stride = key_size(g);
  weights.key_head_stride = g.head_dim;
  weights.weights = reinterpret_cast<float*>(weights_.memory());
  weights.weight_head_stride = point.page_end;
  const int first_token = step.first_token(point.slice);
  const OpenObservers& before = device_sequence(step, point.slice).observers();
  const int observer = first_observer_of(point.page_end, first_token, before.first);
  // Adds the queries of tokens [first, end), which lie at `queries`.
  const auto add = [&](int first, int end, const float* queries) {
    weights.n_queries = end - first;
    weights.n_visible = first + 1;
    weights.q = queries;
    return check(step, "weighing tokens",
                 device_->library().weigh_tokens(&shape, &weights, device_->stream()));
  };
  const std::size_t weight_bytes = sizeof(float) * g.n_kv_heads * point.page_end;
  device_->clear_rows(weights_.memory(), weight_bytes, weight_bytes, 1);
  if (observer < first_token) {
    const LayerObservers kept =
        observer_rows(device_pages(step), DeviceSequence::entry_of(before.rows), layer);
    const int row = observer_row(observer);
    weights.lse = kept.lse + row * g.n_heads;
    if (!add(observer, first_token, kept.q + row * query_size(g))) return false;
  }
  const int first = std::max(observer, first_token);
  if (first < point.page_end) {
    const int row = step.first_row(point.slice) + first - first_token;
    weights.lse = lse_of(row);
    // Rows in blocks have not attended yet, so the call finds their LSE.
    weights.found_lse = in_blocks_[point.slice] ? lse_of(row) : nullptr;
    if (!add(first, point.page_end, q + row * query_size(g))) return false;
  }

  std::vector<float> sums(static_cast<std::size_t>(g.n_kv_heads) * point.page_end);
  device_->download(sums.data(), weights_.memory(), weight_bytes);
  // Only a broken model gives sums that are not finite. Its logits are refused when the step ends.
  std::replace_if(
      sums.begin(), sums.end(), [](float x) { return !std::isfinite(x); }, 0.0F);
  ProtectedTokens& tokens = *device_sequence(step, point.slice).next_tokens();
  std::vector<double> of_tokens(point.page_end);
  for (int h = 0; h < g.n_kv_heads; ++h) {
    std::copy_n(sums.begin() + std::ptrdiff_t{h} * point.page_end, point.page_end, of_tokens.begin());
    tokens.heads[g.head_index(layer, h)].scores.end_page(point.page_end, observer, of_tokens);
  }
  return true;
}

bool DeviceProtector::choose_and_seal(Step& step, int layer, const SealPoint& point,
                                      const kvant_decode_layer& of_slice) {
  const Plan& plan = step.plan();
  const Geometry& g = plan.geometry;
  const PageLibrary& library = device_->library();
  const LayerShape formats = layer_shape(plan, layer);
  const kvant_decode_shape shape = formats.of(1, plan);
  const DeviceSequence& sequence = device_sequence(step, point.slice);
  const int n_before = step.ledger(point.slice, layer).n_sealed();
  std::vector<TokenMask> masks(static_cast<std::size_t>(n_kv_heads_) * n_pages_);
  std::vector<std::int32_t> counts, heads, from, to;
  for (int h = 0; h < n_kv_heads_; ++h) {
    ProtectedTokens::Head& head = sequence.next_tokens()->heads[g.head_index(layer, h)];
    const std::size_t n_kept = head.tokens.size();
    for (int page = point.n_sealed; page < point.end_sealed; ++page) head.seal(plan.layers[layer], page);
    KVANT_CHECK(head.tokens.size() <= sequence.newest_rows().size() * kPageTokens,
                "more rows than were reserved");
    for (const PageMask& page : head.masks) masks[std::size_t{1} * h * n_pages_ + page.page] = page.mask;
    counts.push_back(static_cast<std::int32_t>(head.tokens.size()));
    for (std::size_t i = n_kept; i < head.tokens.size(); ++i) {
      heads.push_back(h);
      from.push_back(head.tokens[i] - n_before * kPageTokens);
      to.push_back(static_cast<std::int32_t>(i));
    }
  }
  device_->upload(masks_at(layer, point.slice), masks.data(), masks.size() * sizeof masks[0]);
  device_->upload(counts_at(layer, point.slice), counts.data(), counts.size() * sizeof counts[0]);
  const std::size_t n_rows = heads.size();
  std::vector<std::int32_t> indices(n_rows);  // The index of the sequence is 0.
  for (const auto* list : {&heads, &from, &to}) indices.insert(indices.end(), list->begin(), list->end());
  indices.push_back(point.n_sealed - n_before);
  indices.push_back(point.n_sealed);
  device_->upload(indices_.memory(), indices.data(), indices.size() * sizeof indices[0]);
  const auto* on_device = reinterpret_cast<const std::int32_t*>(indices_.memory());
  const std::int32_t* pages = on_device + 4 * n_rows;
  const kvant_seal_range range{sizeof range,
                               pages,
                               pages + 1,
                               nullptr,
                               point.end_sealed - point.n_sealed,
                               0,
                               device_pages(step).constants().page_metrics(layer)};
  if (!check(step, "sealing", library.seal_pages(&shape, &of_slice, &range, device_->stream()))) return false;
  if (n_rows == 0) return true;
  const kvant_protected_rows rows{sizeof rows,
                                  static_cast<std::int32_t>(n_rows),
                                  0,
                                  on_device,
                                  on_device + n_rows,
                                  on_device + 2 * n_rows,
                                  on_device + 3 * n_rows};
  return check(step, "keeping protected tokens",
               library.protect(&shape, &of_slice, &rows, device_->stream()));
}

void DeviceProtector::keep_observers(const Step& step, int layer, const float* q) {
  const Geometry& g = step.plan().geometry;
  for (int s = 0; s < n_slices_; ++s) {
    const PageEntry entry = DeviceSequence::entry_of(step.pages(s).next_observers().rows);
    if (!entry.held()) continue;
    const int end = step.ledger(s, layer).end();
    const int first = std::max(step.first_token(s), end - open_observers(end));
    const LayerObservers to = observer_rows(device_pages(step), entry, layer);
    const std::size_t n = end - first, row = step.first_row(s) + first - step.first_token(s),
                      to_row = observer_row(first);
    device_->copy(to.q + to_row * query_size(g), q + row * query_size(g), n * query_size(g) * sizeof(float));
    device_->copy(to.lse + to_row * g.n_heads, lse_of(static_cast<int>(row)), n * g.n_heads * sizeof(float));
  }
}

}  // namespace kvant
