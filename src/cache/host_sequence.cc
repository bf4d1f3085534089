#include "cache/host_sequence.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/linear_correction.h"
#include "cache/layer_groups.h"

namespace kvant {

namespace {

HostSums& host_sums(const std::shared_ptr<SequenceNumbers>& sums) {
  return static_cast<HostSums&>(*sums);
}

bool leaves_out_tokens(const LayerPlan& layer) {
  return layer.sink > 0 || layer.evict > 0 || layer.needs_scores();
}

}  // namespace

HostStore::HostStore(const Plan& plan, std::int64_t byte_limit)
    : SequenceStore(plan, byte_limit, nullptr, std::ranges::any_of(plan.layers, leaves_out_tokens)),
      pools_(mutable_budget()) {
  for (const LayersOfEntry& found : layer_groups(plan)) {
    pages_.push_back(std::make_unique<HostPageStore>(plan, found.layers, pools_));
    add_group(found.rules, found.layers, *pages_.back());
  }
  std::vector<int> rows_of_layer;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer)
    rows_of_layer.push_back(protected_page_rows(plan, layer));
  row_store_ = std::make_unique<HostPageStore>(plan, pools_, rows_of_layer);
  set_protected_entries(*row_store_, std::move(rows_of_layer));
}

std::unique_ptr<SequencePages> HostStore::make_sequence() {
  return std::make_unique<HostSequence>(*this);
}

Status HostStore::save_state(ByteWriter& to, const float* state) {
  const auto n_bytes = static_cast<std::size_t>(plan_.geometry.recurrent_bytes());
  std::byte* at = to.skip(n_bytes);
  state == nullptr ? std::memset(at, 0, n_bytes) : std::memcpy(at, state, n_bytes);
  return {};
}

void HostStore::load_state(const std::byte* from, float* state) {
  std::memcpy(state, from, static_cast<std::size_t>(plan_.geometry.recurrent_bytes()));
}

HostSequence::HostSequence(HostStore& store) : SequencePages(store), store_(store) {
  const Geometry& g = geometry();
  heads_.reserve(static_cast<std::size_t>(g.n_all_kv_heads()));
  for_each_head(g, [&](int layer, int h, int /*index*/) {
    const int group = store.group_of(layer);
    heads_.emplace_back(store.plan(), layer, h,
                        HeadPages{&store.pages(group), this, &ledger(group), &store.row_store()});
  });
}

// --- a step ---

bool HostSequence::on_reserve() {
  return std::all_of(heads_.begin(), heads_.end(), [&](HeadState& head) {
    PageLedger& ledger = mutable_ledger(store_.group_of(head.layer()));
    return (!head.seals_ahead() || ledger.hold_ahead()) && head.reserve();
  });
}

void HostSequence::on_commit() {
  for (HeadState& head : heads_) head.commit();
}

void HostSequence::on_abort() {
  for (HeadState& head : heads_) head.abort();
}

// --- between steps ---

void HostSequence::on_copy(const SequencePages& from) {
  const std::vector<HeadState>& others = dynamic_cast<const HostSequence&>(from).heads_;
  for (std::size_t i = 0; i < heads_.size(); ++i) heads_[i].copy_from(others[i]);
}

void HostSequence::on_truncate(int n_tokens) {
  for (HeadState& head : heads_) head.truncate(n_tokens);
}

// Sums take memory when they are first needed.
std::shared_ptr<SequenceNumbers> HostSequence::make_sums() {
  auto made = std::make_shared<HostSums>();
  made->heads.resize(heads_.size());
  if (sums() == nullptr) return made;
  made->heads = host_sums(sums()).heads;
  for_each_head(geometry(), [&](int layer, int h, int index) {
    if (store_.plan().head(layer, h).corrected)
      made->heads[index].resize(correction_sums(geometry().dim(layer)));
  });
  return made;
}

std::shared_ptr<SequenceNumbers> HostSequence::make_observers(const SequenceNumbers* from) {
  if (from != nullptr) return std::make_shared<HostObservers>(static_cast<const HostObservers&>(*from));
  auto made = std::make_shared<HostObservers>();
  made->heads.resize(heads_.size());
  for_each_head(geometry(), [&](int layer, int /*kv_head*/, int index) {
    if (store_.plan().layers[layer].needs_scores())
      made->heads[index].resize(geometry().group(layer), geometry().dim(layer));
  });
  return made;
}

// --- bytes ---

std::int64_t HostSequence::sums_bytes(const SequenceNumbers& sums) const {
  std::int64_t bytes = 0;
  for (const auto& of_head : static_cast<const HostSums&>(sums).heads)
    bytes += static_cast<std::int64_t>(of_head.size() * sizeof(float));
  return bytes;
}

std::int64_t HostSequence::observer_bytes() const {
  std::int64_t bytes = 0;
  for_each_head(geometry(), [&](int layer, int /*kv_head*/, int /*index*/) {
    if (store_.plan().layers[layer].needs_scores())
      bytes += (length() - observers().first) * geometry().group(layer) *
               ObserverRows::bytes_of(geometry().dim(layer));
  });
  return bytes;
}

Result<ListedPages> HostSequence::list_pages(int layer, int kv_head, int first_visible) const {
  ListedPages list;
  head(layer, kv_head).list_pages(first_visible, list.pages);
  return list;
}

// --- images ---

Status HostSequence::on_save(std::vector<HeadImage>& images) const {
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    if (images[i].first_observer >= 0)
      images[i].observers = static_cast<const HostObservers&>(*observers().rows).heads[i];
    if (sums() != nullptr) images[i].sums = host_sums(sums()).heads[i];
    if (checkpoint_sums() != nullptr) images[i].checkpoint_sums = host_sums(checkpoint_sums()).heads[i];
  }
  return {};
}

// Takes memory for sealed pages in the order of a prompt whose steps have four pages each. So attention reads
// the imported pages as fast as the pages of such a prompt.
bool HostSequence::on_load(std::vector<HeadImage>& images) {
  const auto loaded = std::make_shared<HostSums>(), at_checkpoint = std::make_shared<HostSums>();
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    loaded->heads.push_back(std::move(images[i].sums));
    at_checkpoint->heads.push_back(std::move(images[i].checkpoint_sums));
    if (images[i].first_observer >= 0)
      static_cast<HostObservers&>(*observers().rows).heads[i] = std::move(images[i].observers);
    heads_[i].take_lengths();
  }
  set_sums(loaded, at_checkpoint);
  constexpr int kPagesOfStep = 4;
  for (int first = 0; first < length() / kPageTokens; first += kPagesOfStep) {
    for (HeadState& head : heads_) {
      if (!head.hold_sealed(first, first + kPagesOfStep)) return false;
    }
  }
  return true;
}

// --- heads by name ---

HeadState& head_of(const Step& step, int slice, int layer, int kv_head) {
  auto* pages = dynamic_cast<HostSequence*>(&step.pages(slice));
  KVANT_CHECK(pages != nullptr, "heads of a sequence that lies elsewhere");
  return pages->head(layer, kv_head);
}

const HeadState& head_of(const Cache& cache, SequenceId sequence, int layer, int kv_head) {
  const auto* pages = dynamic_cast<const HostSequence*>(&cache.pages(sequence));
  KVANT_CHECK(pages != nullptr, "heads of a sequence that lies elsewhere");
  return pages->head(layer, kv_head);
}

}  // namespace kvant
