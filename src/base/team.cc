#include "base/team.h"

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
  for (int i = 1; i < n_threads; ++i)
    threads_.emplace_back(&StandingTeam::work, this, Team(i, n_threads, shared_));
}

StandingTeam::~StandingTeam() {
  body_ = nullptr;
  Team(0, size(), shared_).barrier();
  for (std::thread& t : threads_) t.join();
}

void StandingTeam::work(Team team) {
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
