#include "cache/sequence_pages.h"

#include <algorithm>
#include <utility>

namespace kvant {

SequencePages::SequencePages(const std::vector<PageGroup>& groups) : groups_(groups) {
  for (const PageGroup& group : groups)
    ledgers_.push_back(std::make_unique<PageLedger>(group.rules, *group.entries));
}

int SequencePages::rows_of(int group, int page) const {
  return std::min(kPageTokens, ledger(group).length() - page * kPageTokens);
}

// --- a step ---

void SequencePages::begin() {
  for (const auto& ledger : ledgers_) ledger->begin();
  begin_beside();
}

bool SequencePages::reserve(int n_tokens, bool is_prompt) {
  for (const auto& ledger : ledgers_) {
    if (!ledger->reserve(n_tokens, is_prompt)) return false;
  }
  return reserve_beside();
}

void SequencePages::commit() {
  for (const auto& ledger : ledgers_) ledger->commit();
  commit_beside();
}

void SequencePages::abort() {
  abort_beside();
  for (const auto& ledger : ledgers_) ledger->abort();
}

// --- between steps ---

bool SequencePages::copy_from(const SequencePages& from) {
  for (int i = 0; i < n_groups(); ++i) ledgers_[i]->copy_from(from.ledger(i));
  checkpoint_pages_ = from.checkpoint_pages_;
  return copy_beside(from);
}

Result<bool> SequencePages::truncate(int n_tokens) {
  const bool forgets = n_tokens / kPageTokens < n_sealed();
  for (int i = 0; i < n_groups(); ++i) {
    Status reopened;
    const auto write = [&](PageEntry sealed, PageEntry tail) {
      reopened = reopen(i, n_tokens, sealed, tail);
    };
    if (!ledgers_[i]->truncate(n_tokens, write)) return false;
    if (!reopened.ok()) return reopened.error();
  }
  if (n_tokens == 0) checkpoint_pages_ = -1;
  return truncate_beside(n_tokens, forgets);
}

void SequencePages::checkpoint() {
  checkpoint_pages_ = -1;
  checkpoint_beside();
  checkpoint_pages_ = n_sealed();
}

bool SequencePages::take_pages(int group, int length, int n_sealed, int first_page) {
  const bool seals = groups_[group].rules.seals;
  return ledgers_[group]->take_all(length, seals ? n_sealed : first_page, first_page);
}

// --- bytes ---

CacheBytes SequencePages::bytes() const {
  CacheBytes total;
  for (int i = 0; i < n_groups(); ++i) {
    const PageLedger& ledger = *ledgers_[i];
    const std::int64_t of_token = groups_[i].token_values;
    total.sealed_elements += of_token * (ledger.n_sealed() - ledger.first_page()) * kPageTokens;
    total.elements += of_token * (ledger.length() - ledger.first_page() * kPageTokens);
  }
  for_each_page([&](const HeldPage& page) { total.*page.part += page.bytes; });
  add_bytes_beside(total);
  return total;
}

void SequencePages::leave_out_shared(std::set<HeldPage::Name>& counted, CacheBytes& bytes) const {
  for_each_page([&](const HeldPage& page) {
    if (page.shared && !counted.insert(page.name).second) bytes.*page.part -= page.bytes;
  });
}

// --- the store ---

SequenceStore::SequenceStore(const Plan& plan, std::int64_t byte_limit, PageDevice* keeps_states)
    : plan_(plan),
      budget_(byte_limit),
      states_(plan.geometry.recurrent_values, budget_, keeps_states),
      group_of_layer_(plan.geometry.n_layers) {}

void SequenceStore::add_group(const GroupRules& rules, const std::vector<int>& layers, EntryStore& entries) {
  PageGroup group{rules, layers, PageLayout(plan_, layers), &entries};
  for (const int layer : group.layers) {
    group_of_layer_[layer] = static_cast<int>(groups_.size());
    group.token_values += std::int64_t{2} * plan_.geometry.n_kv(layer);
  }
  groups_.push_back(std::move(group));
}

std::shared_ptr<float> SequenceStore::take_state() {
  std::shared_ptr<float> state = states_.take();
  if (state == nullptr && shrink()) state = states_.take();
  return state;
}

}  // namespace kvant
