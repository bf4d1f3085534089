#include "cache/device_sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/linear_correction.h"
#include "cache/device_head_pages.h"
#include "cache/head_state.h"
#include "cache/page_counts.h"

namespace kvant {

DeviceSequence::DeviceSequence(DevicePageStore& store) : SequencePages(store), store_(store) {}

// Returns null if memory is exhausted.
std::shared_ptr<SequenceNumbers> DeviceSequence::take(int room) {
  EntryHold entry(store_.auxiliary(), store_.auxiliary().take(room));
  return entry.entry().held() ? std::make_shared<NumbersEntry>(std::move(entry)) : nullptr;
}

// In a step that seals, the library writes all sums. Only the first sums of a sequence must be zeros before
// that.
std::shared_ptr<SequenceNumbers> DeviceSequence::make_sums() {
  auto made = take(kSumsRoom);
  if (made != nullptr && sums() == nullptr) store_.clear_sums(entry_of(made));
  return made;
}

std::shared_ptr<SequenceNumbers> DeviceSequence::make_observers(const SequenceNumbers* from) {
  auto made = take(kObserversRoom);
  if (made != nullptr && from != nullptr)
    store_.auxiliary().copy(static_cast<const NumbersEntry&>(*from).hold.entry(), kObservers, entry_of(made));
  return made;
}

Result<ListedPages> DeviceSequence::list_pages(int layer, int kv_head, int first_visible) const {
  const auto copied = std::make_shared<DeviceHeadPages>();
  const int n_sealed = ledger(store_.group_of(layer)).end_sealed();
  KVANT_RETURN_IF_ERROR(copied->read(*this, layer, kv_head, first_visible, n_sealed));
  return ListedPages{copied->pages(), copied};
}

// --- images ---

// A device with an unquantized plan seals nothing. The image then has the sealed pages that a cache in host
// memory would have.
int DeviceSequence::image_sealed(int index) const {
  const PageLedger& of_group = ledger(index);
  if (group(index).rules.seals) return of_group.n_sealed();
  return page_counts(of_group.length(), plan().layers.front().window, /*sliding_window=*/0,
                     of_group.n_sealed())
      .sealed;
}

// The place of an entry's keys has a head's sums, or the queries of a layer that observe. The place of the
// values has the LSEs of these queries. The device's queries lack the softmax scale, which queries of images
// include.
struct DeviceSequence::EntryNumbers {
  std::vector<float> all;
  const EntryLayout& layout;
  float* at(int layer, int kv_head, Side side) {
    return all.data() + layout.layers[layer].place(kv_head, side) / sizeof(float);
  }
};

DeviceSequence::EntryNumbers DeviceSequence::numbers_of(int room) const {
  const EntryLayout& layout = store_.auxiliary().layout(room);
  return {std::vector<float>(layout.bytes / sizeof(float)), layout};
}

// Calls see(q, lse, row) for the observers of a head: the numbers of an entry and the first row of a token,
// which has a row for each query head of the group.
template <class See>
void DeviceSequence::for_each_observer(EntryNumbers& numbers, int layer, int kv_head, const See& see) const {
  const Geometry& g = plan().geometry;
  const int group = g.group(layer);
  for (int token = observers().first; token < length(); ++token) {
    const std::ptrdiff_t row = observer_row(token), at = row * g.n_heads + kv_head * group;
    see(numbers.at(layer, 0, Side::key) + at * g.head_dim, numbers.at(layer, 0, Side::value) + at,
        row * group);
  }
}

Status DeviceSequence::on_save(std::vector<HeadImage>& images) const {
  const Geometry& g = plan().geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    if (tokens() == nullptr && image_sealed(store_.group_of(layer)) > 0 && plan().layers[layer].sink > 0 &&
        rows().empty())
      return error("cannot save a sequence of '{}' whose pages lie on {}: leave the sink out with sink=0",
                   label(plan().recipe), store_.device()->name());
  }
  const auto download = [&](const std::shared_ptr<SequenceNumbers>& from, EntryNumbers& to) {
    return store_.auxiliary().download(entry_of(from), reinterpret_cast<std::byte*>(to.all.data()));
  };
  for (const auto& [from, to] :
       {std::pair(sums(), &HeadImage::sums), std::pair(checkpoint_sums(), &HeadImage::checkpoint_sums)}) {
    if (from == nullptr) continue;
    EntryNumbers numbers = numbers_of(kSumsRoom);
    KVANT_RETURN_IF_ERROR(download(from, numbers));
    for_each_head(g, [&, to = to](int layer, int h, int index) {
      const float* at = numbers.at(layer, h, Side::key);
      if (plan().head(layer, h).corrected) (images[index].*to).assign(at, at + correction_sums(g.dim(layer)));
    });
  }
  if (observers().rows == nullptr) return {};
  EntryNumbers numbers = numbers_of(kObserversRoom);
  KVANT_RETURN_IF_ERROR(download(observers().rows, numbers));
  for_each_head(g, [&](int layer, int h, int index) {
    if (images[index].first_observer < 0) return;
    ObserverRows& rows = images[index].observers;
    const int group = g.group(layer), n = group * g.head_dim;
    rows.resize(group, g.head_dim);
    for_each_observer(numbers, layer, h, [&](const float* q, const float* lse, std::ptrdiff_t row) {
      std::transform(q, q + n, rows.q.begin() + row * g.head_dim,
                     [&](float x) { return x * g.softmax_scale; });
      std::copy_n(lse, group, rows.lse.begin() + row);
    });
  });
  return {};
}

