#include "serve/session_store.h"

#include <algorithm>
#include <ctime>

namespace kvant {

SessionStore::SessionStore(Cache& cache, const Tokenizer& tokenizer,
                           std::shared_ptr<const SessionFolder> folder)
    : cache_(cache), tokenizer_(tokenizer), folder_(std::move(folder)), disk_(folder_) {}

SessionStore::~SessionStore() {
  finish();
  for (auto& [name, session] : sessions_) {
    if (session.sequence) cache_.free(*session.sequence);
  }
}

// Returns the session, or null if there is none. Users may add files to the folder and remove them at any
// time, so the folder is checked.
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

// Reads the session's tokens and text from its file, because requests are compared with both.
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

std::optional<Refusal> SessionStore::match(GenerationRequest& request) {
  const auto refuse = [](SessionError why) {
    const bool later = why.kind == SessionError::Kind::in_use;
    return Refusal{later ? Refusal::Reason::conflict : Refusal::Reason::wrong, std::move(why.message),
                   later ? 1 : 0};
  };
  request.session_tokens = 0;
  Session* session = find(request.session);
  if (session == nullptr) return std::nullopt;
  if (session->is_running) return refuse(session_in_use(request.session, "being answered"));
  if (session->is_restoring) return refuse(session_in_use(request.session, "being restored"));
  if (!session->sequence) session->is_known = false;  // a user may have replaced the file
  if (const Status known = know(request.session, *session); !known.ok())
    return refuse(unusable_session(known.error()));
  const std::vector<std::int32_t>& held = session->tokens;
  const int n_held = static_cast<int>(held.size());
  const auto begins_with = [](const auto& whole, const auto& part) {
    return whole.size() > part.size() && std::ranges::equal(part, std::span(whole).first(part.size()));
  };
  if (begins_with(request.prompt, held)) {
    request.session_tokens = n_held;
    return std::nullopt;
  }
  // A text can have several tokenizations. The model may have generated another tokenization than the
  // tokenizer makes.
  if (session->text.empty() || !begins_with(request.text, session->text)) return std::nullopt;
  const std::string rest = request.text.substr(session->text.size());
  const auto tokens = tokenizer_.encode(rest, /*add_special=*/false, request.text_has_special_tokens);
  if (!tokens.ok() || tokens->empty()) return std::nullopt;  // the session ends within a character
  std::string spelled;
  for (const std::int32_t token : *tokens) spelled += tokenizer_.piece(token);
  if (spelled != rest) return std::nullopt;  // some tokenizers add a space at the start of every text
  request.prompt = held;
  request.prompt.insert(request.prompt.end(), tokens->begin(), tokens->end());
  request.session_tokens = n_held;
  return std::nullopt;
}

void SessionStore::begin(const std::string& name) {
  // The subscript may make a new session, which clients see once its first completion has ended.
  Session& session = sessions_[name];
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

// Users may remove or change files, so the folder is checked, too.
bool SessionStore::is_on_disk(const std::string& name, const Session& session) const {
  if (!session.is_saved()) return false;
  if (!session.sequence) return folder_->holds(name);
  return session.saved_file && session.saved_file == folder_->stamp(name);
}

}  // namespace kvant
