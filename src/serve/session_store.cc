#include "serve/session_store.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "model/utf8.h"

namespace kvant {
namespace {

// How long after a failure nobody tries to write a session but who asks for it.
constexpr std::chrono::seconds kWritePause{10};

using Kind = SessionError::Kind;

SessionError in_use(const std::string& name, const char* how) {
  return {Kind::in_use, fmt::format("the session '{}' is {}: try again when that has ended", name, how)};
}

SessionError unusable(const Error& why) {
  return {why.is_shortage ? Kind::no_memory : Kind::unusable, why.message};
}

}  // namespace

SessionError unknown_session(const std::string& name) {
  return {Kind::missing, fmt::format("there is no session '{}'", name)};
}

SessionStore::SessionStore(Cache& cache, const Tokenizer& tokenizer,
                           std::shared_ptr<const SessionFolder> folder)
    : cache_(cache), tokenizer_(tokenizer), folder_(std::move(folder)), disk_(folder_) {}

SessionStore::~SessionStore() {
  finish();
  for (auto& [name, session] : sessions_) {
    if (session.sequence) cache_.free(*session.sequence);
  }
}

void SessionStore::finish() {
  while (is_busy()) {
    const auto done = advance();
    if (!done.ok()) give_up_reading(done.error());
    if (done.ok() && !*done) disk_.wait();
  }
  for (auto& [name, session] : sessions_) {
    if (session.sequence && !is_on_disk(name, session)) write_now(name, session);
  }
}

void SessionStore::write_now(const std::string& name, Session& session) {
  auto bytes = cache_.export_sequence(*session.sequence);
  const Status written = bytes.ok() ? folder_->write(name, {session.tokens, session.text, std::move(*bytes)})
                                    : Status(bytes.error());
  if (written.ok()) {
    session.saved_version = session.version;
  } else {
    fmt::print(stderr, "kvant: warning: the session '{}' is lost: {}\n", name, written.error().message);
  }
}

// --- finding ---

// Null: there is none. People may bring files into the folder, and take them away.
SessionStore::Session* SessionStore::find(const std::string& name) {
  const auto found = sessions_.find(name);
  if (found != sessions_.end()) {
    const Session& held = found->second;
    if (held.sequence || held.is_running || held.is_saving || held.is_reading) return &found->second;
  }
  if (!folder_->holds(name)) {
    sessions_.erase(name);
    return nullptr;
  }
  if (found != sessions_.end()) return &found->second;
  Session& session = sessions_[name];
  session.saved_version = session.version;
  session.last_use = folder_->last_write(name);
  return &session;
}

// Reads what a request is compared with.
Status SessionStore::know(const std::string& name, Session& session) {
  if (session.is_known) return {};
  const auto file = folder_->read(name);
  if (!file.ok()) return file.error();
  auto tokens = file->tokens();
  if (!tokens.ok()) return tokens.error();
  auto text = file->text();
  if (!text.ok()) return text.error();
  session.tokens = std::move(*tokens);
  session.text = std::move(*text);
  session.is_known = true;
  return {};
}

void SessionStore::use(Session& session) {
  session.turn = ++uses_;
  session.last_use = std::time(nullptr);
}

// --- requests ---

std::optional<Refusal> SessionStore::match(GenerationRequest& request) {
  const auto refuse = [](SessionError why) {
    const bool later = why.kind == Kind::in_use;
    return Refusal{later ? Refusal::Reason::conflict : Refusal::Reason::wrong, std::move(why.message),
                   later ? 1 : 0};
  };
  request.session_tokens = 0;
  Session* session = find(request.session);
  if (session == nullptr) return std::nullopt;
  if (session->is_running) return refuse(in_use(request.session, "being answered"));
  if (session->is_restoring) return refuse(in_use(request.session, "being restored"));
  if (!session->sequence) session->is_known = false;  // the file may be another by now
  if (const Status known = know(request.session, *session); !known.ok())
    return refuse(unusable(known.error()));
  const std::vector<std::int32_t>& held = session->tokens;
  const int n_held = static_cast<int>(held.size());
  const auto begins_with = [](const auto& whole, const auto& part) {
    return whole.size() > part.size() && std::ranges::equal(part, std::span(whole).first(part.size()));
  };
  if (begins_with(request.prompt, held)) {
    request.session_tokens = n_held;
    return std::nullopt;
  }
  // A text has more than one form in tokens, and the model need not write the tokenizer's.
  if (session->text.empty() || !begins_with(request.text, session->text)) return std::nullopt;
  const std::string rest = request.text.substr(session->text.size());
  const auto tokens = tokenizer_.encode(rest, /*add_special=*/false, request.text_has_special_tokens);
  if (!tokens.ok() || tokens->empty()) return std::nullopt;  // the session ends within a character
  std::string spelled;
  for (const std::int32_t token : *tokens) spelled += tokenizer_.piece(token);
  if (spelled != rest) return std::nullopt;  // some tokenizers put a space before whatever they are given
  request.prompt = held;
  request.prompt.insert(request.prompt.end(), tokens->begin(), tokens->end());
  request.session_tokens = n_held;
  return std::nullopt;
}

void SessionStore::begin(const std::string& name) {
  Session& session = sessions_[name];  // maybe new: it comes to be with its first answer
  KVANT_CHECK(!session.is_running, "two requests go on with one session");
  session.is_running = true;
  use(session);
}

void SessionStore::end(const std::string& name) {
  const auto found = sessions_.find(name);
  KVANT_CHECK(found != sessions_.end(), "the end of a session that has not begun");
  Session& session = found->second;
  session.is_running = false;
  session.read_failure.reset();
  if (!session.sequence && !session.is_reading && !folder_->holds(name)) sessions_.erase(found);
}

Result<std::optional<SequenceId>> SessionStore::fork_sequence(const std::string& name) {
  Session& session = sessions_.at(name);
  if (session.sequence) {
    const auto fork = cache_.fork(*session.sequence);
    if (!fork.ok()) return fork.error();
    return std::optional(*fork);
  }
  if (session.read_failure) return *std::exchange(session.read_failure, std::nullopt);
  want_read(name, session);
  return std::optional<SequenceId>();
}

void SessionStore::keep(const std::string& name, SequenceId sequence, std::vector<std::int32_t> tokens,
                        std::string text) {
  KVANT_CHECK(cache_.length(sequence) == std::ssize(tokens), "a session's tokens are those of its sequence");
  Session& session = sessions_.at(name);
  if (session.sequence) {
    if (writing_ && writing_->exported && writing_->sequence == *session.sequence) {
      writing_->owns_sequence = true;
    } else {
      cache_.free(*session.sequence);
    }
  }
  session.sequence = sequence;
  session.tokens = std::move(tokens);
  session.text = std::move(text);
  session.is_known = true;
  ++session.version;
  use(session);
}

// --- what people ask for ---

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
    status.bytes = bytes.all();
    status.bits = bytes.bits_all();
  }
  if (!status.on_disk) return status;
  const auto file = folder_->read(name);
  if (!file.ok()) {
    status.problem = file.error().message;
    return status;
  }
  status.file_bytes = file->file_bytes();
  if (status.in_memory) return status;
  status.tokens = file->n_tokens();
  status.bytes = file->sequence_bytes();
  return status;
}

