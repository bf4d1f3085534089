// Manages the memory that sessions take.
#include <algorithm>

#include "base/warn.h"
#include "serve/session_store.h"

namespace kvant {
namespace {

// After a failed write, only explicit requests write sessions for this long.
constexpr std::chrono::seconds kWritePause{10};

}  // namespace

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
    warn(fmt::format("the session '{}' is lost: it can't be written", name));
    // If there is a file, the file becomes the session's present version.
    entry->second.saved_version = ++entry->second.version;
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
    if (session.sequence) sum += cache_.bytes(*session.sequence).with_states();
  }
  return sum;
}

}  // namespace kvant
