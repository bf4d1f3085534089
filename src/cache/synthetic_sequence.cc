#include "cache/synthetic_sequence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include "base/float16.h"
#include "cache/device_sequence.h"
#include "cache/host_sequence.h"
#include "cache/page_counts.h"

namespace kvant {
namespace {

// Returns the weights that one observer gives to the tokens of a sequence. The weights are the fractional
// parts of multiples of the golden ratio, so all pages have nearly equal shares above any threshold.
std::vector<double> golden_weights(int n_tokens) {
  constexpr double kGolden = 0.6180339887498949;
  std::vector<double> weights(n_tokens);
  for (int t = 0; t < n_tokens; ++t) weights[t] = kGolden * t - std::floor(kGolden * t);
  return weights;
}

// --- in host memory ---

class HostFill final : public SyntheticPages {
 public:
  HostFill(const Plan& plan, std::uint64_t seed);
  Status write(Step& step) override;

 private:
  void write_head(HeadState& head, int layer, int n_tokens);

  const Plan& plan_;
  std::vector<float> k_, v_, scratch_;
};

HostFill::HostFill(const Plan& plan, std::uint64_t seed)
    : plan_(plan), k_(static_cast<std::size_t>(kPageTokens) * plan.geometry.head_dim), v_(k_.size()) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (float& x : k_) x = normal(random);
  for (float& x : v_) x = normal(random);
}

// Appends random tokens and seals every page as soon as possible.
void HostFill::write_head(HeadState& head, int layer, int n_tokens) {
  const Geometry& g = plan_.geometry;
  for (int done = 0; done < n_tokens;) {
    const int n = std::min(kPageTokens - head.length() % kPageTokens, n_tokens - done);
    head.append({k_.data(), n, g.dim(layer)}, {v_.data(), n, g.dim(layer)});
    if (head.scores() != nullptr && head.length() % kPageTokens == 0)
      head.end_page(head.length(), head.length() - 1, golden_weights(head.length()));
    const int due = sealed_pages(head.length(), plan_.layers[layer].window);
    if (due > head.n_sealed()) head.seal_until(due, scratch_);
    done += n;
  }
}

Status HostFill::write(Step& step) {
  const Geometry& g = plan_.geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.kv_heads(layer); ++h)
      write_head(head_of(step, 0, layer, h), layer, step.slices()[0].n_tokens);
  }
  if (g.is_recurrent()) std::memset(step.state_after(0), 0, static_cast<std::size_t>(g.recurrent_bytes()));
  return {};
}

// --- on a device ---

// Holds the tables in device memory with which the library writes and seals one page of a group's layers.
struct PageTables {
  std::int32_t tail_id = 0, sealed_id = 0;
  std::int32_t tail_page = 0, sealed_page = 0;
  std::int32_t seq[kPageTokens] = {}, token[kPageTokens] = {};
};

// Returns how many numbers one side of a page has in the widest layer.
std::size_t page_values(const Geometry& g) {
  int most = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) most = std::max(most, g.n_kv(layer));
  return std::size_t{kPageTokens} * most;
}

// Writes and seals one page of each layer group, and copies this page to all others.
class DeviceFill final : public SyntheticPages {
 public:
  DeviceFill(DevicePageStore& store, std::uint64_t seed)
      : plan_(store.plan()),
        store_(store),
        device_(*store.device()),
        seed_(seed),
        rows_(nullptr, {&device_}) {}

  Status write(Step& step) override;

 private:
  struct Group {
    EntryHold tail, sealed;  // The entries that are copied. `sealed` is not held if nothing is ever sealed.
    DeviceMemory tables{nullptr, {nullptr}};
  };
  // Holds the rows that the step protects, and the table of their entries, in device memory.
  struct ProtectedRows {
    int n = 0;
    DeviceMemory numbers{nullptr, {nullptr}};
  };

  Error short_of_memory() const {
    return shortage(
        "out of memory on {} while filling a sequence: use fewer tokens or a recipe with fewer bits",
        device_.name());
  }
  Status make_pages();
  Status make_rows();
  Status make_page(int group);
  kvant_decode_layer layer_at(const Group& group, int layer) const;
  Status append(const kvant_decode_shape& shape, const kvant_decode_layer& at_layer, const Group& group,
                int layer);
  Status seal(const kvant_decode_shape& shape, const kvant_decode_layer& at_layer, const Group& group,
              int layer);
  void protect_tokens(const Step& step);
  Result<ProtectedRows> list_protected_rows(const Step& step, const std::vector<int>& n_before, int layer);
  Status protect(const Step& step, const std::vector<int>& n_before);
  void clear_observers(const Step& step);

