// PrefixDisk keeps prefixes of prompts on the disk, within a limit of bytes, for a prefix cache
// (prefix_cache.h).
//
// Each prefix is a session file without a text, named by its tokens' checksum. A thread (session_disk.h)
// reads and writes the files, one at a time in each direction. Data moves between that thread and the cache
// in pieces, in advance(), between steps. Files of an earlier server are used again if they belong to the
// same model, recipe and constants. Otherwise they are removed, because prefixes can be read again. Files
// with other names are left alone.
//
// Only the scheduler's thread uses it.
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

// Returns how many of `tokens`, in whole pages, `prompt` begins with.
int n_pages_alike(std::span<const std::int32_t> tokens, std::span<const std::int32_t> prompt);

struct PrefixDiskStatus {
  int files = 0;
  std::int64_t bytes = 0, limit = 0;
  std::int64_t hits = 0;      // prefixes that were read back
  std::int64_t written = 0;   // number of files
  std::int64_t dropped = 0;   // files that were dropped to make room
  std::int64_t failures = 0;  // failed writes and unusable files
};

class PrefixDisk {
 public:
  // `cache` must outlive the object. `cuts`: sequences can be cut to any whole pages (prefix_cache.h).
  PrefixDisk(Cache& cache, std::shared_ptr<const SessionFolder> folder, std::int64_t byte_limit, bool cuts);
  PrefixDisk(const PrefixDisk&) = delete;
  PrefixDisk& operator=(const PrefixDisk&) = delete;

  struct Match {
    std::string name;     // name of a file; valid only if n_tokens > 0
    int n_tokens = 0;     // tokens that it gives, in whole pages
    int n_common = 0;     // tokens that some file has in common with the prompt
    int file_tokens = 0;  // tokens that would have to be read from it
  };
  // Returns the file that gives the longest prefix of the prompt.
  Match find(std::span<const std::int32_t> prompt) const;
  // Requests a file. It comes out of take_loaded(), or is removed if it is unusable.
  void want(const std::string& name);
  bool is_coming(const std::string& name) const;
  struct Loaded {
    SequenceId sequence;  // the caller must free it
    std::vector<std::int32_t> tokens;
  };
  std::vector<Loaded> take_loaded() { return std::exchange(loaded_, {}); }

  // Returns whether another sequence can be written now.
  bool can_write() const;
  // Returns whether a file with so many tokens was larger than the limit.
  bool is_too_long(std::span<const std::int32_t> tokens) const { return tokens.size() >= too_long_; }
  // Returns whether a file gives all of these tokens.
  bool holds(std::span<const std::int32_t> tokens) const;
  // The sequence, which holds these tokens, has to stay as it is until it is written or let go.
  void write(SequenceId sequence, std::span<const std::int32_t> tokens);
  // Tells that the cache frees the sequence. The part that was not copied yet is not written.
  void let_go(SequenceId sequence);
  // Writes a sequence at once, when the server ends.
  void write_now(SequenceId sequence, std::span<const std::int32_t> tokens);

  // Continues reading and writing. Returns whether it did anything. On an error, memory is too short for what
  // is read: call it again when there is more, or after give_up_reading().
  Result<bool> advance();
  // Frees the part of a file that is already in the cache. Returns false if that is nothing.
  bool give_up_reading();
  bool is_busy() const { return reading_.is_busy() || writing_; }
  bool waits_for_disk() const { return reading_.waits_for_disk() || (writing_ && !writing_->exported); }
  // Sets a function that another thread calls when advance() has more to do. Call it once, before everything
  // else.
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
    std::optional<SequenceExport> exported;  // none: the disk's thread has the data
    std::int64_t bytes = 0;                  // largest possible size of the file
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
  std::optional<Clock::time_point> write_failure_;  // newest failure, unless a write has succeeded since
  PrefixDiskStatus status_;
  SessionDisk disk_;
};

}  // namespace kvant
