#include "serve/session_store.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "model/utf8.h"

namespace kvant {
namespace {

constexpr int kMissing = 404, kConflict = 409, kNoRoom = 503;

ApiError in_use(const std::string& name, const char* how) {
  return {.status = kConflict,
          .message = fmt::format("the session '{}' is {}: try again when that has ended", name, how),
          .retry_seconds = 1};
}

ApiError unusable(const Error& why) {
  return {.status = why.message.starts_with("out of memory") ? kNoRoom : kConflict, .message = why.message};
}

}  // namespace

ApiError unknown_session(const std::string& name) {
  return {.status = kMissing, .message = fmt::format("there is no session '{}'", name)};
}

SessionStore::SessionStore(Cache& cache, const Tokenizer& tokenizer,
                           std::shared_ptr<const SessionFolder> folder)
    : cache_(cache), tokenizer_(tokenizer), folder_(std::move(folder)) {}

SessionStore::~SessionStore() {
  for (auto& [name, session] : sessions_) {
    if (!session.sequence) continue;
    if (!is_on_disk(name, session) && !session.is_saving)
      (void)leave_to_disk(name, session, /*may_lose=*/true);
    if (session.sequence) cache_.free(*session.sequence);
  }
}

// --- finding and loading ---

// Null: there is none. People may bring files into the folder, and take them away.
SessionStore::Session* SessionStore::find(const std::string& name) {
  const auto found = sessions_.find(name);
  if (found != sessions_.end() && (found->second.sequence || found->second.is_running)) return &found->second;
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

Status SessionStore::load(const std::string& name, Session& session) {
  if (session.sequence) return {};
  KVANT_RETURN_IF_ERROR(know(name, session));
  const auto file = folder_->read(name);
  if (!file.ok()) return file.error();
  const auto tokens = file->tokens();
  if (!tokens.ok()) return tokens.error();
  // Nobody else writes into the folder, but people can.
  if (*tokens != session.tokens)
    return error("the file of the session '{}' was replaced while it was in use: restore it", name);
  const auto sequence = import_session(cache_, *file);
  if (!sequence.ok()) return sequence.error();
  session.sequence = *sequence;
  return {};
}

void SessionStore::use(Session& session) {
  session.turn = ++uses_;
  session.last_use = std::time(nullptr);
}

// --- requests ---

std::optional<Refusal> SessionStore::match(GenerationRequest& request) {
  const auto refuse = [](ApiError why) {
    const bool later = why.retry_seconds > 0;
    return Refusal{later ? Refusal::Reason::conflict : Refusal::Reason::wrong, std::move(why.message),
                   why.retry_seconds};
  };
  request.session_tokens = 0;
  Session* session = find(request.session);
  if (session == nullptr) return std::nullopt;
  if (session->is_running) return refuse(in_use(request.session, "being answered"));
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
  found->second.is_running = false;
  if (!found->second.sequence && !folder_->holds(name)) sessions_.erase(found);
}

Result<SequenceId> SessionStore::fork_sequence(const std::string& name) {
  Session& session = sessions_.at(name);
  KVANT_RETURN_IF_ERROR(load(name, session));
  return cache_.fork(*session.sequence);
}

void SessionStore::keep(const std::string& name, SequenceId sequence, std::vector<std::int32_t> tokens,
                        std::string text) {
  KVANT_CHECK(cache_.length(sequence) == std::ssize(tokens), "a session's tokens are those of its sequence");
  Session& session = sessions_.at(name);
  if (session.sequence) cache_.free(*session.sequence);
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

std::optional<ApiError> SessionStore::restore(const std::string& name) {
  Session* session = find(name);
  if (session == nullptr || !folder_->holds(name)) {
    return ApiError{.status = kMissing, .message = fmt::format("there is no saved session '{}'", name)};
  }
  if (session->is_running) return in_use(name, "being answered");
  if (session->is_saving) return in_use(name, "being saved");
  Session restored{.version = session->version + 1, .saved_version = session->version + 1};
  if (const Status loaded = load(name, restored); !loaded.ok()) return unusable(loaded.error());
  if (session->sequence) cache_.free(*session->sequence);
  *session = std::move(restored);
  use(*session);
  return std::nullopt;
}

std::optional<ApiError> SessionStore::fork(const std::string& name, const std::string& to) {
  if (!status(name)) return unknown_session(name);
  if (find(to) != nullptr) {
    return ApiError{
        .status = kConflict,
        .message = fmt::format("there is a session '{}' already: delete it, or choose another name", to)};
  }
  const auto sequence = fork_sequence(name);
  if (!sequence.ok()) return unusable(sequence.error());
  const Session& from = sessions_.at(name);
  Session copy{.sequence = *sequence, .tokens = from.tokens, .text = from.text, .is_known = true};
  use(copy);
  sessions_.emplace(to, std::move(copy));
  return std::nullopt;
}

std::optional<ApiError> SessionStore::remove(const std::string& name) {
  Session* session = find(name);
  if (session == nullptr) return unknown_session(name);
  if (session->is_running) return in_use(name, "being answered");
  if (session->is_saving) return in_use(name, "being saved");
  if (const Status removed = folder_->remove(name); !removed.ok())
    return ApiError{.status = 500, .message = removed.error().message};
  if (session->sequence) cache_.free(*session->sequence);
  sessions_.erase(name);
  return std::nullopt;
}

Result<SessionContents> SessionStore::contents_of(const Session& session) const {
  auto sequence = cache_.export_sequence(*session.sequence);
  if (!sequence.ok()) return sequence.error();
  return SessionContents{session.tokens, session.text, std::move(*sequence)};
}

std::optional<ApiError> SessionStore::start_save(const std::string& name, Save& save) {
  if (!status(name)) return unknown_session(name);
  Session& session = sessions_.at(name);
  if (session.is_saving) return in_use(name, "being saved");
  save = {.name = name, .version = session.version};
  if (!session.sequence || is_on_disk(name, session)) return std::nullopt;
  auto contents = contents_of(session);
  if (!contents.ok()) return ApiError{.status = 500, .message = contents.error().message};
  save.contents = std::move(*contents);
  save.folder = folder_;
  session.is_saving = true;
  return std::nullopt;
}

Status SessionStore::Save::write() const try {
  return folder == nullptr ? Status() : folder->write(name, contents);
} catch (const std::bad_alloc&) {
  return error("out of memory while saving the session '{}'", name);
}

void SessionStore::finish_save(const Save& save, bool written) {
  if (save.folder == nullptr) return;
  Session& session = sessions_.at(save.name);
  session.is_saving = false;
  if (written) session.saved_version = save.version;
}

bool SessionStore::is_saving() const {
  return std::ranges::any_of(sessions_, [](const auto& entry) { return entry.second.is_saving; });
}

// --- memory ---

// People may take files away.
bool SessionStore::is_on_disk(const std::string& name, const Session& session) const {
  return session.is_saved() && folder_->holds(name);
}

// may_lose: a session that can't be written, since the disk is full, is lost; but not while it is asked for.
// Its client has the conversation, and a request with all of it is answered as any other.
bool SessionStore::leave_to_disk(const std::string& name, Session& session, bool may_lose) {
  if (!is_on_disk(name, session)) {
    const auto contents = contents_of(session);
    const Status written = contents.ok() ? folder_->write(name, *contents) : Status(contents.error());
    if (written.ok()) {
      session.saved_version = session.version;
    } else if (session.is_running || !may_lose) {
      return false;
    } else {
      fmt::print(stderr, "kvant: warning: the session '{}' is lost: {}\n", name, written.error().message);
      session.saved_version = ++session.version;  // what its file holds, if there is one
    }
  }
  cache_.free(*session.sequence);
  session.sequence.reset();
  if (!session.is_running) {
    session.tokens = {};
    session.text = {};
    session.is_known = false;
  }
  return true;
}

bool SessionStore::drop_oldest(const std::string& needed) {
  std::vector<std::pair<const std::string, Session>*> held;
  for (auto& entry : sessions_) {
    if (entry.second.sequence && !entry.second.is_saving && entry.first != needed) held.push_back(&entry);
  }
  std::ranges::sort(held, {}, [](const auto* entry) { return entry->second.turn; });
  for (const bool may_lose : {false, true}) {
    for (auto* entry : held) {
      const std::string name = entry->first;
      if (!leave_to_disk(name, entry->second, may_lose)) continue;
      if (!entry->second.is_running && !folder_->holds(name)) sessions_.erase(name);
      return true;
    }
  }
  return false;
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
