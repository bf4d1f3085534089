// SessionFile: a sequence of the cache on a disk, with the tokens that it holds (session_layout.h).
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
#include "session/session_layout.h"

namespace kvant {

// What a session is, apart from what it belongs to.
struct SessionContents {
  std::vector<std::int32_t> tokens;  // that the sequence holds
  std::string text;                  // theirs, as far as it is known; may end within a character
  std::vector<std::byte> sequence;   // Cache::export_sequence
};

// The same, of a file.
struct LoadedSession {
  std::vector<std::int32_t> tokens;
  std::string text;
  HugeBuffer sequence;
};

// Writes the file whole or not at all; when it returns, it is on the disk. Its bytes; errors: see
// write_whole_file. coder: of the identity's plan, which codes the sequence compactly; null: it is written as
// it is.
Result<std::int64_t> write_session(const std::string& path, const SessionIdentity& identity,
                                   const SessionContents& contents, const SequenceCoder* coder = nullptr);

// A file that is read piece by piece, each piece checked. What is wrong with a file is an error, whatever its
// bytes are: it can't be read, it is not a session, it is damaged or cut short, or it belongs to something
// else.
class SessionFile {
 public:
  // Reads the header. coder: of the wanted identity's plan, for files that were coded with its predictor;
  // null: no compact file can be read.
  static Result<SessionFile> open(const std::string& path, const SessionIdentity& wanted,
                                  std::shared_ptr<const SequenceCoder> coder = nullptr);
  SessionFile(SessionFile&& other) noexcept;
  SessionFile& operator=(SessionFile&&) = delete;
  ~SessionFile();

  int n_tokens() const { return static_cast<int>(layout_.tokens.bytes / sizeof(std::int32_t)); }
  bool is_compact() const { return compact_.has_value(); }
  // Of what sequence() gives.
  std::int64_t sequence_bytes() const {
    return static_cast<std::int64_t>(compact_ ? compact_->sequence_bytes : layout_.sequence.bytes);
  }
  std::int64_t file_bytes() const { return static_cast<std::int64_t>(data_at_ + layout_.bytes()); }

  Result<std::vector<std::int32_t>> tokens() const;
  Result<std::string> text() const;
  Result<HugeBuffer> sequence() const;
  // All three.
  Result<LoadedSession> contents() const;

 private:
  SessionFile(std::string path, int file, std::shared_ptr<const SequenceCoder> coder)
      : path_(std::move(path)), file_(file), coder_(std::move(coder)) {}
  Status read_header(const SessionIdentity& wanted);
  Status read(std::uint64_t at, void* to, std::uint64_t n) const;
  // Some chunks of a part, or all of it, into room for the whole part. first_sum: of the part, among the
  // checksums.
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
  std::uint64_t data_at_ = 0;
  SessionLayout layout_;
  std::vector<std::uint64_t> checksums_;
};

// The sequence of a file in a cache of the plan that it belongs to. An error: what is wrong with the file, or
// out of memory.
Result<SequenceId> import_session(Cache& cache, const SessionFile& file);

}  // namespace kvant