bool DeviceSequence::on_load(std::vector<HeadImage>& images) {
  const Geometry& g = plan().geometry;
  const auto upload = [&](const EntryNumbers& from, const std::shared_ptr<SequenceNumbers>& to) {
    store_.auxiliary().upload(reinterpret_cast<const std::byte*>(from.all.data()), entry_of(to));
  };
  std::vector<std::shared_ptr<SequenceNumbers>> loaded;
  for (const auto from : {&HeadImage::sums, &HeadImage::checkpoint_sums}) {
    loaded.emplace_back();
    if (std::ranges::all_of(images, [&](const HeadImage& head) { return (head.*from).empty(); })) continue;
    EntryNumbers numbers = numbers_of(kSumsRoom);
    for_each_head(g, [&](int layer, int h, int index) {
      std::ranges::copy(images[index].*from, numbers.at(layer, h, Side::key));
    });
    if ((loaded.back() = take(kSumsRoom)) == nullptr) return false;
    upload(numbers, loaded.back());
  }
  set_sums(loaded[0], loaded[1]);
  if (observers().rows == nullptr) return true;
  EntryNumbers numbers = numbers_of(kObserversRoom);
  for_each_head(g, [&](int layer, int h, int index) {
    const ObserverRows& rows = images[index].observers;
    if (images[index].first_observer < 0) return;
    const int group = g.group(layer), n = group * g.head_dim;
    for_each_observer(numbers, layer, h, [&](float* q, float* lse, std::ptrdiff_t row) {
      const auto of_token = rows.q.begin() + row * g.head_dim;
      std::transform(of_token, of_token + n, q, [&](float x) { return x / g.softmax_scale; });
      std::copy_n(rows.lse.begin() + row, group, lse);
    });
  });
  upload(numbers, observers().rows);
  return true;
}

// --- of a step ---

DeviceSequence& device_sequence(const Step& step, int slice) {
  auto* pages = dynamic_cast<DeviceSequence*>(&step.pages(slice));
  KVANT_CHECK(pages != nullptr, "pages of a device that lie elsewhere");
  return *pages;
}

DevicePageStore& device_pages(const Step& step) {
  auto* pages = dynamic_cast<DevicePageStore*>(&step.store());
  KVANT_CHECK(pages != nullptr, "pages of a device that lie elsewhere");
  return *pages;
}

}  // namespace kvant
