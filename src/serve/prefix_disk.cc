#include "serve/prefix_disk.h"

#include <algorithm>

#include "base/checksum.h"
#include "base/page_size.h"
#include "base/warn.h"

namespace kvant {
namespace {

// After a failure, the disk cache writes nothing for this long.
constexpr std::chrono::seconds kPauseAfterFailure{10};

std::string file_name(std::span<const std::int32_t> tokens) {
  return fmt::format("{:016x}", checksum(std::as_bytes(tokens)));
}

bool is_file_name(const std::string& name) {
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

int n_pages_alike(std::span<const std::int32_t> tokens, std::span<const std::int32_t> prompt) {
  const auto n = std::ranges::mismatch(tokens, prompt).in1 - tokens.begin();
  return static_cast<int>(n / kPageTokens * kPageTokens);
}

PrefixDisk::PrefixDisk(Cache& cache, std::shared_ptr<const SessionFolder> folder, std::int64_t byte_limit,
                       bool cuts)
    : cache_(cache), folder_(std::move(folder)), cuts_(cuts), status_{.limit = byte_limit}, disk_(folder_) {
  find_files();
}

// The oldest files come first, because they are the first to be dropped.
void PrefixDisk::find_files() {
  std::vector<std::pair<std::int64_t, std::string>> names;
  for (const std::string& name : folder_->names()) {
    if (is_file_name(name)) names.emplace_back(folder_->last_write(name), name);
  }
  std::ranges::sort(names);
  for (const auto& [written, name] : names) {
    const auto found = folder_->read(name);
    const auto tokens = found.ok() ? found->tokens() : Result<std::vector<std::int32_t>>(found.error());
    if (!tokens.ok() || tokens->empty() || tokens->size() % kPageTokens != 0 || file_name(*tokens) != name) {
      (void)folder_->remove(name);
      continue;
    }
    files_.push_back({name, *tokens, found->file_bytes(), ++uses_});
    status_.bytes += files_.back().bytes;
  }
  (void)make_room(0);
}

PrefixDisk::File* PrefixDisk::file(const std::string& name) {
  const auto found = std::ranges::find(files_, name, &File::name);
  return found == files_.end() ? nullptr : &*found;
}

// Drops files until `bytes` more fit under the limit. Returns false if `bytes` exceeds the limit.
bool PrefixDisk::make_room(std::int64_t bytes) {
  if (bytes > status_.limit) return false;
  while (status_.bytes + bytes > status_.limit && !files_.empty()) {
    drop(std::ranges::min_element(files_, {}, &File::last_use)->name);
    ++status_.dropped;
  }
  return true;
}

// drop() takes a copy, because `name` may belong to an entry of files_.
void PrefixDisk::drop(std::string name) {
  std::erase_if(files_, [&](const File& f) {
    if (f.name != name) return false;
    status_.bytes -= f.bytes;
    return true;
  });
  disk_.remove(name);
}

PrefixDiskStatus PrefixDisk::status() const {
  PrefixDiskStatus status = status_;
  status.files = static_cast<int>(files_.size());
  return status;
}

// The functions from find() to finish_read() find and read files.

PrefixDisk::Match PrefixDisk::find(std::span<const std::int32_t> prompt) const {
  Match match;
  for (const File& f : files_) {
    const int common = n_pages_alike(f.tokens, prompt), n_held = static_cast<int>(f.tokens.size());
    const int usable = cuts_ || common == n_held ? common : 0;
    match.n_common = std::max(match.n_common, common);
    if (usable > match.n_tokens || (usable == match.n_tokens && usable > 0 && n_held < match.file_tokens))
      match = {f.name, usable, match.n_common, n_held};
  }
  return match;
}

bool PrefixDisk::holds(std::span<const std::int32_t> tokens) const {
  return find(tokens).n_tokens == std::ssize(tokens);
}

bool PrefixDisk::is_coming(const std::string& name) const {
  return reading_.is_coming(name);
}

void PrefixDisk::want(const std::string& name) {
  if (!is_coming(name)) reading_.want(name);
}

Result<bool> PrefixDisk::advance_reading() {
  return reading_.advance([this](const Status& read) { finish_read(read); });
}

bool PrefixDisk::give_up_reading() {
  if (!reading_.is_importing()) return false;
  reading_.drop();
  return true;
}

void PrefixDisk::finish_read(const Status& read) {
  const SequenceReading::File ended = std::move(reading_.current());
  reading_.drop();
  File* found = file(ended.name);
  if (found == nullptr) {  // The cache dropped the file during the read, to make room.
    if (read.ok()) cache_.free(ended.import->take());
    return;
  }
  if (read.ok()) {
    const SequenceId sequence = ended.import->take();
    if (cache_.length(sequence) == std::ssize(found->tokens) && ended.contents.tokens == found->tokens) {
      found->last_use = ++uses_;
      ++status_.hits;
      loaded_.push_back({sequence, found->tokens});
      return;
    }
    cache_.free(sequence);
  } else if (read.error().is_shortage) {
    return;
  }
  ++status_.failures;
  warn(fmt::format("the prefix in '{}' is damaged and is computed again", folder_->file_of(ended.name)));
  drop(ended.name);
}

// The functions from can_write() to write_now() write files.

bool PrefixDisk::can_write() const {
  return !writing_ && !(write_failure_ && Clock::now() - *write_failure_ < kPauseAfterFailure);
}

void PrefixDisk::write(SequenceId sequence, std::span<const std::int32_t> tokens) {
  auto exported = SequenceExport::start(cache_, sequence);
  if (!exported.ok()) return fail_write(exported.error());
  writing_.emplace(Writing{
      .name = file_name(tokens), .sequence = sequence, .contents = {{tokens.begin(), tokens.end()}, "", {}}});
  writing_->exported.emplace(std::move(*exported));
}

void PrefixDisk::let_go(SequenceId sequence) {
  if (writing_ && writing_->exported && writing_->sequence == sequence) writing_.reset();
}

bool PrefixDisk::advance_writing() {
  if (!writing_ || !writing_->exported) return false;
  const auto done = writing_->exported->advance(kPieceBytes);
  if (!done.ok()) {
    finish_write(done.error());
  } else if (*done) {
    SessionContents& contents = writing_->contents;
    contents.sequence = writing_->exported->take();
    writing_->exported.reset();
    const std::int64_t bytes = folder_->file_bytes(contents);
    if (!make_room(bytes)) {
      too_long_ = std::min(too_long_, contents.tokens.size());
      writing_.reset();
      return true;
    }
    status_.bytes += writing_->bytes = bytes;
    disk_.write(writing_->name, {contents.tokens, "", std::move(contents.sequence)});
  }
  return true;
}

void PrefixDisk::finish_write(const Status& written, std::int64_t file_bytes) {
  Writing ended = std::move(*writing_);
  writing_.reset();
  if (!written.ok()) {
    status_.bytes -= ended.bytes;
    return fail_write(written.error());
  }
  status_.bytes += file_bytes - ended.bytes;
  write_failure_.reset();
  ++status_.written;
  std::vector<std::string> given;  // shorter prefixes that the new file also gives
  for (const File& f : files_) {
    const bool is_beginning = n_pages_alike(f.tokens, ended.contents.tokens) == std::ssize(f.tokens);
    if (cuts_ && is_beginning && f.tokens != ended.contents.tokens) given.push_back(f.name);
  }
  for (const std::string& name : given) drop(name);
  std::erase_if(files_, [&](const File& f) {  // the new file has overwritten the old one of the same name
    if (f.name == ended.name) status_.bytes -= f.bytes;
    return f.name == ended.name;
  });
  files_.push_back({ended.name, std::move(ended.contents.tokens), file_bytes, ++uses_});
}

void PrefixDisk::fail_write(const Error& why) {
  ++status_.failures;
  if (!write_failure_) warn(fmt::format("prefixes are not written to disk for now: {}", why.message));
  write_failure_ = Clock::now();
}

void PrefixDisk::write_now(SequenceId sequence, std::span<const std::int32_t> tokens) {
  while (writing_) {
    if (!take_results() && !advance_writing()) disk_.wait();
  }
  if (!can_write() || holds(tokens)) return;
  write(sequence, tokens);
  while (writing_) {
    if (!take_results() && !advance_writing()) disk_.wait();
  }
}

// take_results() and advance() serve reads and writes.

bool PrefixDisk::take_results() {
  std::vector<DiskResult> results = disk_.take_results();
  for (DiskResult& result : results) {
    if (!result.was_read) {
      finish_write(result.done, result.file_bytes);
    } else if (!reading_.is_current(result.name)) {  // the read was given up
    } else if (!result.done.ok()) {
      finish_read(result.done);
    } else {
      reading_.give(std::move(result.contents));
    }
  }
  return !results.empty();
}

Result<bool> PrefixDisk::advance() {
  const bool taken = take_results(), written = advance_writing();
  const auto read = advance_reading();
  if (!read.ok()) return read.error();
  return taken || written || *read;
}

}  // namespace kvant
