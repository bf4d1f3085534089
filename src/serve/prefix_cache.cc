#include "serve/prefix_cache.h"

#include <algorithm>

#include "base/page_size.h"

namespace kvant {
namespace {

// A file is read from disk only if the prompt gains at least 1/kPartOfFile of the file's tokens, compared
// with the prefix that is in memory.
constexpr int kPartOfFile = 8;

}  // namespace

bool cuts_exactly(const Plan& plan) {
  const bool corrected = std::ranges::any_of(plan.heads, [](const HeadPlan& head) { return head.corrected; });
  return !corrected && !plan.geometry.is_recurrent() && plan.recipe.prefill == kPageTokens &&
         std::ranges::all_of(plan.layers, [](const LayerPlan& layer) {
           return layer.window == 0 && layer.sliding_window == 0 && layer.evict == 0 && !layer.needs_scores();
         });
}

PrefixCache::PrefixCache(Cache& cache, std::int64_t byte_limit, std::unique_ptr<PrefixDisk> disk)
    : cache_(cache), byte_limit_(byte_limit), cuts_(cuts_exactly(cache.plan())), disk_(std::move(disk)) {}

PrefixCache::~PrefixCache() {
  if (disk_ != nullptr) write_all();
  for (const Entry& entry : entries_) cache_.free(entry.sequence);
}

Result<PrefixCache::Match> PrefixCache::find(std::span<const std::int32_t> prompt, bool may_wait) {
  if (prompt.empty()) return Match{};
  const std::span<const std::int32_t> wanted = prompt.first(prompt.size() - 1);
  Match match;
  Entry* best = nullptr;
  for (Entry& entry : entries_) {
    const int common = n_pages_alike(entry.tokens, wanted);
    const int usable = cuts_ || common == std::ssize(entry.tokens) ? common : 0;
    match.n_common = std::max(match.n_common, common);
    if (usable <= match.n_tokens) continue;
    match.n_tokens = usable;
    best = &entry;
  }
  if (disk_ != nullptr) {
    const PrefixDisk::Match on_disk = disk_->find(wanted);
    match.n_common = std::max(match.n_common, on_disk.n_common);
    if (may_wait && on_disk.n_tokens > match.n_tokens &&
        (on_disk.n_tokens - match.n_tokens) >= on_disk.file_tokens / kPartOfFile) {
      disk_->want(on_disk.name);
      return Match{.coming = on_disk.name};
    }
  }
  if (best == nullptr) return match;
  best->last_use = ++uses_;
  const Result<SequenceId> fork = cache_.fork(best->sequence);
  if (!fork.ok()) return fork.error();
  match.sequence = *fork;
  if (match.n_tokens == std::ssize(best->tokens)) return match;
  const Status cut = cache_.truncate(match.sequence, match.n_tokens);
  if (cut.ok()) return match;
  cache_.free(match.sequence);
  return cut.error();
}

PrefixCache::Entry* PrefixCache::find_entry(std::span<const std::int32_t> tokens) {
  for (Entry& entry : entries_) {
    if (std::ranges::equal(entry.tokens, tokens)) return &entry;
  }
  return nullptr;
}

Status PrefixCache::keep(SequenceId sequence, std::span<const std::int32_t> tokens, int n_shared) {
  KVANT_CHECK(cache_.length(sequence) == std::ssize(tokens) && tokens.size() % kPageTokens == 0,
              "only whole pages are kept");
  if (Entry* entry = find_entry(tokens)) {
    entry->last_use = ++uses_;
    return {};
  }
  const Result<SequenceId> fork = cache_.fork(sequence);
  if (!fork.ok()) return fork.error();
  add(*fork, tokens, n_shared);
  return {};
}

// Takes ownership of the sequence. A sequence larger than the limit is freed at once.
void PrefixCache::add(SequenceId sequence, std::span<const std::int32_t> tokens, int n_shared) {
  const CacheBytes size = cache_.bytes(sequence);
  const double own = 1 - static_cast<double>(n_shared) / static_cast<double>(tokens.size());
  std::int64_t bytes = static_cast<std::int64_t>(own * static_cast<double>(size.all() - size.tail)) +
                       size.tail + size.recurrent;
  if (bytes > byte_limit_) return cache_.free(sequence);
  if (cuts_) bytes = std::min(bytes + drop_beginnings(tokens), size.all());
  while (bytes_ + bytes > byte_limit_ && drop_oldest()) {
  }
  entries_.push_back({sequence, {tokens.begin(), tokens.end()}, bytes, ++uses_});
  bytes_ += bytes;
}

// Drops the kept sequences whose tokens are a prefix of `tokens`, if a sequence of `tokens` can be cut to
// them. Returns the dropped bytes. The new sequence may share pages with the dropped sequences. If it was
// read separately, the pages are freed.
std::int64_t PrefixCache::drop_beginnings(std::span<const std::int32_t> tokens) {
  std::int64_t shared = 0;
  std::erase_if(entries_, [&](const Entry& entry) {
    if (n_pages_alike(entry.tokens, tokens) != std::ssize(entry.tokens)) return false;
    let_go(entry);
    shared += entry.bytes;
    return true;
  });
  bytes_ -= shared;
  return shared;
}

void PrefixCache::let_go(const Entry& entry) {
  if (disk_ != nullptr) disk_->let_go(entry.sequence);
  cache_.free(entry.sequence);
}

bool PrefixCache::drop_oldest() {
  if (entries_.empty()) return false;
  const auto oldest = std::ranges::min_element(entries_, {}, &Entry::last_use);
  let_go(*oldest);
  bytes_ -= oldest->bytes;
  entries_.erase(oldest);
  ++dropped_;
  return true;
}

// The functions from advance() to write_all() use the disk.

Result<bool> PrefixCache::advance(bool is_short) {
  if (disk_ == nullptr) return false;
  const auto done = disk_->advance();
  if (!done.ok()) return done.error();
  for (PrefixDisk::Loaded& loaded : disk_->take_loaded()) {
    if (find_entry(loaded.tokens) != nullptr) {  // another request has read the same prefix meanwhile
      cache_.free(loaded.sequence);
    } else {
      add(loaded.sequence, loaded.tokens, 0);
    }
  }
  if (is_short && disk_->can_write()) write_oldest();
  return *done;
}

// Returns the entries, the least recently used first.
std::vector<PrefixCache::Entry*> PrefixCache::by_use() {
  std::vector<Entry*> entries;
  for (Entry& entry : entries_) entries.push_back(&entry);
  std::ranges::sort(entries, {}, &Entry::last_use);
  return entries;
}

// Writes the least recently used entry that is not on disk. Entries that were found on disk are marked with
// needs_no_write, because comparing all entries with all files in every step would take too long.
void PrefixCache::write_oldest() {
  for (Entry* entry : by_use()) {
    if (entry->needs_no_write) continue;
    entry->needs_no_write = cache_.bytes(entry->sequence).with_states() > disk_->byte_limit() ||
                            disk_->is_too_long(entry->tokens) || disk_->holds(entry->tokens);
    if (!entry->needs_no_write) return disk_->write(entry->sequence, entry->tokens);
  }
}

// Writes the most recently used entries, as many as the disk's limit allows.
void PrefixCache::write_all() {
  std::vector<Entry*> entries = by_use();
  std::int64_t left = disk_->byte_limit();
  auto first = entries.end();
  while (first != entries.begin()) {
    left -= cache_.bytes((*std::prev(first))->sequence).with_states();
    if (left < 0) break;
    --first;
  }
  for (; first != entries.end(); ++first) disk_->write_now((*first)->sequence, (*first)->tokens);
}

}  // namespace kvant
