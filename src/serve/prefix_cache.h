// PrefixCache keeps prefixes of processed prompts, so a later prompt with the same prefix need not process
// the prefix again.
//
// An entry is a sequence of the cache with exactly the state after prefill of the entry's tokens, which fill
// whole pages. The entry is a fork, which shares quantized pages. A prompt that continues an entry therefore
// gives the same bits as a prompt that is read from its start, with any recipe. Generated tokens are not
// kept, because decode rounds differently from prefill (model/matrix_product.h).
//
// With a disk (prefix_disk.h), the least recently used entries are written to disk as memory fills up.
// Dropping a written entry then costs nothing when memory runs short. The tokens of an entry that is dropped
// unwritten need prefill again. A sequence that comes back from the disk shares no pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "serve/prefix_disk.h"

namespace kvant {

// Returns whether truncating a sequence to any number of whole pages gives the same bits as reading only
// those pages. That requires that no window keeps pages unquantized, no layer has a recurrent state, and no
// page depends on later tokens.
bool cuts_exactly(const Plan& plan);

class PrefixCache {
 public:
  // `cache` must outlive the object. byte_limit bounds the bytes of kept sequences, without the bytes that
  // they shared when they were kept. A byte_limit of 0 keeps nothing. `disk` is null if there is no disk
  // cache.
  PrefixCache(Cache& cache, std::int64_t byte_limit, std::unique_ptr<PrefixDisk> disk = nullptr);
  ~PrefixCache();  // writes entries to the disk, as many as fit there
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Match is a kept prefix of a prompt.
  struct Match {
    SequenceId sequence = 0;  // a fork that the caller must free; valid only if n_tokens > 0
    int n_tokens = 0;         // a multiple of the page size; 0 if no prefix is kept
    // The prompt has this many tokens, in whole pages, in common with a kept sequence. If n_common >
    // n_tokens, the kept sequence cannot be cut there. The caller should then keep the prefix of n_common
    // tokens once prefill reaches it.
    int n_common = 0;
    // This file holds a longer prefix and is being read. The name is empty if there is no such file. Call
    // find() again, without may_wait, when is_coming() is false for the file. All other members are 0 in the
    // meantime.
    std::string coming = {};
  };
  // Returns the longest kept prefix of `prompt` that is shorter than `prompt`. may_wait allows waiting for
  // the disk. An error means that memory is exhausted. Nothing changes in that case.
  Result<Match> find(std::span<const std::int32_t> prompt, bool may_wait = false);
  bool is_coming(const std::string& file) const { return disk_ != nullptr && disk_->is_coming(file); }

  // Keeps `sequence`, whose `tokens` are whole pages and were all read as a prompt. The first n_shared tokens
  // came from a kept sequence. If the limit requires it, keep() drops less recently used entries. An error
  // means that memory is exhausted. Nothing is kept in that case.
  Status keep(SequenceId sequence, std::span<const std::int32_t> tokens, int n_shared);

  // Drops the least recently used entry from memory. Returns false if the cache has no entries.
  bool drop_oldest();

  // Continues transfers to and from the disk. Call advance() between steps. With is_short, memory will run
  // short soon, so entries are written to disk. Returns whether anything was done. An error means that memory
  // is too short for the file that is being read. Call advance() again when there is more memory, or after
  // give_up_reading().
  Result<bool> advance(bool is_short);
  // Frees the part of a file that has been read so far. Returns false if nothing has been read.
  bool give_up_reading() { return disk_ != nullptr && disk_->give_up_reading(); }
  bool is_busy() const { return disk_ != nullptr && disk_->is_busy(); }
  bool waits_for_disk() const { return disk_ != nullptr && disk_->waits_for_disk(); }
  // PrefixDisk::tell() describes `news`.
  void tell(const std::function<void()>& news) {
    if (disk_ != nullptr) disk_->tell(news);
  }
  std::optional<PrefixDiskStatus> disk() const {
    return disk_ == nullptr ? std::nullopt : std::optional(disk_->status());
  }

  int size() const { return static_cast<int>(entries_.size()); }
  std::int64_t bytes() const { return bytes_; }  // the bytes that count towards the limit
  std::int64_t dropped() const { return dropped_; }

 private:
  struct Entry {
    SequenceId sequence;
    std::vector<std::int32_t> tokens;
    std::int64_t bytes;
    std::int64_t last_use;
    bool needs_no_write = false;  // the entry is on the disk, or does not fit there
  };
  void add(SequenceId sequence, std::span<const std::int32_t> tokens, int n_shared);
  Entry* find_entry(std::span<const std::int32_t> tokens);
  void let_go(const Entry& entry);
  std::int64_t drop_beginnings(std::span<const std::int32_t> tokens);
  std::vector<Entry*> by_use();
  void write_oldest();
  void write_all();

  Cache& cache_;
  std::int64_t byte_limit_;
  bool cuts_;
  std::unique_ptr<PrefixDisk> disk_;  // null if there is no disk cache
  std::vector<Entry> entries_;
  std::int64_t bytes_ = 0;
  std::int64_t uses_ = 0;  // a counter of uses, which serves as the clock of last_use
  std::int64_t dropped_ = 0;
};

}  // namespace kvant
