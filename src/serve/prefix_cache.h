// PrefixCache: the beginnings of prompts that were read, kept so that a prompt that begins alike need not
// read them again.
//
// What is kept is a sequence of the cache as it was when exactly these tokens had been read as a prompt,
// whole pages of them: a fork, which shares sealed pages. So a prompt that goes on from there gives the same
// bits as one that is read from its start, whatever the recipe seals, protects, scores or sums up. Tokens
// that were generated are not kept: decoding rounds differently from reading (model/matrix_product.h).
//
// Where there is a disk for them (prefix_disk.h), they are written as memory fills up, the least recently
// used first, so that dropping them costs nothing when memory is short; what has to go before its turn is
// read again by the next who wants it. What comes back from the disk shares pages with no other.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "serve/prefix_disk.h"

namespace kvant {

// Whether truncating a sequence to any whole pages gives what reading only these gives: no window holds pages
// unsealed, no layer keeps a recurrent state, and nothing depends on tokens that came later.
bool cuts_exactly(const Plan& plan);

class PrefixCache {
 public:
  // cache outlives it. byte_limit: of what the kept sequences take beyond what they shared when they were
  // kept; 0: nothing is kept.
  // disk: null: there is none.
  PrefixCache(Cache& cache, std::int64_t byte_limit, std::unique_ptr<PrefixDisk> disk = nullptr);
  ~PrefixCache();  // writes to the disk what fits there
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // A beginning of a prompt that is kept.
  struct Match {
    SequenceId sequence = 0;  // a fork of what is kept, the caller's to free; only where n_tokens > 0
    int n_tokens = 0;         // whole pages; 0: nothing is kept
    // Whole pages at the prompt's start that it has in common with what is kept, n_tokens at least. More than
    // n_tokens: what is kept can't be cut there. Worth keeping when the prompt has been read so far.
    int n_common = 0;
    // A file that gives more, which is being read now: ask again when it is not coming any more, and without
    // waiting. Then all else is 0. Empty: there is none.
    std::string coming = {};
  };
  // The longest beginning of `prompt` that is kept and leaves a token to be read. may_wait: for the disk. An
  // error: out of memory; nothing has changed.
  Result<Match> find(std::span<const std::int32_t> prompt, bool may_wait = false);
  bool is_coming(const std::string& file) const { return disk_ != nullptr && disk_->is_coming(file); }

  // Keeps `sequence`, whose tokens are `tokens`: whole pages, all read as a prompt. n_shared: of them, those
  // that a kept sequence has given. Less useful ones are dropped where the limit demands it. An error: out of
  // memory; nothing is kept then.
  Status keep(SequenceId sequence, std::span<const std::int32_t> tokens, int n_shared);

  // Drops from memory what was not used for longest. False: nothing is kept.
  bool drop_oldest();

  // Goes on with what goes to the disk and comes from there, between steps. is_short: memory will be soon.
  // Whether anything was done. An error: too little memory for what comes; to be called again when there is
  // more, or after give_up_reading().
  Result<bool> advance(bool is_short);
  // Frees what has come so far. False: nothing had.
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
  std::int64_t bytes() const { return bytes_; }  // that count towards the limit
  std::int64_t dropped() const { return dropped_; }

 private:
  struct Entry {
    SequenceId sequence;
    std::vector<std::int32_t> tokens;
    std::int64_t bytes;
    std::int64_t last_use;
    bool needs_no_write = false;  // it was found on the disk, or is too large for it
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
