#include "base/team.h"

#include <system_error>

namespace kvant {

void run_team(int n_threads, const std::function<void(Team&)>& body) {
  TeamState shared;
  std::vector<std::thread> threads;
  threads.reserve(n_threads - 1);
  for (int i = 1; i < n_threads; ++i) {
    threads.emplace_back([&, i] {
      Team team(i, n_threads, shared);
      body(team);
    });
  }
  Team team(0, n_threads, shared);
  body(team);
  for (std::thread& t : threads) t.join();
}

StandingTeam::StandingTeam(int n_threads) {
  threads_.reserve(n_threads - 1);
  try {
    for (int i = 1; i < n_threads; ++i) threads_.emplace_back(&StandingTeam::work, this, i);
  } catch (const std::system_error&) {  // The threads that there are make the team.
  }
  size_ = static_cast<int>(threads_.size()) + 1;
  size_.notify_all();
}

StandingTeam::~StandingTeam() {
  body_ = nullptr;
  Team(0, size(), shared_).barrier();
  for (std::thread& t : threads_) t.join();
}

void StandingTeam::work(int index) {
  size_.wait(0);
  Team team(index, size(), shared_);
  for (team.barrier(); body_ != nullptr; team.barrier()) {
    (*body_)(team);
    team.barrier();
  }
}

void StandingTeam::run(const std::function<void(Team&)>& body) {
  Team team(0, size(), shared_);
  body_ = &body;
  team.barrier();
  body(team);
  team.barrier();
}

}  // namespace kvant
