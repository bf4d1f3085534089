// SessionStore keeps a server's named conversations, in the cache or on disk.
//
// A session holds the sequence with its state after the newest completion, including the rows of generated
// tokens. A request that continues the session therefore reads only its new tokens. Reading the generated
// tokens as a prompt would round differently (model/matrix_product.h), which is why the prefix cache cannot
// keep these rows. With a session, the same request always gives the same completion, whichever other
// requests run, and even after the session was on disk.
//
// A separate thread (session_disk.h) reads and writes files, one at a time in each direction. At most two
// sessions are therefore in memory twice. Between steps, advance() moves pieces of data between files and
// cache.
//
// Only the scheduler's thread uses the class.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/sequence_image.h"
#include "model/tokenizer.h"
#include "serve/request.h"
#include "serve/sequence_reading.h"
#include "serve/session_disk.h"
#include "serve/session_error.h"
#include "serve/session_folder.h"

namespace kvant {

// The scheduler's thread calls SessionDone when a slow task has ended. The argument is the error if the task
// failed.
using SessionDone = std::function<void(const std::optional<SessionError>&)>;

// SessionStatus describes a session to users.
struct SessionStatus {
  std::string name;
  int tokens = 0;
  std::int64_t bytes = 0;  // bytes of the rows in the cache, where shared rows count fully, or of the file
  double bits = 0;         // bits per value of K and V; 0 if the session is not in memory
  bool in_memory = false;
  bool on_disk = false;
  bool is_saved = false;      // the disk has the session's present state, as far as the server knows
  bool is_running = false;    // a completion is being generated
  std::int64_t last_use = 0;  // seconds since 1970
  std::int64_t file_bytes = 0;
  std::string problem;  // the reason why the session's file is unusable; empty if the file is usable
};

// Room says whether make_room() freed memory.
enum class Room : std::uint8_t {
  made,     // some memory is free now
  pending,  // memory becomes free once a file has been written
  none,     // no memory can be freed
};

class SessionStore {
 public:
  // `cache` and `tokenizer` must outlive the object.
  SessionStore(Cache& cache, const Tokenizer& tokenizer, std::shared_ptr<const SessionFolder> folder);
  ~SessionStore();  // finishes writing
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  // The functions from match() to keep() serve requests that continue a session.
  //
  // Compares a request with its session. The prompt must begin with the session's tokens or text, and be
  // longer. match() then makes the prompt begin with the session's tokens, and sets session_tokens. If the
  // prompt does not fit, match() returns why the session cannot be used.
  std::optional<Refusal> match(GenerationRequest& request);
  // begin() reserves a matched session for a request, and end() releases it. Between the two calls, no other
  // request may continue or delete the session.
  void begin(const std::string& name);
  void end(const std::string& name);
  // Returns a fork of the session's sequence, which the caller must free. Returns nothing while the session
  // is read from disk; call again after advance(). The session must have been matched and begun. An error
  // means that memory is exhausted or the file is damaged.
  Result<std::optional<SequenceId>> fork_sequence(const std::string& name);
  // Replaces the session's contents by a sequence, its tokens and their text.
  void keep(const std::string& name, SequenceId sequence, std::vector<std::int32_t> tokens, std::string text);

  // The functions from status() to restore() serve explicit commands of clients.
  std::optional<SessionStatus> status(const std::string& name);
  std::vector<SessionStatus> list();
  std::optional<SessionError> remove(const std::string& name);
  // Makes the session `to` with the present state of `name`. The session `name` must be in memory, where
  // load() brings it.
  std::optional<SessionError> fork(const std::string& name, const std::string& to);
  void load(const std::string& name, SessionDone done);
  // Writes the session's present state to disk. Requests may continue the session meanwhile.
  void save(const std::string& name, SessionDone done);
  // Loads the session's file into memory, in place of the present state.
  void restore(const std::string& name, SessionDone done);

