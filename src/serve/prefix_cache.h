// PrefixCache keeps the prefixes of prompts that were read, so a prompt with the same prefix need not read it
// again.
//
// An entry is a sequence of the cache as it was when exactly these tokens had been read as a prompt, in whole
// pages. It is a fork, which shares quantized pages. So a prompt that continues it gives the same bits as one
// that is read from its start, whatever the recipe does. Generated tokens are not kept, because decoding
// rounds differently from prefill (model/matrix_product.h).
//
// With a disk (prefix_disk.h), entries are written as memory fills up, the least recently used first, so
// dropping them is free when memory runs short. A prefix that is dropped before it was written must be read
// again. A sequence that comes back from the disk shares no pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "serve/prefix_disk.h"

namespace kvant {

// Returns whether truncating a sequence to any whole pages equals reading only these. That holds if no window
// keeps pages unquantized, no layer has a recurrent state, and nothing depends on later tokens.
bool cuts_exactly(const Plan& plan);

class PrefixCache {
 public:
  // `cache` must outlive the object. byte_limit bounds the bytes of kept sequences, beyond what they shared
  // when they were kept; 0 keeps nothing. A null `disk` means that there is none.
  PrefixCache(Cache& cache, std::int64_t byte_limit, std::unique_ptr<PrefixDisk> disk = nullptr);
  ~PrefixCache();  // writes to the disk what fits there
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Describes a kept prefix of a prompt.
  struct Match {
    SequenceId sequence = 0;  // a fork that the caller must free; valid only if n_tokens > 0
    int n_tokens = 0;         // whole pages; 0: no prefix is kept
    // Whole pages that the prompt has in common with a kept sequence; at least n_tokens. If it is more, the
    // kept sequence cannot be cut there, and the prefix is worth keeping when the prompt has been read so
    // far.
    int n_common = 0;
    // A file that gives a longer prefix and is being read. Ask again, without waiting, when it is no longer
    // on its way. All other members are 0 then. Empty: there is none.
    std::string coming = {};
  };
  // Returns the longest kept prefix of `prompt` that leaves a token to read. may_wait allows waiting for the
  // disk. On an error (out of memory) nothing has changed.
  Result<Match> find(std::span<const std::int32_t> prompt, bool may_wait = false);
  bool is_coming(const std::string& file) const { return disk_ != nullptr && disk_->is_coming(file); }

  // Keeps `sequence`, whose `tokens` are whole pages that were all read as a prompt. A kept sequence provided
  // the first n_shared of them. Less useful entries are dropped if the limit requires it. On an error (out of
  // memory) nothing is kept.
  Status keep(SequenceId sequence, std::span<const std::int32_t> tokens, int n_shared);

  // Drops the least recently used entry from memory. Returns false if nothing is kept.
  bool drop_oldest();

  // Continues transfers to and from the disk, between steps. is_short announces that memory will run short.
  // Returns whether it did anything. On an error, memory is too short for what is read: call it again when
  // there is more, or after give_up_reading().
  Result<bool> advance(bool is_short);
  // Frees what has been read so far. Returns false if that was nothing.
  bool give_up_reading() { return disk_ != nullptr && disk_->give_up_reading(); }
  bool is_busy() const { return disk_ != nullptr && disk_->is_busy(); }
  bool waits_for_disk() const { return disk_ != nullptr && disk_->waits_for_disk(); }
  // See PrefixDisk::tell.
  void tell(const std::function<void()>& news) {
    if (disk_ != nullptr) disk_->tell(news);
  }
  std::optional<PrefixDiskStatus> disk() const {
    return disk_ == nullptr ? std::nullopt : std::optional(disk_->status());
  }

  int size() const { return static_cast<int>(entries_.size()); }
  std::int64_t bytes() const { return bytes_; }  // bytes that count towards the limit
  std::int64_t dropped() const { return dropped_; }

 private:
  struct Entry {
    SequenceId sequence;
    std::vector<std::int32_t> tokens;
    std::int64_t bytes;
    std::int64_t last_use;
    bool needs_no_write = false;  // it was found on the disk or does not fit there
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
  std::unique_ptr<PrefixDisk> disk_;  // null: there is none
  std::vector<Entry> entries_;
  std::int64_t bytes_ = 0;
  std::int64_t uses_ = 0;  // the clock of last_use
  std::int64_t dropped_ = 0;
};

}  // namespace kvant
