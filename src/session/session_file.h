// SessionFile is a sequence of the cache on disk, with the tokens that the sequence holds (session_layout.h).
// A server saves and restores conversations as session files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/huge_buffer.h"
#include "base/result.h"
#include "cache/cache.h"
#include "compact/sequence_coder.h"
#include "session/file_stamp.h"
#include "session/session_layout.h"

namespace kvant {

// Holds the contents of a session, without its identity.
struct SessionContents {
  std::vector<std::int32_t> tokens;  // the tokens that the sequence holds
  std::string text;                  // the tokens' text as far as it is known; it may end within a character
  std::vector<std::byte> sequence;   // the result of Cache::export_sequence
};

// Holds the contents of a session that was read from a file.
struct LoadedSession {
  std::vector<std::int32_t> tokens;
  std::string text;
  HugeBuffer sequence;
  std::optional<FileStamp> stamp;  // the file that was read
};

// Writes the whole file or nothing, and returns when the file is on disk. Returns the number of bytes; for
// errors see write_whole_file. `coder` compresses the sequence and belongs to the identity's plan. Without a
// coder the sequence is stored unchanged.
Result<std::int64_t> write_session(const std::string& path, const SessionIdentity& identity,
                                   const SessionContents& contents, const SequenceCoder* coder = nullptr);

// Reads and checks a file piece by piece. No bytes can make a SessionFile crash. A file may be unreadable,
// not a session, damaged, cut short or of a different identity, and each case is an error.
class SessionFile {
 public:
  // Reads the header. `coder` decodes compact files of its predictor and belongs to the plan of the wanted
  // identity. Without a coder, compact files are refused.
  static Result<SessionFile> open(const std::string& path, const SessionIdentity& wanted,
                                  std::shared_ptr<const SequenceCoder> coder = nullptr);
  SessionFile(SessionFile&& other) noexcept;
  SessionFile& operator=(SessionFile&&) = delete;
  ~SessionFile();

  int n_tokens() const { return static_cast<int>(layout_.tokens.bytes / sizeof(std::int32_t)); }
  bool is_compact() const { return compact_.has_value(); }
  // Returns the size of the result of sequence().
  std::int64_t sequence_bytes() const {
    return static_cast<std::int64_t>(compact_ ? compact_->sequence_bytes : layout_.sequence.bytes);
  }
  std::int64_t file_bytes() const { return static_cast<std::int64_t>(data_at_ + layout_.bytes()); }

  Result<std::vector<std::int32_t>> tokens() const;
  Result<std::string> text() const;
  Result<HugeBuffer> sequence() const;
  // Returns tokens, text and sequence.
  Result<LoadedSession> contents() const;

 private:
  SessionFile(std::string path, int file, std::shared_ptr<const SequenceCoder> coder)
      : path_(std::move(path)), file_(file), coder_(std::move(coder)) {}
  Status read_header(const SessionIdentity& wanted);
  Status read(std::uint64_t at, void* to, std::uint64_t n) const;
  // Reads some chunks of a part, or the whole part, into a buffer for the whole part. first_sum is the index
  // of the part's first checksum.
  Status read_chunks(const SessionLayout::Part& part, std::uint64_t first_sum, std::uint64_t first,
                     std::uint64_t end, std::byte* to) const;
  Status read_part(const SessionLayout::Part& part, std::uint64_t first_sum, void* to) const;
  template <class Values>
  Result<Values> whole_part(const SessionLayout::Part& part, std::uint64_t first_sum) const;
  Result<HugeBuffer> decoded(std::span<const std::byte> coded) const;
  Error damaged(const std::string& how) const;

  std::string path_;
  int file_;
  std::shared_ptr<const SequenceCoder> coder_;
  std::optional<CompactCoding> compact_;
  std::optional<FileStamp> stamp_;
  std::uint64_t data_at_ = 0;
  SessionLayout layout_;
  std::vector<std::uint64_t> checksums_;
};

// Adds the file's sequence to a cache of the plan that the file belongs to. An error says that the file is
// invalid or that memory is exhausted.
Result<SequenceId> import_session(Cache& cache, const SessionFile& file);

}  // namespace kvant