  // The functions from advance() to give_up_reading() move sessions between memory and disk.
  //
  // Continues reading and writing. Returns whether anything was done. An error means that memory is too short
  // to read reading_name(). Call advance() again when there is more memory, or call give_up_reading().
  Result<bool> advance();
  bool is_busy() const { return writing_ || !to_write_.empty() || reading_.is_busy(); }
  bool is_writing() const { return writing_ || !to_write_.empty(); }
  bool waits_for_disk() const { return (writing_ && writing_->is_given) || reading_.waits_for_disk(); }
  // Sets a function that the disk's thread calls when advance() has more to do. Call tell() once, before any
  // other function.
  void tell(std::function<void()> news) { disk_.tell(std::move(news)); }
  std::string reading_name() const { return reading_.current_name(); }
  void give_up_reading(const Error& why);

  // Frees memory by moving the least recently used session to disk, but never `needed`. A session that is
  // already saved is freed at once. Otherwise, the least recently used session is written first. If no
  // session can be written, the least recently used one is lost. The client still has the conversation's text
  // and can send all of it.
  Room make_room(const std::string& needed);
  void finish_writing();  // waits until the writes that make_room() started are done
  // Finishes all tasks, and writes the sessions that are not on disk. Returns how many of them are lost
  // because they can't be written. A second call does nothing.
  int finish();
  int in_memory() const;
  std::int64_t bytes() const;  // bytes of the sessions in memory, where shared pages count fully
  std::map<SequenceId, std::string> held() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Session {
    std::optional<SequenceId> sequence;  // empty if the session is only on disk
    std::vector<std::int32_t> tokens;    // valid only if is_known
    std::string text;
    bool is_known = false;     // `tokens` and `text` are set
    std::int64_t version = 1;  // changes with the session's contents
    std::int64_t saved_version = 0;
    // Holds the stamp of the file with the saved version, if the session is in memory. If a user changes the
    // file, the file on disk has another stamp.
    std::optional<FileStamp> saved_file;
    bool is_running = false;
    bool is_saving = false;   // the session is being written or waits to be written
    bool is_reading = false;  // the session is being read or waits to be read
    bool is_restoring = false;
    // Each entry waits until a version is saved that is at least as new as the entry's number.
    std::vector<std::pair<std::int64_t, SessionDone>> when_saved;
    std::vector<SessionDone> when_read;
    std::optional<Error> read_failure;               // the request that runs fails with this error
    std::optional<Clock::time_point> write_failure;  // the newest failure happened at this time
    std::int64_t turn = 0;                           // the value of uses_ at the session's last use
    std::int64_t last_use = 0;                       // seconds since 1970

    bool is_saved() const { return saved_version == version; }
  };
  // Writing is the session that is being written to disk.
  struct Writing {
    std::string name;
    std::int64_t version = 0;
    SequenceId sequence = 0;
    bool owns_sequence = false;  // true once the session has continued with another sequence
    SessionContents contents;
    std::optional<SequenceExport> exported;
    bool is_given = false;  // the disk's thread has the contents
  };
  // The functions from find() to is_on_disk() find sessions and serve requests (session_store.cc).
  Session* find(const std::string& name);
  Status know(const std::string& name, Session& session);
  void use(Session& session);
  bool is_on_disk(const std::string& name, const Session& session) const;

  // status_of() serves explicit commands (session_commands.cc).
  SessionStatus status_of(const std::string& name, const Session& session) const;

  // The functions from want_read() to write_now() move sessions to and from the disk (session_transfers.cc).
  void want_read(const std::string& name, Session& session);
  void want_write(const std::string& name, Session& session);
  bool take_results();
  bool advance_writing();
  Status start_writing();
  void finish_write(const Status& written, const std::optional<FileStamp>& file = {});
  Result<bool> advance_reading();
  Status take_imported(Session& session);
  void finish_read(const Status& read);
  bool write_now(const std::string& name, Session& session);

  // forget() manages memory (session_memory.cc).
  void forget(const std::string& name);

  Cache& cache_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<const SessionFolder> folder_;
  std::map<std::string, Session> sessions_;
  std::int64_t uses_ = 0;
  std::deque<std::string> to_write_;  // names of sessions, in the order of writing
  std::optional<Writing> writing_;
  SequenceReading reading_{cache_, disk_};
  SessionDisk disk_;
};

}  // namespace kvant