// One that has begun and has had no answer yet is none.
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
        Kind::exists, fmt::format("there is a session '{}' already: delete it, or choose another name", to)};
  }
  const auto sequence = cache_.fork(*from->sequence);
  if (!sequence.ok()) return unusable(sequence.error());
  Session copy{.sequence = *sequence, .tokens = from->tokens, .text = from->text, .is_known = true};
  use(copy);
  sessions_.emplace(to, std::move(copy));
  return std::nullopt;
}

std::optional<SessionError> SessionStore::remove(const std::string& name) {
  Session* session = find(name);
  if (session == nullptr) return unknown_session(name);
  if (session->is_running) return in_use(name, "being answered");
  if (session->is_saving) return in_use(name, "being saved");
  if (session->is_reading) return in_use(name, "being read");
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
  if (!status(name)) return done(unknown_session(name));
  Session& session = sessions_.at(name);
  if (session.is_restoring) return done(in_use(name, "being restored"));
  if (!session.sequence || is_on_disk(name, session)) return done(std::nullopt);
  session.when_saved.emplace_back(session.version, std::move(done));
  want_write(name, session);
}

void SessionStore::restore(const std::string& name, SessionDone done) {
  Session* session = find(name);
  if (session == nullptr || !folder_->holds(name))
    return done(SessionError{Kind::missing, fmt::format("there is no saved session '{}'", name)});
  if (session->is_running) return done(in_use(name, "being answered"));
  if (session->is_saving) return done(in_use(name, "being saved"));
  if (session->is_reading) return done(in_use(name, "being read"));
  session->is_restoring = true;
  session->when_read.push_back(std::move(done));
  want_read(name, *session);
}

// --- to and from the disk ---

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
      finish_write(result.done);
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
  const Session& session = sessions_.at(name);  // in memory: what waits to be saved stays there
  writing_.emplace(Writing{.name = name,
                           .version = session.version,
                           .sequence = *session.sequence,
                           .contents = {session.tokens, session.text, {}}});
  auto exported = SequenceExport::start(cache_, writing_->sequence);
  if (!exported.ok()) return exported.error();
  writing_->exported.emplace(std::move(*exported));
  return {};
}