  const Plan& plan_;
  DevicePageStore& store_;
  PageDevice& device_;
  std::uint64_t seed_;
  DeviceMemory rows_;  // a page of random BF16 rows of K, then of V
  std::vector<Group> groups_;
};

Status DeviceFill::make_rows() {
  std::mt19937_64 random(seed_);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> rows(2 * page_values(plan_.geometry));
  for (std::uint16_t& x : rows) x = bf16_from_float(normal(random));
  rows_ = allocate_on(device_, rows.size() * sizeof rows[0]);
  if (rows_ == nullptr) return short_of_memory();
  device_.upload(rows_.get(), rows.data(), rows.size() * sizeof rows[0]);
  return {};
}

kvant_decode_layer DeviceFill::layer_at(const Group& group, int layer) const {
  auto* tables = reinterpret_cast<const PageTables*>(group.tables.get());
  kvant_decode_layer at_layer{};
  at_layer.struct_size = sizeof at_layer;
  at_layer.tail = store_.tails(layer).pages(layer);
  at_layer.tail.table = &tables->tail_id;
  store_.add_sealed(at_layer, layer);
  at_layer.sealed.table = &tables->sealed_id;
  at_layer.sink = store_.has_sink() ? plan_.layers[layer].sink : 0;
  store_.constants().add_to(at_layer, layer);
  return at_layer;
}

Status DeviceFill::append(const kvant_decode_shape& shape, const kvant_decode_layer& at_layer,
                          const Group& group, int layer) {
  const Geometry& g = plan_.geometry;
  auto* tables = reinterpret_cast<const PageTables*>(group.tables.get());
  kvant_new_rows new_rows{};
  new_rows.struct_size = sizeof new_rows;
  new_rows.n_rows = kPageTokens;
  new_rows.seq = tables->seq;
  new_rows.tail_token = tables->token;
  new_rows.keys = rows_.get();
  new_rows.values = rows_.get() + page_values(g) * sizeof(std::uint16_t);
  new_rows.key_row_stride = new_rows.value_row_stride = g.n_kv(layer);
  new_rows.key_head_stride = new_rows.value_head_stride = g.dim(layer);
  return library_status(device_, "filling a sequence",
                        device_.library().append(&shape, &at_layer, &new_rows, device_.stream()));
}

Status DeviceFill::seal(const kvant_decode_shape& shape, const kvant_decode_layer& at_layer,
                        const Group& group, int layer) {
  auto* tables = reinterpret_cast<const PageTables*>(group.tables.get());
  const kvant_seal_range range{sizeof range,
                               &tables->tail_page,
                               &tables->sealed_page,
                               nullptr,
                               1,
                               0,
                               store_.constants().page_metrics(layer)};
  return library_status(device_, "sealing a page",
                        device_.library().seal_pages(&shape, &at_layer, &range, device_.stream()));
}

Status DeviceFill::make_page(int index) {
  Group& group = groups_[index];
  DeviceEntryStore& pages = store_.of_group(index);
  const bool seals = !is_unquantized(plan_);
  group.tail = EntryHold(pages, pages.take(kPageTokens));
  if (seals) group.sealed = EntryHold(pages, pages.take(kSealedRoom));
  group.tables = allocate_on(device_, sizeof(PageTables));
  if (!group.tail.entry().held() || (seals && !group.sealed.entry().held()) || group.tables == nullptr)
    return short_of_memory();
  PageTables tables;
  tables.tail_id = pages.table(kPageTokens).table_id(group.tail.entry().id);
  if (seals) tables.sealed_id = pages.table(kSealedRoom).table_id(group.sealed.entry().id);
  for (int t = 0; t < kPageTokens; ++t) tables.token[t] = t;
  device_.upload(group.tables.get(), &tables, sizeof tables);
  for (const int layer : store_.layers(index)) {
    const LayerShape formats = layer_shape(plan_, layer);
    const kvant_decode_shape shape = formats.of(1, plan_);
    const kvant_decode_layer at_layer = layer_at(group, layer);
    KVANT_RETURN_IF_ERROR(append(shape, at_layer, group, layer));
    if (seals) KVANT_RETURN_IF_ERROR(seal(shape, at_layer, group, layer));
  }
  return device_.finish();
}

