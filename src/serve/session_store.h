// SessionStore: the conversations that a server keeps under a name, in the cache or on the disk.
//
// What is kept is the sequence as it was when the newest answer ended, with the rows of that answer as they
// were generated: the true state of the conversation, of which a follow-up reads nothing again. Reading the
// same tokens would round them differently (model/matrix_product.h), so this is not what the prefix cache may
// keep; but given the session a follow-up is always the same, whatever runs beside it, and whether the
// session has been on the disk meanwhile.
//
// Files are read and written by a thread of their own (session_disk.h), one at a time each way, so that no
// more than two sessions are held twice. What goes between them and the cache goes piece by piece, in
// advance(), between steps.
//
// Used by the scheduler's thread alone.
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

// Told when something has been done that takes a while, or why it was not; on the scheduler's thread.
using SessionDone = std::function<void(const std::optional<SessionError>&)>;

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

// What came of making room.
enum class Room : std::uint8_t {
  made,     // some memory is free
  pending,  // some will be when a file has been written
  none,     // there is nothing to be had
};

class SessionStore {
 public:
  // Cache and tokenizer outlive it.
  SessionStore(Cache& cache, const Tokenizer& tokenizer, std::shared_ptr<const SessionFolder> folder);
  ~SessionStore();  // finishes
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  // --- requests ---
  // Where the session's tokens, or their text, are the beginning of the request's, and leave something to be
  // read: session_tokens is how many there are, and the prompt begins with them. Or why it can't be used.
  std::optional<Refusal> match(GenerationRequest& request);
  // Between these two nobody else may go on with the session, or delete it. begin() after match().
  void begin(const std::string& name);
  void end(const std::string& name);
  // A fork of it, the caller's to free; none: it is being read back, ask again after advance(). Requires that
  // it was matched and has begun. An error: out of memory, or a damaged file.
  Result<std::optional<SequenceId>> fork_sequence(const std::string& name);
  // Takes a sequence, and the tokens that it holds, in place of what was kept. text: theirs.
  void keep(const std::string& name, SequenceId sequence, std::vector<std::int32_t> tokens, std::string text);

  // --- what people ask for ---
  std::optional<SessionStatus> status(const std::string& name);
  std::vector<SessionStatus> list();
  std::optional<SessionError> remove(const std::string& name);
  // Another session that goes on from here. Requires that it is in memory, as load() does.
  std::optional<SessionError> fork(const std::string& name, const std::string& to);
  void load(const std::string& name, SessionDone done);
  // As it is now; it may go on meanwhile.
  void save(const std::string& name, SessionDone done);
  void restore(const std::string& name, SessionDone done);  // back to what its file holds, into memory

  // --- memory and disk ---
  // Goes on with what has to be read and written. Whether anything was done. An error: too little memory for
  // reading_name(); to be called again when there is more, or else give_up_reading().
  Result<bool> advance();
  bool is_busy() const { return writing_ || !to_write_.empty() || reading_.is_busy(); }
  bool is_writing() const { return writing_ || !to_write_.empty(); }
  bool waits_for_disk() const { return (writing_ && writing_->is_given) || reading_.waits_for_disk(); }
  // To be called on another thread when advance() has more to do. Once, before all else.
  void tell(std::function<void()> news) { disk_.tell(std::move(news)); }
  std::string reading_name() const { return reading_.current_name(); }
  void give_up_reading(const Error& why);

  // Leaves to the disk what was not used for longest, but never `needed`: at once what is saved, or else it
  // has the oldest written. If none can be written, the oldest is lost: its client has the conversation, and
  // a request with all of it is answered as any other.
  Room make_room(const std::string& needed);
  void finish_writing();  // waits until what make_room() has begun is done
  void finish();          // all that was asked for is done, and what is not on the disk is written
  int in_memory() const;
  std::int64_t bytes() const;  // of those, shared pages counted fully
  std::map<SequenceId, std::string> held() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Session {
    std::optional<SequenceId> sequence;  // none: on the disk only
    std::vector<std::int32_t> tokens;    // where it is in memory, or has been asked for
    std::string text;
    bool is_known = false;     // these are there
    std::int64_t version = 1;  // changes with what it holds
    std::int64_t saved_version = 0;
    bool is_running = false;
    bool is_saving = false;   // waits to be written, or is
    bool is_reading = false;  // waits to be read, or is
    bool is_restoring = false;
    std::vector<std::pair<std::int64_t, SessionDone>> when_saved;  // a version at least
    std::vector<SessionDone> when_read;
    std::optional<Error> read_failure;               // that the running request has to hear of
    std::optional<Clock::time_point> write_failure;  // the newest
    std::int64_t turn = 0;                           // uses_ when it was used last
    std::int64_t last_use = 0;                       // seconds since 1970

    bool is_saved() const { return saved_version == version; }
  };
  // The session that goes to the disk, and the one that comes from there.
  struct Writing {
    std::string name;
    std::int64_t version = 0;
    SequenceId sequence = 0;
    bool owns_sequence = false;  // the session has another one by now
    SessionContents contents;
    std::optional<SequenceExport> exported;
    bool is_given = false;  // to the thread of the disk
  };
  // Finding them, and what requests do (session_store.cc).
  Session* find(const std::string& name);
  Status know(const std::string& name, Session& session);
  void use(Session& session);
  bool is_on_disk(const std::string& name, const Session& session) const;

  // What people ask for (session_commands.cc).
  SessionStatus status_of(const std::string& name, const Session& session) const;

  // To and from the disk (session_transfers.cc).
  void want_read(const std::string& name, Session& session);
  void want_write(const std::string& name, Session& session);
  bool take_results();
  bool advance_writing();
  Status start_writing();
  void finish_write(const Status& written);
  Result<bool> advance_reading();
  Status take_imported(Session& session);
  void finish_read(const Status& read);
  void write_now(const std::string& name, Session& session);

  // Memory (session_memory.cc).
  void forget(const std::string& name);

  Cache& cache_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<const SessionFolder> folder_;
  std::map<std::string, Session> sessions_;
  std::int64_t uses_ = 0;
  std::deque<std::string> to_write_;  // names, in order
  std::optional<Writing> writing_;
  SequenceReading reading_{cache_, disk_};
  SessionDisk disk_;
};

}  // namespace kvant
