// PrefixDisk: beginnings of prompts on the disk, under a limit of bytes, for a prefix cache (prefix_cache.h).
//
// Each is a session file without a text, named by its tokens' checksum. A thread reads and writes them
// (session_disk.h), one at a time each way; what goes between that and the cache goes piece by piece, in
// advance(), between steps. Files that a server before this one has left are gone on with where they belong
// to the same model, recipe and constants, and removed otherwise: what they hold can be read again. What has
// no such name is somebody else's.
//
// Used by the scheduler's thread alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/sequence_image.h"
#include "serve/sequence_reading.h"
#include "serve/session_disk.h"
#include "serve/session_folder.h"

namespace kvant {

// Tokens of `tokens` that a prompt has at its start, whole pages of them.
int n_pages_alike(std::span<const std::int32_t> tokens, std::span<const std::int32_t> prompt);

struct PrefixDiskStatus {
  int files = 0;
  std::int64_t bytes = 0, limit = 0;
  std::int64_t hits = 0;      // read back
  std::int64_t written = 0;   // files
  std::int64_t dropped = 0;   // files that had to make room
  std::int64_t failures = 0;  // to write one, and files that could not be used
};

class PrefixDisk {
 public:
  // Cache outlives it. cuts: sequences can be cut to any whole pages (prefix_cache.h).
  PrefixDisk(Cache& cache, std::shared_ptr<const SessionFolder> folder, std::int64_t byte_limit, bool cuts);
  PrefixDisk(const PrefixDisk&) = delete;
  PrefixDisk& operator=(const PrefixDisk&) = delete;

  struct Match {
    std::string name;     // of a file; only where n_tokens > 0
    int n_tokens = 0;     // whole pages that it gives
    int n_common = 0;     // that some file has in common with the prompt
    int file_tokens = 0;  // that would have to be read
  };
  // The file that gives most of the prompt's beginning.
  Match find(std::span<const std::int32_t> prompt) const;
  // Has it read. It comes out of take_loaded(), or it is of no use: then it is gone.
  void want(const std::string& name);
  bool is_coming(const std::string& name) const;
  struct Loaded {
    SequenceId sequence;  // the caller's to free
    std::vector<std::int32_t> tokens;
  };
  std::vector<Loaded> take_loaded() { return std::exchange(loaded_, {}); }

  // Whether another sequence can be written now.
  bool can_write() const;
  // Whether a file of so many tokens was larger than the limit.
  bool is_too_long(std::span<const std::int32_t> tokens) const { return tokens.size() >= too_long_; }
  // Whether a file gives all of these.
  bool holds(std::span<const std::int32_t> tokens) const;
  // The sequence, which holds these tokens, has to stay as it is until it is written or let go.
  void write(SequenceId sequence, std::span<const std::int32_t> tokens);
  // The cache frees it: what has not been taken from it yet is not written.
  void let_go(SequenceId sequence);
  // At the end of a server.
  void write_now(SequenceId sequence, std::span<const std::int32_t> tokens);

  // Goes on with what has to be read and written. Whether anything was done. An error: too little memory for
  // what is being read; to be called again when there is more, or after give_up_reading().
  Result<bool> advance();
  // Frees what has come into the cache so far of what is being read. False: nothing has.
  bool give_up_reading();
  bool is_busy() const { return reading_.is_busy() || writing_; }
  bool waits_for_disk() const { return reading_.waits_for_disk() || (writing_ && !writing_->exported); }
  // To be called on another thread when advance() has more to do. Once, before all else.
  void tell(std::function<void()> news) { disk_.tell(std::move(news)); }

  std::int64_t byte_limit() const { return status_.limit; }
  PrefixDiskStatus status() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct File {
    std::string name;
    std::vector<std::int32_t> tokens;
    std::int64_t bytes;
    std::int64_t last_use;
  };
  struct Writing {
    std::string name;
    SequenceId sequence;
    SessionContents contents;
    std::optional<SequenceExport> exported;  // none: the thread of the disk has what it gave
    std::int64_t bytes = 0;                  // that the file takes at most
  };
  void find_files();
  File* file(const std::string& name);
  bool make_room(std::int64_t bytes);
  void drop(std::string name);
  bool take_results();
  bool advance_writing();
  void finish_write(const Status& written, std::int64_t file_bytes = 0);
  void fail_write(const Error& why);
  Result<bool> advance_reading();
  void finish_read(const Status& read);

  Cache& cache_;
  std::shared_ptr<const SessionFolder> folder_;
  bool cuts_;
  std::size_t too_long_ = std::numeric_limits<std::size_t>::max();
  std::vector<File> files_;
  std::int64_t uses_ = 0;  // the clock of last_use
  SequenceReading reading_{cache_, disk_};
  std::optional<Writing> writing_;
  std::vector<Loaded> loaded_;
  std::optional<Clock::time_point> write_failure_;  // the newest, if nothing was written since
  PrefixDiskStatus status_;
  SessionDisk disk_;
};

}  // namespace kvant
