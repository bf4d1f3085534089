#include "session/session_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <new>
#include <system_error>
#include <utility>

#include "base/checksum.h"
#include "base/json_file.h"

namespace kvant {
namespace {

using Part = SessionLayout::Part;

constexpr std::uint64_t kChunksForTwo = 4;  // A second thread reads parts of at least this many chunks.
constexpr int kCodingThreads = 2;

std::string predictor_name(std::uint64_t checksum) {
  return fmt::format("{:016x}", checksum);
}

void add_checksums(std::span<const std::byte> part, std::vector<std::uint64_t>& sums) {
  for (std::size_t at = 0; at < part.size(); at += kSessionChunk)
    sums.push_back(checksum(part.subspan(at, std::min(kSessionChunk, part.size() - at))));
}

}  // namespace

Result<std::int64_t> write_session(const std::string& path, const SessionIdentity& identity,
                                   const SessionContents& contents, const SequenceCoder* coder) try {
  std::vector<std::byte> coded;
  std::span<const std::byte> sequence = contents.sequence;
  std::optional<CompactCoding> compact;
  if (coder != nullptr) {
    coded = coder->encode(sequence, kCodingThreads);
    compact = {predictor_name(coder->predictor_checksum()), sequence.size()};
    sequence = coded;
  }
  const SessionLayout layout = session_layout(contents.tokens.size(), sequence.size(), contents.text.size());
  const std::string header = session_header(identity, layout, compact);
  const auto tokens = std::as_bytes(std::span(contents.tokens));
  const auto text = std::as_bytes(std::span(contents.text));
  std::vector<std::uint64_t> sums = {checksum(std::as_bytes(std::span(header)))};
  for (const std::span<const std::byte> part : {tokens, sequence, text}) add_checksums(part, sums);
  KVANT_RETURN_IF_ERROR(write_whole_file(
      path, {std::as_bytes(std::span(header)), std::as_bytes(std::span(sums)), tokens, sequence, text},
      /*mode=*/0600));
  return static_cast<std::int64_t>(header.size() + layout.bytes());
} catch (const std::bad_alloc&) {
  return shortage("out of memory while writing the session '{}'", path);
}

SessionFile::SessionFile(SessionFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      coder_(std::move(other.coder_)),
      compact_(std::move(other.compact_)),
      stamp_(other.stamp_),
      data_at_(other.data_at_),
      layout_(other.layout_),
      checksums_(std::move(other.checksums_)) {}

SessionFile::~SessionFile() {
  if (file_ >= 0) close(file_);
}

Error SessionFile::damaged(const std::string& how) const {
  return error(
      "the session '{}' is damaged or not a session: {}; give another file, or delete this one if it was a "
      "session",
      path_, how);
}

Result<SessionFile> SessionFile::open(const std::string& path, const SessionIdentity& wanted,
                                      std::shared_ptr<const SequenceCoder> coder) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return error("cannot read the session '{}': {}", path, std::strerror(errno));
  SessionFile file(path, descriptor, std::move(coder));
  KVANT_RETURN_IF_ERROR(file.read_header(wanted));
  return file;
}

Status SessionFile::read_header(const SessionIdentity& wanted) {
  struct stat info {};
  if (fstat(file_, &info) != 0 || !S_ISREG(info.st_mode))
    return error("cannot read the session '{}': it is not a file", path_);
  stamp_.emplace(info);
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  std::uint64_t length = 0;
  if (file_bytes < sizeof(length)) return damaged("it is cut short");
  KVANT_RETURN_IF_ERROR(read(0, &length, sizeof(length)));
  if (length > std::min(kMaxSessionHeader, file_bytes - sizeof(length))) return damaged("it has no header");
  std::string start(sizeof(length) + length, '\0');
  KVANT_RETURN_IF_ERROR(read(0, start.data(), start.size()));
  data_at_ = start.size();
  const auto header =
      parse_session_header(std::string_view(start).substr(sizeof(length)), file_bytes - data_at_);
  if (!header.ok()) return damaged(header.error().message);
  // In a file of a different version the checksums may lie elsewhere.
  if (header->identity.version != kSessionVersion && !header->compact)
    return check_identity(header->identity, wanted, "'" + path_ + "'");
  layout_ = header->layout;
  checksums_.resize(layout_.checksums.bytes / sizeof(std::uint64_t));
  KVANT_RETURN_IF_ERROR(read(data_at_ + layout_.checksums.first, checksums_.data(), layout_.checksums.bytes));
  if (checksum(std::as_bytes(std::span(start))) != checksums_[0])
    return damaged("its header doesn't have its checksum");
  KVANT_RETURN_IF_ERROR(check_identity(header->identity, wanted, "'" + path_ + "'"));
  compact_ = header->compact;
  if (!compact_) return {};
  if (coder_ == nullptr)
    return error(
        "the session '{}' is coded compactly, and the predictor that this takes is missing: put it "
        "back into the folder of calibrations, or start a new session",
        path_);
  if (const std::string own = predictor_name(coder_->predictor_checksum()); compact_->predictor != own)
    return error(
        "the session '{}' is coded with a different predictor than this machine's ({}): put its own back "
        "into the folder of calibrations, or start a new session",
        path_, own);
  return {};
}

Status SessionFile::read(std::uint64_t at, void* to, std::uint64_t n) const {
  auto* bytes = static_cast<char*>(to);
  while (n > 0) {
    const ssize_t got = pread(file_, bytes, n, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error("cannot read the session '{}': {}", path_, std::strerror(errno));
    if (got == 0) return damaged("it is cut short");
    bytes += got;
    at += static_cast<std::uint64_t>(got);
    n -= static_cast<std::uint64_t>(got);
  }
  return {};
}

// Reads chunk by chunk, so each chunk is still in the processor's cache when its checksum is computed.
Status SessionFile::read_chunks(const Part& part, std::uint64_t first_sum, std::uint64_t first,
                                std::uint64_t end, std::byte* to) const {
  for (std::uint64_t i = first; i < end; ++i) {
    const std::uint64_t at = i * kSessionChunk, n = std::min<std::uint64_t>(kSessionChunk, part.bytes - at);
    KVANT_RETURN_IF_ERROR(read(data_at_ + part.first + at, to + at, n));
    if (checksum({to + at, n}) != checksums_[first_sum + i])
      return damaged(
          fmt::format("the bytes from {} on don't have their checksum", data_at_ + part.first + at));
  }
  return {};
}

// Two threads read a large part.
Status SessionFile::read_part(const Part& part, std::uint64_t first_sum, void* to) const {
  auto* bytes = static_cast<std::byte*>(to);
  const std::uint64_t n = part.n_chunks();
  if (n < kChunksForTwo) return read_chunks(part, first_sum, 0, n, bytes);
  std::future<Status> second;
  try {
    second = std::async(std::launch::async, [&, n] { return read_chunks(part, first_sum, n / 2, n, bytes); });
  } catch (const std::system_error&) {  // The system gives no more threads.
    return read_chunks(part, first_sum, 0, n, bytes);
  }
  const Status first = read_chunks(part, first_sum, 0, n / 2, bytes);
  const Status rest = second.get();
  return first.ok() ? rest : first;
}

// A header may promise more bytes than there is memory for, so a failed allocation becomes an error.
template <class Values>
Result<Values> SessionFile::whole_part(const Part& part, std::uint64_t first_sum) const try {
  Values values(part.bytes / sizeof(*values.data()));
  KVANT_RETURN_IF_ERROR(read_part(part, first_sum, values.data()));
  return values;
} catch (const std::bad_alloc&) {
  return shortage("out of memory while reading the session '{}' of {} bytes", path_, file_bytes());
}

Result<std::vector<std::int32_t>> SessionFile::tokens() const {
  return whole_part<std::vector<std::int32_t>>(layout_.tokens, 1);
}

Result<HugeBuffer> SessionFile::sequence() const {
  auto stored = whole_part<HugeBuffer>(layout_.sequence, 1 + layout_.tokens.n_chunks());
  if (!stored.ok() || !compact_) return stored;
  return decoded(stored->bytes());
}

Result<HugeBuffer> SessionFile::decoded(std::span<const std::byte> coded) const try {
  auto sequence = coder_->decode(coded, kCodingThreads);
  if (!sequence.ok()) return damaged(sequence.error().message);
  if (sequence->size() != compact_->sequence_bytes) return damaged("its sizes can't be");
  return sequence;
} catch (const std::bad_alloc&) {
  return shortage("out of memory while decoding the session '{}' of {} bytes", path_,
                  compact_->sequence_bytes);
}

Result<std::string> SessionFile::text() const {
  const auto text = whole_part<std::vector<char>>(
      layout_.text, 1 + layout_.tokens.n_chunks() + layout_.sequence.n_chunks());
  if (!text.ok()) return text.error();
  return std::string(text->begin(), text->end());
}

Result<LoadedSession> SessionFile::contents() const {
  auto tokens = this->tokens();
  if (!tokens.ok()) return tokens.error();
  auto text = this->text();
  if (!text.ok()) return text.error();
  auto sequence = this->sequence();
  if (!sequence.ok()) return sequence.error();
  return LoadedSession{std::move(*tokens), std::move(*text), std::move(*sequence), stamp_};
}

Result<SequenceId> import_session(Cache& cache, const SessionFile& file) {
  const auto bytes = file.sequence();
  if (!bytes.ok()) return bytes.error();
  auto sequence = cache.import_sequence(bytes->bytes());
  if (!sequence.ok() || cache.length(*sequence) == file.n_tokens()) return sequence;
  const int held = cache.length(*sequence);
  cache.free(*sequence);
  return error("a session of {} tokens has K and V of {} tokens: delete it and start a new one",
               file.n_tokens(), held);
}

}  // namespace kvant
