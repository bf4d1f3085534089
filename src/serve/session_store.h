// SessionStore keeps a server's named conversations, in the cache or on the disk.
//
// It keeps the sequence as it was when the newest completion ended, with the rows as they were generated. A
// follow-up therefore reads nothing again. Reading the same tokens would round differently
// (model/matrix_product.h), so the prefix cache must not keep these rows. With the session, a follow-up
// always gives the same result, whatever runs at the same time, and also after a stay on the disk.
//
// A separate thread (session_disk.h) reads and writes files, one at a time in each direction, so at most two
// sessions are held twice. Data moves between files and cache in pieces, in advance(), between steps.
//
// Only the scheduler's thread uses it.
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

// Called on the scheduler's thread when a slow task is done, or with the reason why it failed.
using SessionDone = std::function<void(const std::optional<SessionError>&)>;

// Describes a session to users.
struct SessionStatus {
  std::string name;
  int tokens = 0;
  std::int64_t bytes = 0;  // of its rows, in the cache (shared ones count fully) or in its file
  double bits = 0;         // bits per value of K and V; 0: not in memory
  bool in_memory = false;
  bool on_disk = false;
  bool is_saved = false;      // the disk has the session's present state
  bool is_running = false;    // a completion is being generated
  std::int64_t last_use = 0;  // seconds since 1970
  std::int64_t file_bytes = 0;
  std::string problem;  // why its file is unusable; empty: it is usable
};

// Says what making room achieved.
enum class Room : std::uint8_t {
  made,     // some memory is free
  pending,  // memory becomes free when a file has been written
  none,     // no memory can be freed
};

class SessionStore {
 public:
  // `cache` and `tokenizer` must outlive the object.
  SessionStore(Cache& cache, const Tokenizer& tokenizer, std::shared_ptr<const SessionFolder> folder);
  ~SessionStore();  // finishes writing
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  // --- requests ---
  // If the session's tokens or text begin the request's prompt and leave something to read, sets
  // session_tokens, with which the prompt then begins. Otherwise returns why the session cannot be used.
  std::optional<Refusal> match(GenerationRequest& request);
  // Call begin() after match(). Between begin() and the end, nobody else may continue or delete the session.
  void begin(const std::string& name);
  void end(const std::string& name);
  // Returns a fork, which the caller must free. It returns nothing while the session is read back: ask again
  // after advance(). The session must have been matched and begun. Errors: out of memory, or a damaged file.
  Result<std::optional<SequenceId>> fork_sequence(const std::string& name);
  // Takes a sequence with its tokens and their text, in place of what was kept.
  void keep(const std::string& name, SequenceId sequence, std::vector<std::int32_t> tokens, std::string text);

  // --- what people ask for ---
  std::optional<SessionStatus> status(const std::string& name);
  std::vector<SessionStatus> list();
  std::optional<SessionError> remove(const std::string& name);
  // Makes another session that continues from here. The session must be in memory, as load() ensures.
  std::optional<SessionError> fork(const std::string& name, const std::string& to);
  void load(const std::string& name, SessionDone done);
  // Saves its present state. It may continue meanwhile.
  void save(const std::string& name, SessionDone done);
  void restore(const std::string& name, SessionDone done);  // Loads its file into memory

  // --- memory and disk ---
  // Continues reading and writing. Returns whether it did anything. On an error, memory is too short to read
  // reading_name(): call it again when there is more, or call give_up_reading().
  Result<bool> advance();
  bool is_busy() const { return writing_ || !to_write_.empty() || reading_.is_busy(); }
  bool is_writing() const { return writing_ || !to_write_.empty(); }
  bool waits_for_disk() const { return (writing_ && writing_->is_given) || reading_.waits_for_disk(); }
  // Sets a function that another thread calls when advance() has more to do. Call it once, before everything
  // else.
  void tell(std::function<void()> news) { disk_.tell(std::move(news)); }
  std::string reading_name() const { return reading_.current_name(); }
  void give_up_reading(const Error& why);

  // Moves the least recently used session, but never `needed`, to the disk. A saved session goes at once;
  // otherwise the oldest is written first. If none can be written, the oldest is lost. Its client still has
  // the conversation, and can send all of it.
  Room make_room(const std::string& needed);
  void finish_writing();  // waits until what make_room() started is done
  void finish();          // finishes all tasks, and writes what is not on the disk
  int in_memory() const;
  std::int64_t bytes() const;  // bytes of those; shared pages count fully
  std::map<SequenceId, std::string> held() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Session {
    std::optional<SequenceId> sequence;  // none: it is only on the disk
    std::vector<std::int32_t> tokens;    // set if it is in memory, or was asked for
    std::string text;
    bool is_known = false;     // tokens and text are set
    std::int64_t version = 1;  // changes with its contents
    std::int64_t saved_version = 0;
    bool is_running = false;
    bool is_saving = false;   // it is being written, or waits for it
    bool is_reading = false;  // it is being read, or waits for it
    bool is_restoring = false;
    std::vector<std::pair<std::int64_t, SessionDone>> when_saved;  // each waits for at least that version
    std::vector<SessionDone> when_read;
    std::optional<Error> read_failure;               // an error for the running request
    std::optional<Clock::time_point> write_failure;  // the newest failure
    std::int64_t turn = 0;                           // value of uses_ at its last use
    std::int64_t last_use = 0;                       // seconds since 1970

    bool is_saved() const { return saved_version == version; }
  };
  // The session that is being written, and the one that is being read.
  struct Writing {
    std::string name;
    std::int64_t version = 0;
    SequenceId sequence = 0;
    bool owns_sequence = false;  // the session has another sequence by now
    SessionContents contents;
    std::optional<SequenceExport> exported;
    bool is_given = false;  // the disk's thread has it
  };
  // These functions find sessions and serve requests (session_store.cc).
  Session* find(const std::string& name);
  Status know(const std::string& name, Session& session);
  void use(Session& session);
  bool is_on_disk(const std::string& name, const Session& session) const;

  // These functions serve explicit commands (session_commands.cc).
  SessionStatus status_of(const std::string& name, const Session& session) const;

  // These functions move sessions to and from the disk (session_transfers.cc).
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

  // These functions manage memory (session_memory.cc).
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