Status DeviceFill::make_pages() {
  KVANT_RETURN_IF_ERROR(make_rows());
  groups_.resize(store_.n_groups());
  for (int group = 0; group < store_.n_groups(); ++group) KVANT_RETURN_IF_ERROR(make_page(group));
  return {};
}

// Chooses the tokens that the step protects, equally for all heads.
void DeviceFill::protect_tokens(const Step& step) {
  ProtectedTokens& tokens = *device_sequence(step, 0).next_tokens();
  const PageLedger& ledger = step.ledger(0, /*layer=*/0);
  const ProtectedTokens::Head* chosen = nullptr;
  for (int layer = 0; layer < plan_.geometry.n_layers; ++layer) {
    for (int h = 0; protects_by_score(plan_, layer) && h < plan_.geometry.kv_heads(layer); ++h) {
      ProtectedTokens::Head& head = tokens.heads[plan_.geometry.head_index(layer, h)];
      if (chosen != nullptr) {
        head = *chosen;
        continue;
      }
      int n_sealed = ledger.n_sealed();
      for (int end = (ledger.length() / kPageTokens + 1) * kPageTokens; end <= ledger.end();
           end += kPageTokens) {
        head.scores.end_page(end, end - 1, golden_weights(end));
        const int due = sealed_pages(end, device_window(plan_));
        for (; n_sealed < due; ++n_sealed) head.seal(plan_.layers[layer], n_sealed);
      }
      chosen = &head;
    }
  }
}

// Lists the rows that the step adds in a layer to the n_before that each head had.
Result<DeviceFill::ProtectedRows> DeviceFill::list_protected_rows(const Step& step,
                                                                  const std::vector<int>& n_before,
                                                                  int layer) {
  const DeviceSequence& sequence = device_sequence(step, 0);
  std::vector<std::int32_t> heads, from, to;
  for (int h = 0; h < plan_.geometry.kv_heads(layer); ++h) {
    const int index = plan_.geometry.head_index(layer, h);
    const std::vector<int>& tokens = sequence.newest_tokens()->heads[index].tokens;
    for (int i = n_before[index]; i < static_cast<int>(tokens.size()); ++i) {
      heads.push_back(h);
      from.push_back(tokens[i] % kPageTokens);
      to.push_back(i);
    }
  }
  ProtectedRows rows{static_cast<int>(heads.size()), DeviceMemory{nullptr, {&device_}}};
  if (rows.n == 0) return rows;
  std::vector<std::int32_t> numbers(heads.size());  // The index of the sequence is 0.
  for (const auto* list : {&heads, &from, &to}) numbers.insert(numbers.end(), list->begin(), list->end());
  for (const EntryHold& page : sequence.next_protection().pages)
    numbers.push_back(store_.protected_rows().table_id(page.entry().id));
  const std::size_t bytes = numbers.size() * sizeof numbers[0];
  rows.numbers = allocate_on(device_, bytes);
  if (rows.numbers == nullptr) return short_of_memory();
  device_.upload(rows.numbers.get(), numbers.data(), bytes);
  return rows;
}

// All protected rows come from the single random page.
Status DeviceFill::protect(const Step& step, const std::vector<int>& n_before) {
  for (int layer = 0; layer < plan_.geometry.n_layers; ++layer) {
    if (!protects_by_score(plan_, layer)) continue;
    auto rows = list_protected_rows(step, n_before, layer);
    if (!rows.ok()) return rows.error();
    const int n = rows->n;
    if (n == 0) continue;
    const auto* numbers = reinterpret_cast<const std::int32_t*>(rows->numbers.get());
    const LayerShape formats = layer_shape(plan_, layer);
    const kvant_decode_shape shape = formats.of(1, plan_);
    kvant_decode_layer at_layer = layer_at(groups_[store_.group_of(layer)], layer);
    at_layer.protected_pages = store_.protected_rows().pages(layer);
    at_layer.protected_pages.table = numbers + std::ptrdiff_t{4} * n;
    const kvant_protected_rows of_library{sizeof of_library,
                                          n,
                                          0,
                                          numbers,
                                          numbers + n,
                                          numbers + std::ptrdiff_t{2} * n,
                                          numbers + std::ptrdiff_t{3} * n};
    KVANT_RETURN_IF_ERROR(
        library_status(device_, "keeping protected tokens",
                       device_.library().protect(&shape, &at_layer, &of_library, device_.stream())));
    KVANT_RETURN_IF_ERROR(device_.finish());  // The device must finish before the numbers are freed.
  }
  return {};
}

