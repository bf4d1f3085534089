// PrefixDisk keeps prefixes of prompts on disk, within a limit of bytes, for a prefix cache (prefix_cache.h).
//
// Each prefix is a session file without a text, named by the checksum of its tokens. A thread
// (session_disk.h) reads and writes the files, one at a time in each direction. Between steps, advance()
// moves pieces of data between that thread and the cache. Files of an earlier server are used again if they
// belong to the same model, recipe and constants. Session files that do not belong are removed, because
// prefill can restore prefixes. Files whose names are not checksums remain.
//
// Only the scheduler's thread uses the class.
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

// Returns how many tokens `tokens` and `prompt` have in common at their start, rounded down to whole pages.
int n_pages_alike(std::span<const std::int32_t> tokens, std::span<const std::int32_t> prompt);

struct PrefixDiskStatus {
  int files = 0;
  std::int64_t bytes = 0, limit = 0;
  std::int64_t hits = 0;      // the number of prefixes that were read back
  std::int64_t written = 0;   // files written since the start
  std::int64_t dropped = 0;   // the number of files dropped to make room
  std::int64_t failures = 0;  // the number of failed writes and unusable files
};

class PrefixDisk {
 public:
  // `cache` must outlive the object. `cuts` says that a sequence can be cut to any number of whole pages
  // (cuts_exactly in prefix_cache.h).
  PrefixDisk(Cache& cache, std::shared_ptr<const SessionFolder> folder, std::int64_t byte_limit, bool cuts);
  PrefixDisk(const PrefixDisk&) = delete;
  PrefixDisk& operator=(const PrefixDisk&) = delete;

  struct Match {
    std::string name;     // the file's name; valid only if n_tokens > 0
    int n_tokens = 0;     // the file gives this many tokens of the prompt, in whole pages
    int n_common = 0;     // the largest number of tokens that any file has in common with the prompt
    int file_tokens = 0;  // the number of tokens in the file, which must all be read
  };
  // Returns the file that gives the longest prefix of the prompt.
  Match find(std::span<const std::int32_t> prompt) const;
  // Starts reading a file. take_loaded() returns the file's contents later. An unusable file is removed
  // instead.
  void want(const std::string& name);
  bool is_coming(const std::string& name) const;
  struct Loaded {
    SequenceId sequence;  // the caller must free the sequence
    std::vector<std::int32_t> tokens;
  };
  std::vector<Loaded> take_loaded() { return std::exchange(loaded_, {}); }

  // Returns whether write() may be called now.
  bool can_write() const;
  // Returns whether an earlier file with at most this many tokens has exceeded the limit.
  bool is_too_long(std::span<const std::int32_t> tokens) const { return tokens.size() >= too_long_; }
  // Returns whether a file gives all of these tokens.
  bool holds(std::span<const std::int32_t> tokens) const;
  // Starts writing a sequence that holds these tokens. The sequence must not change until the write has ended
  // or let_go() is called.
  void write(SequenceId sequence, std::span<const std::int32_t> tokens);
  // Tells the object that the cache is about to free the sequence. A write of the sequence that is not
  // complete is given up.
  void let_go(SequenceId sequence);
  // Writes a sequence and waits for the end of the write. The server calls this when it ends.
  void write_now(SequenceId sequence, std::span<const std::int32_t> tokens);

  // Continues reading and writing. Returns whether anything was done. An error means that memory is too short
  // for the file that is being read. Call advance() again when there is more memory, or after
  // give_up_reading().
  Result<bool> advance();
  // Frees the part of a file that is already in the cache. Returns false if no part is.
  bool give_up_reading();
  bool is_busy() const { return reading_.is_busy() || writing_; }
  bool waits_for_disk() const { return reading_.waits_for_disk() || (writing_ && !writing_->exported); }
  // Sets a function that the disk's thread calls when advance() has more to do. Call tell() once, before any
  // other function.
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
    std::optional<SequenceExport> exported;  // empty once the disk's thread has all data
    std::int64_t bytes = 0;                  // the file has at most this many bytes
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
  std::int64_t uses_ = 0;  // a counter of uses, which serves as the clock of last_use
  SequenceReading reading_{cache_, disk_};
  std::optional<Writing> writing_;
  std::vector<Loaded> loaded_;
  // The newest failed write happened at write_failure_, which is empty if a write has succeeded since.
  std::optional<Clock::time_point> write_failure_;
  PrefixDiskStatus status_;
  SessionDisk disk_;
};

}  // namespace kvant
