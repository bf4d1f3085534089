// PrefixCache: the beginnings of prompts that were read, kept so that a prompt that begins alike need not
// read them again.
//
// What is kept is a sequence of the cache as it was when exactly these tokens had been read as a prompt,
// whole pages of them: a fork, which shares sealed pages. So a prompt that goes on from there gives the same
// bits as one that is read from its start, whatever the recipe seals, protects, scores or sums up. Tokens
// that were generated are not kept: decoding rounds differently from reading (model/matrix_product.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache.h"

namespace kvant {

// Whether truncating a sequence to any whole pages gives what reading only these gives: no window holds pages
// unsealed, and nothing depends on tokens that came later.
bool cuts_exactly(const Plan& plan);

class PrefixCache {
 public:
  // cache outlives it. byte_limit: of what the kept sequences take beyond what they shared when they were
  // kept; 0: nothing is kept.
  PrefixCache(Cache& cache, std::int64_t byte_limit);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // A beginning of a prompt that is kept.
  struct Match {
    SequenceId sequence = 0;  // a fork of what is kept, the caller's to free; only where n_tokens > 0
    int n_tokens = 0;         // whole pages; 0: nothing is kept
    // Whole pages at the prompt's start that it has in common with what is kept, n_tokens at least. More than
    // n_tokens: what is kept can't be cut there. Worth keeping when the prompt has been read so far.
    int n_common = 0;
  };
  // The longest beginning of `prompt` that is kept and leaves a token to be read. An error: out of memory;
  // nothing has changed.
  Result<Match> find(std::span<const std::int32_t> prompt);

  // Keeps `sequence`, whose tokens are `tokens`: whole pages, all read as a prompt. n_shared: of them, those
  // that a kept sequence has given. Less useful ones are dropped where the limit demands it. An error: out of
  // memory; nothing is kept then.
  Status keep(SequenceId sequence, std::span<const std::int32_t> tokens, int n_shared);

  // Drops what was not used for longest. False: nothing is kept.
  bool drop_oldest();

  int size() const { return static_cast<int>(entries_.size()); }
  std::int64_t bytes() const { return bytes_; }  // that count towards the limit
  std::int64_t dropped() const { return dropped_; }

 private:
  struct Entry {
    SequenceId sequence;
    std::vector<std::int32_t> tokens;
    std::int64_t bytes;
    std::int64_t last_use;
  };
  std::int64_t drop_beginnings(std::span<const std::int32_t> tokens);

  Cache& cache_;
  std::int64_t byte_limit_;
  bool cuts_;
  std::vector<Entry> entries_;
  std::int64_t bytes_ = 0;
  std::int64_t uses_ = 0;  // the clock of last_use
  std::int64_t dropped_ = 0;
};

}  // namespace kvant
