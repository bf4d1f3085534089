#include "bench/read_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "base/simd_clones.h"
#include "base/team.h"

namespace kvant {
namespace {

constexpr int kPasses = 15;

// The loop is plain, so the compiler can use the widest available loads.
KVANT_SIMD_CLONES
std::uint64_t sum_of(const std::uint64_t* words, std::size_t n) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += words[i];
  return sum;
}

// Times one thread's part of the buffer. The thread that reads a part also writes the part first, so the part
// lies in memory near that thread (first touch).
void time_passes(Team& team, std::uint64_t* part, std::size_t n_words, std::vector<double>& seconds) {
  std::fill_n(part, n_words, std::uint64_t{1});
  for (double& taken : seconds) {
    team.barrier();
    const auto start = std::chrono::steady_clock::now();
    const std::uint64_t sum = sum_of(part, n_words);
    team.barrier();
    if (team.index() == 0)
      taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    KVANT_CHECK(sum == n_words, "a pass reads every word");
  }
}

}  // namespace

Result<double> measure_read_bandwidth(std::size_t bytes, int n_threads) {
  const std::size_t part = std::max<std::size_t>(1, bytes / n_threads / sizeof(std::uint64_t));
  const std::size_t n_words = part * n_threads;
  const std::unique_ptr<std::uint64_t[]> words(new (std::nothrow) std::uint64_t[n_words]);
  if (words == nullptr) {
    return error("out of memory: the measurement of memory bandwidth needs {:.0f} MiB",
                 static_cast<double>(n_words * sizeof(std::uint64_t)) / (1 << 20));
  }
  std::vector<double> seconds(kPasses);
  run_team(n_threads, [&](Team& team) {
    std::vector<double> unused(kPasses);
    time_passes(team, words.get() + part * team.index(), part, team.index() == 0 ? seconds : unused);
  });
  const double best = *std::min_element(seconds.begin(), seconds.end());
  return static_cast<double>(n_words * sizeof(std::uint64_t)) / best;
}

}  // namespace kvant
