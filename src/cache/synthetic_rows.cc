#include "cache/synthetic_rows.h"

namespace kvant {

SyntheticRows::SyntheticRows(const Plan& plan, DevicePageStore& store, const DeviceProtection& protection)
    : store_(store), device_(*store.device()), memory_(nullptr, {&device_}) {
  if (protection.pages.empty()) return;
  const Geometry& g = plan.geometry;
  int layer = 0;
  while (!protects_by_score(plan, layer)) ++layer;
  std::vector<std::int32_t> heads, from, to;
  for (int h = 0; h < g.n_kv_heads; ++h) {
    const std::vector<int>& tokens = protection.tokens->heads[g.head_index(layer, h)].tokens;
    for (int i = 0; i < static_cast<int>(tokens.size()); ++i) {
      heads.push_back(h);
      from.push_back(tokens[i] % kPageTokens);
      to.push_back(i);
    }
  }
  n_rows_ = static_cast<int>(heads.size());
  if (n_rows_ == 0) return;
  std::vector<std::int32_t> numbers(heads.size());  // of the sequence: 0
  for (const auto* list : {&heads, &from, &to}) numbers.insert(numbers.end(), list->begin(), list->end());
  for (const EntryHold& rows : protection.pages)
    numbers.push_back(store.protected_rows().table_id(rows.entry().id));
  const std::size_t bytes = numbers.size() * sizeof numbers[0];
  memory_ = allocate_on(device_, bytes);
  if (memory_ != nullptr) device_.upload(memory_.get(), numbers.data(), bytes);
}

Status SyntheticRows::fill(const kvant_decode_shape& shape, kvant_decode_layer of_layer, int layer) const {
  if (n_rows_ == 0) return {};
  const auto* numbers = reinterpret_cast<const std::int32_t*>(memory_.get());
  of_layer.protected_pages = store_.protected_rows().pages(layer);
  of_layer.protected_pages.table = numbers + std::ptrdiff_t{4} * n_rows_;
  const kvant_protected_rows rows{sizeof rows,
                                  n_rows_,
                                  0,
                                  numbers,
                                  numbers + n_rows_,
                                  numbers + std::ptrdiff_t{2} * n_rows_,
                                  numbers + std::ptrdiff_t{3} * n_rows_};
  return library_status(device_, "keeping protected tokens",
                        device_.library().protect(&shape, &of_layer, &rows, device_.stream()));
}

}  // namespace kvant
