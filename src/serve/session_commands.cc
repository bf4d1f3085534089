// Serves clients' commands: list, fork, delete, save and restore sessions.
#include "serve/session_store.h"

namespace kvant {
namespace {

using Kind = SessionError::Kind;

}  // namespace

SessionStatus SessionStore::status_of(const std::string& name, const Session& session) const {
  SessionStatus status{.name = name,
                       .tokens = static_cast<int>(session.tokens.size()),
                       .in_memory = session.sequence.has_value(),
                       .on_disk = folder_->holds(name),
                       .is_running = session.is_running,
                       .last_use = session.last_use};
  status.is_saved = is_on_disk(name, session);
  if (status.in_memory) {
    const CacheBytes bytes = cache_.bytes(*session.sequence);
    status.bytes = bytes.with_states();
    status.bits = bytes.bits_all();
  }
  if (!status.on_disk) return status;
  const auto file = folder_->read(name);
  if (!file.ok()) {
    status.problem = file.error().message;
    status.is_saved = false;
    return status;
  }
  status.file_bytes = file->file_bytes();
  if (status.in_memory) return status;
  status.tokens = file->n_tokens();
  status.bytes = file->sequence_bytes();
  return status;
}

// For clients, a session exists only after its first completion has ended.
std::optional<SessionStatus> SessionStore::status(const std::string& name) {
  const Session* session = find(name);
  if (session == nullptr) return std::nullopt;
  SessionStatus status = status_of(name, *session);
  return status.in_memory || status.on_disk ? std::optional(std::move(status)) : std::nullopt;
}

std::vector<SessionStatus> SessionStore::list() {
  for (const std::string& name : folder_->names()) (void)find(name);
  std::vector<std::string> names;
  for (const auto& [name, session] : sessions_) names.push_back(name);
  std::vector<SessionStatus> list;
  for (const std::string& name : names) {
    if (auto status = this->status(name)) list.push_back(std::move(*status));
  }
  return list;
}

std::optional<SessionError> SessionStore::fork(const std::string& name, const std::string& to) {
  const Session* from = find(name);
  if (from == nullptr || !from->sequence) return unknown_session(name);
  if (find(to) != nullptr) {
    return SessionError{
        Kind::exists, fmt::format("the session '{}' already exists: delete it, or choose another name", to)};
  }
  const auto sequence = cache_.fork(*from->sequence);
  if (!sequence.ok()) return unusable_session(sequence.error());
  Session copy{.sequence = *sequence, .tokens = from->tokens, .text = from->text, .is_known = true};
  use(copy);
  sessions_.emplace(to, std::move(copy));
  return std::nullopt;
}

std::optional<SessionError> SessionStore::remove(const std::string& name) {
  Session* session = find(name);
  if (session == nullptr) return unknown_session(name);
  if (session->is_running) return session_in_use(name, "being answered");
  if (session->is_saving) return session_in_use(name, "being saved");
  if (session->is_reading) return session_in_use(name, "being read");
  if (const Status removed = folder_->remove(name); !removed.ok())
    return SessionError{Kind::not_written, removed.error().message};
  if (session->sequence) cache_.free(*session->sequence);
  sessions_.erase(name);
  return std::nullopt;
}

void SessionStore::load(const std::string& name, SessionDone done) {
  if (!status(name)) return done(unknown_session(name));
  Session& session = sessions_.at(name);
  if (session.sequence) return done(std::nullopt);
  session.when_read.push_back(std::move(done));
  want_read(name, session);
}

void SessionStore::save(const std::string& name, SessionDone done) {
  const auto status = this->status(name);
  if (!status) return done(unknown_session(name));
  Session& session = sessions_.at(name);
  if (session.is_restoring) return done(session_in_use(name, "being restored"));
  if (!session.sequence && !status->problem.empty())
    return done(SessionError{Kind::unusable, status->problem});
  if (!session.sequence || is_on_disk(name, session)) return done(std::nullopt);
  session.when_saved.emplace_back(session.version, std::move(done));
  want_write(name, session);
}

void SessionStore::restore(const std::string& name, SessionDone done) {
  Session* session = find(name);
  if (session == nullptr || !folder_->holds(name))
    return done(SessionError{Kind::missing, fmt::format("there is no saved session '{}'", name)});
  if (session->is_running) return done(session_in_use(name, "being answered"));
  if (session->is_saving) return done(session_in_use(name, "being saved"));
  if (session->is_reading) return done(session_in_use(name, "being read"));
  session->is_restoring = true;
  session->when_read.push_back(std::move(done));
  want_read(name, *session);
}

}  // namespace kvant