// Sets observing queries to zeros, to which all tokens are alike.
void DeviceFill::clear_observers(const Step& step) {
  const PageEntry observers = device_sequence(step, 0).next_protection().observers.entry();
  if (!observers.held()) return;
  DeviceEntryTable& table = store_.observers();
  device_.clear_rows(table.data(observers.id), table.layout().bytes, table.layout().bytes, 1);
}

Status DeviceFill::write(Step& step) {
  device_.enter();
  if (rows_ == nullptr) KVANT_RETURN_IF_ERROR(make_pages());
  const DeviceSequence& pages_of = device_sequence(step, 0);
  if (pages_of.tokens() != nullptr) {
    std::vector<int> n_before;
    for (const ProtectedTokens::Head& head : pages_of.tokens()->heads)
      n_before.push_back(static_cast<int>(head.tokens.size()));
    const PageLedger& ledger = step.ledger(0, /*layer=*/0);
    if (ledger.end() / kPageTokens > ledger.length() / kPageTokens) protect_tokens(step);
    KVANT_RETURN_IF_ERROR(protect(step, n_before));
    clear_observers(step);
  }
  if (pages_of.next_sums() != nullptr) store_.clear_sums(DeviceSequence::entry_of(pages_of.next_sums()));
  if (plan_.geometry.is_recurrent()) {
    const auto bytes = static_cast<std::size_t>(plan_.geometry.recurrent_bytes());
    device_.clear_rows(step.state_after(0), bytes, bytes, 1);
  }
  for (int group = 0; group < store_.n_groups(); ++group) {
    const std::vector<int>& layers = store_.layers(group);
    const PageLedger& ledger = step.ledger(0, layers.front());
    DeviceEntryStore& pages = store_.of_group(group);
    for (int page = step.first_token(0) / kPageTokens; page < pages_for(ledger.end()); ++page)
      pages.copy(groups_[group].tail.entry(), kPageTokens, ledger.tail(page));
    for (int page = ledger.n_sealed(); page < ledger.end_sealed(); ++page)
      pages.copy(groups_[group].sealed.entry(), kPageTokens, ledger.sealed(page));
    const bool seals_first = ledger.n_sealed() == 0 && ledger.end_sealed() > 0;
    for (const int layer : layers) {
      if (seals_first && store_.has_sink() && plan_.layers[layer].sink > 0)
        store_.keep_sink(groups_[group].tail.entry(), pages_of.sink(), layer);
    }
  }
  return device_.finish();
}

}  // namespace

std::unique_ptr<SyntheticPages> HostStore::synthetic_pages(std::uint64_t seed) {
  return std::make_unique<HostFill>(plan_, seed);
}

std::unique_ptr<SyntheticPages> DevicePageStore::synthetic_pages(std::uint64_t seed) {
  return std::make_unique<DeviceFill>(*this, seed);
}

Status fill_synthetic(Cache& cache, SequenceId sequence, int n_tokens, std::uint64_t seed) {
  constexpr int kStepTokens = 4 * kPageTokens;
  if (cache.length(sequence) > 0)
    return error("cannot fill sequence {}: it holds {} tokens already", sequence, cache.length(sequence));
  try {
    std::unique_ptr<SyntheticPages> pages;
    for (int done = 0; done < n_tokens; done += kStepTokens) {
      auto step = cache.reserve({{sequence, std::min(kStepTokens, n_tokens - done), /*is_prompt=*/false}});
      if (!step.ok()) return step.error();
      if (pages == nullptr) pages = (*step)->store().synthetic_pages(seed);
      KVANT_RETURN_IF_ERROR(pages->write(**step));
      KVANT_RETURN_IF_ERROR((*step)->commit());
    }
    return {};
  } catch (const std::bad_alloc&) {
    return shortage("out of memory while filling a sequence: use fewer tokens or a recipe with fewer bits");
  }
}

}  // namespace kvant
