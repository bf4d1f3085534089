// Moves sessions between memory and disk.

#include "base/warn.h"
#include "serve/session_store.h"

namespace kvant {

void SessionStore::want_read(const std::string& name, Session& session) {
  if (std::exchange(session.is_reading, true)) return;
  reading_.want(name);
}

void SessionStore::want_write(const std::string& name, Session& session) {
  if (std::exchange(session.is_saving, true)) return;
  to_write_.push_back(name);
}

Result<bool> SessionStore::advance() {
  const bool taken = take_results(), written = advance_writing();
  const auto read = advance_reading();
  if (!read.ok()) return read.error();
  return taken || written || *read;
}

bool SessionStore::take_results() {
  std::vector<DiskResult> results = disk_.take_results();
  for (DiskResult& result : results) {
    if (!result.was_read) {
      finish_write(result.done, result.stamp);
    } else if (!result.done.ok()) {
      finish_read(result.done);
    } else {
      reading_.give(std::move(result.contents));
    }
  }
  return !results.empty();
}

bool SessionStore::advance_writing() {
  if (!writing_) {
    if (to_write_.empty()) return false;
    if (const Status started = start_writing(); !started.ok()) finish_write(started);
    return true;
  }
  if (writing_->is_given) return false;
  const auto done = writing_->exported->advance(kPieceBytes);
  if (!done.ok()) {
    finish_write(done.error());
  } else if (*done) {
    writing_->contents.sequence = writing_->exported->take();
    writing_->exported.reset();
    if (std::exchange(writing_->owns_sequence, false)) cache_.free(writing_->sequence);
    writing_->is_given = true;
    disk_.write(writing_->name, std::move(writing_->contents));
  }
  return true;
}

Status SessionStore::start_writing() {
  const std::string name = to_write_.front();
  to_write_.pop_front();
  const Session& session = sessions_.at(name);  // a session that waits to be written stays in memory
  writing_.emplace(Writing{.name = name,
                           .version = session.version,
                           .sequence = *session.sequence,
                           .contents = {session.tokens, session.text, {}}});
  auto exported = SequenceExport::start(cache_, writing_->sequence);
  if (!exported.ok()) return exported.error();
  writing_->exported.emplace(std::move(*exported));
  return {};
}

void SessionStore::finish_write(const Status& written, const std::optional<FileStamp>& file) {
  const Writing ended = std::move(*writing_);
  writing_.reset();
  if (ended.owns_sequence) cache_.free(ended.sequence);
  Session& session = sessions_.at(ended.name);
  session.is_saving = false;
  session.write_failure.reset();
  std::optional<SessionError> failure;
  if (written.ok()) {
    session.saved_version = ended.version;
    session.saved_file = file;
  } else {
    session.write_failure = Clock::now();
    failure = SessionError{SessionError::Kind::not_written, written.error().message};
  }
  auto waiting = std::exchange(session.when_saved, {});
  for (auto& [version, done] : waiting) {
    if (failure || version <= ended.version) continue;
    session.when_saved.emplace_back(version, std::exchange(done, nullptr));
    want_write(ended.name, session);
  }
  for (const auto& [version, done] : waiting) {
    if (done) done(failure);
  }
}

Result<bool> SessionStore::advance_reading() {
  return reading_.advance([this](const Status& read) {
    finish_read(read.ok() ? take_imported(sessions_.at(reading_.current_name())) : read);
  });
}

Status SessionStore::take_imported(Session& session) {
  LoadedSession& contents = reading_.current().contents;
  const SequenceId sequence = reading_.current().import->take();
  const auto refuse = [&](Error why) {
    cache_.free(sequence);
    return why;
  };
  if (cache_.length(sequence) != std::ssize(contents.tokens)) {
    return refuse(
        error("the session '{}' of {} tokens has K and V of {} tokens: delete it and start a new one",
              reading_.current_name(), contents.tokens.size(), cache_.length(sequence)));
  }
  if (session.sequence && !session.is_restoring)
    return (cache_.free(sequence), Status());  // The session began anew during the read.
  // Other programs should not write into the folder, but users can.
  if (session.is_known && !session.is_restoring && contents.tokens != session.tokens)
    return refuse(error("the file of the session '{}' was replaced while it was in use: restore it",
                        reading_.current_name()));
  if (session.sequence) cache_.free(*session.sequence);
  session.sequence = sequence;
  session.tokens = std::move(contents.tokens);
  session.text = std::move(contents.text);
  session.is_known = true;
  session.saved_file = contents.stamp;
  if (session.is_restoring) session.saved_version = ++session.version;
  return {};
}

void SessionStore::finish_read(const Status& read) {
  const std::string name = reading_.current_name();
  reading_.drop();
  Session& session = sessions_.at(name);
  session.is_reading = false;
  session.is_restoring = false;
  if (read.ok()) {
    use(session);
  } else if (session.is_running) {
    session.read_failure = Error{read.error().message};  // the failure is final, because nothing tries again
  }
  // A file that could not be read holds no saved state, so the next save must write the session.
  if (!read.ok() && !read.error().is_shortage) session.saved_file.reset();
  const std::vector<SessionDone> waiting = std::exchange(session.when_read, {});
  if (!session.sequence && !session.is_running && !folder_->holds(name)) sessions_.erase(name);
  const auto failure = read.ok() ? std::nullopt : std::optional(unusable_session(read.error()));
  for (const SessionDone& done : waiting) done(failure);
}

void SessionStore::give_up_reading(const Error& why) {
  finish_read(why);
}

int SessionStore::finish() {
  while (is_busy()) {
    const auto done = advance();
    if (!done.ok()) give_up_reading(done.error());
    if (done.ok() && !*done) disk_.wait();
  }
  std::vector<std::string> lost;
  for (auto& [name, session] : sessions_) {
    if (session.sequence && !is_on_disk(name, session) && !write_now(name, session)) lost.push_back(name);
  }
  for (const std::string& name : lost) forget(name);
  return static_cast<int>(lost.size());
}

// Returns false if the session is lost.
bool SessionStore::write_now(const std::string& name, Session& session) {
  auto bytes = cache_.export_sequence(*session.sequence);
  const Result<std::int64_t> written =
      bytes.ok() ? folder_->write(name, {session.tokens, session.text, std::move(*bytes)})
                 : Result<std::int64_t>(bytes.error());
  if (!written.ok()) {
    warn(fmt::format("the session '{}' is lost: {}", name, written.error().message));
    return false;
  }
  session.saved_version = session.version;
  session.saved_file = folder_->stamp(name);
  return true;
}

}  // namespace kvant
