// SessionStore: the conversations that a server keeps under a name, in the cache or on the disk.
//
// What is kept is the sequence as it was when the newest answer ended, with the rows of that answer as they
// were generated: the true state of the conversation, of which a follow-up reads nothing again. Reading the
// same tokens would round them differently (model/matrix_product.h), so this is not what the prefix cache may
// keep; but given the session a follow-up is always the same, whatever runs beside it, and whether the
// session has been on the disk meanwhile.
//
// Used by the scheduler's thread alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "model/tokenizer.h"
#include "serve/api_error.h"
#include "serve/request.h"
#include "serve/session_folder.h"

namespace kvant {

ApiError unknown_session(const std::string& name);

// One session, for people who look on.
struct SessionStatus {
  std::string name;
  int tokens = 0;
  std::int64_t bytes = 0;  // of its rows: in the cache, shared ones counted fully, or else in its file
  double bits = 0;         // of an element of K and V; 0: not in memory
  bool in_memory = false;
  bool on_disk = false;
  bool is_saved = false;      // what is on the disk is the session as it is now
  bool is_running = false;    // an answer is being made
  std::int64_t last_use = 0;  // seconds since 1970
  std::int64_t file_bytes = 0;
  std::string problem;  // why its file can't be used; empty: it can
};

class SessionStore {
 public:
  // Cache and tokenizer outlive it.
  SessionStore(Cache& cache, const Tokenizer& tokenizer, std::shared_ptr<const SessionFolder> folder);
  ~SessionStore();  // writes what is not on the disk
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  // --- requests ---
  // Where the session's tokens, or their text, are the beginning of the request's, and leave something to be
  // read: session_tokens is how many there are, and the prompt begins with them. Or why it can't be used.
  std::optional<Refusal> match(GenerationRequest& request);
  // Between these two nobody else may go on with the session, or delete it. begin() after match().
  void begin(const std::string& name);
  void end(const std::string& name);
  // A fork of it, the caller's to free. Requires that it was matched and has begun. An error: out of memory,
  // or a damaged file.
  Result<SequenceId> fork_sequence(const std::string& name);
  // Takes a sequence, and the tokens that it holds, in place of what was kept. text: theirs.
  void keep(const std::string& name, SequenceId sequence, std::vector<std::int32_t> tokens, std::string text);

  // --- what people ask for; an error is the answer to them ---
  std::optional<SessionStatus> status(const std::string& name);
  std::vector<SessionStatus> list();
  // Back to what its file holds, into memory.
  std::optional<ApiError> restore(const std::string& name);
  std::optional<ApiError> fork(const std::string& name, const std::string& to);
  std::optional<ApiError> remove(const std::string& name);

  // Saving is done by whoever asks, so that no answer waits for the disk: start_save(), then on any thread
  // write(), then finish_save() whatever came of it. Meanwhile nobody else may save it or delete it.
  struct Save {
    std::string name;
    std::int64_t version = 0;
    SessionContents contents;
    std::shared_ptr<const SessionFolder> folder;  // null: its file holds just this

    Status write() const;
  };
  std::optional<ApiError> start_save(const std::string& name, Save& save);
  void finish_save(const Save& save, bool written);
  bool is_saving() const;  // any of them

  // --- memory ---
  // Leaves to the disk what was not used for longest; written first, if it isn't there. Never `needed`. If
  // none can be written, the oldest is lost. False: nothing has become free.
  bool drop_oldest(const std::string& needed);
  int in_memory() const;
  std::int64_t bytes() const;  // of those, shared pages counted fully
  std::map<SequenceId, std::string> held() const;

 private:
  struct Session {
    std::optional<SequenceId> sequence;  // none: on the disk only
    std::vector<std::int32_t> tokens;    // where it is in memory, or has been asked for
    std::string text;
    bool is_known = false;     // these are there
    std::int64_t version = 1;  // changes with what it holds
    std::int64_t saved_version = 0;
    bool is_running = false;
    bool is_saving = false;
    std::int64_t turn = 0;      // uses_ when it was used last
    std::int64_t last_use = 0;  // seconds since 1970

    bool is_saved() const { return saved_version == version; }
  };
  Session* find(const std::string& name);
  Status know(const std::string& name, Session& session);
  Status load(const std::string& name, Session& session);
  void use(Session& session);
  SessionStatus status_of(const std::string& name, const Session& session) const;
  Result<SessionContents> contents_of(const Session& session) const;
  bool is_on_disk(const std::string& name, const Session& session) const;
  bool leave_to_disk(const std::string& name, Session& session, bool may_lose);

  Cache& cache_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<const SessionFolder> folder_;
  std::map<std::string, Session> sessions_;
  std::int64_t uses_ = 0;
};

}  // namespace kvant