void SessionStore::finish_write(const Status& written) {
  const Writing ended = std::move(*writing_);
  writing_.reset();
  if (ended.owns_sequence) cache_.free(ended.sequence);
  Session& session = sessions_.at(ended.name);
  session.is_saving = false;
  session.write_failure.reset();
  std::optional<SessionError> failure;
  if (written.ok()) {
    session.saved_version = ended.version;
  } else {
    session.write_failure = Clock::now();
    failure = SessionError{Kind::not_written, written.error().message};
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
  SessionContents& contents = reading_.current().contents;
  const SequenceId sequence = reading_.current().import->take();
  const auto refuse = [&](Error why) {
    cache_.free(sequence);
    return why;
  };
  if (cache_.length(sequence) != std::ssize(contents.tokens)) {
    return refuse(error("the session '{}' of {} tokens has rows of {}: delete it and start a new one",
                        reading_.current_name(), contents.tokens.size(), cache_.length(sequence)));
  }
  if (session.sequence && !session.is_restoring)
    return (cache_.free(sequence), Status());  // begun anew since
  // Nobody else writes into the folder, but people can.
  if (session.is_known && !session.is_restoring && contents.tokens != session.tokens)
    return refuse(error("the file of the session '{}' was replaced while it was in use: restore it",
                        reading_.current_name()));
  if (session.sequence) cache_.free(*session.sequence);
  session.sequence = sequence;
  session.tokens = std::move(contents.tokens);
  session.text = std::move(contents.text);
  session.is_known = true;
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
    session.read_failure = Error{read.error().message};  // final: nobody tries again
  }
  const std::vector<SessionDone> waiting = std::exchange(session.when_read, {});
  if (!session.sequence && !session.is_running && !folder_->holds(name)) sessions_.erase(name);
  const auto failure = read.ok() ? std::nullopt : std::optional(unusable(read.error()));
  for (const SessionDone& done : waiting) done(failure);
}

void SessionStore::give_up_reading(const Error& why) {
  finish_read(why);
}

// People may take files away.
bool SessionStore::is_on_disk(const std::string& name, const Session& session) const {
  return session.is_saved() && folder_->holds(name);
}

void SessionStore::forget(const std::string& name) {
  Session& session = sessions_.at(name);
  cache_.free(*session.sequence);
  session.sequence.reset();
  if (session.is_running) return;
  session.tokens = {};
  session.text = {};
  session.is_known = false;
  if (!folder_->holds(name)) sessions_.erase(name);
}

Room SessionStore::make_room(const std::string& needed) {
  std::vector<std::pair<const std::string, Session>*> held;
  for (auto& entry : sessions_) {
    const Session& session = entry.second;
    if (session.sequence && !session.is_saving && !session.is_reading && entry.first != needed)
      held.push_back(&entry);
  }
  std::ranges::sort(held, {}, [](const auto* entry) { return entry->second.turn; });
  for (const auto* entry : held) {
    if (!is_on_disk(entry->first, entry->second)) continue;
    forget(entry->first);
    return Room::made;
  }
  if (is_writing()) return Room::pending;
  for (auto* entry : held) {
    const auto& failure = entry->second.write_failure;
    if (failure && Clock::now() - *failure < kWritePause) continue;
    want_write(entry->first, entry->second);
    return Room::pending;
  }
  for (auto* entry : held) {
    if (entry->second.is_running) continue;
    const std::string name = entry->first;
    fmt::print(stderr, "kvant: warning: the session '{}' is lost: it can't be written\n", name);
    entry->second.saved_version = ++entry->second.version;  // what its file holds, if there is one
    forget(name);
    return Room::made;
  }
  return Room::none;
}

void SessionStore::finish_writing() {
  while (is_writing()) {
    const bool taken = take_results();
    if (!advance_writing() && !taken) disk_.wait();
  }
}

std::map<SequenceId, std::string> SessionStore::held() const {
  std::map<SequenceId, std::string> names;
  for (const auto& [name, session] : sessions_) {
    if (session.sequence) names.emplace(*session.sequence, name);
  }
  return names;
}

int SessionStore::in_memory() const {
  return static_cast<int>(
      std::ranges::count_if(sessions_, [](const auto& entry) { return entry.second.sequence.has_value(); }));
}

std::int64_t SessionStore::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [name, session] : sessions_) {
    if (session.sequence) sum += cache_.bytes(*session.sequence).all();
  }
  return sum;
}

}  // namespace kvant
