// Searches for the constants of src/format/trellis_code.h. With the best constants, the best path through the
// trellis leaves the smallest squared error of Gaussian rows. The commands for 3 bits, 20 seconds and random
// seed 1 are:
//
//   c++ -std=c++20 -O3 -march=native -Isrc lab/search-trellis.cc -o search_trellis
//   ./search_trellis 3 20 1
//
// The search varies the best candidates so far, and sometimes starts from a random candidate. Each candidate
// is measured on one row. In the end the best candidates are ranked on many rows. The program prints the
// first candidates in the form of kTrellisCodes, with their mean squared errors. A good run finds about .079
// at 2 bits, .0215 at 3, .0062 at 4 and .0018 at 5.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "format/trellis_code.h"

namespace {

using kvant::kTrellisStates;
using kvant::TrellisCode;

constexpr int kRowValues = 512;
constexpr int kRows = 120;  // rows of the final ranking
constexpr std::size_t kKept = 40, kFinalists = 12;
// The quick search tries the standard deviations kQuickScales for the levels.
constexpr std::array kQuickScales = {1.0F, 1.2F, 1.45F};
constexpr std::array kFineScales = {.85F, .9F, .95F, .975F, 1.0F,
                                    // The fine search multiplies the best quick scale by each factor of
                                    // kFineScales.
                                    1.025F, 1.05F, 1.1F, 1.15F};

using Levels = std::array<float, kTrellisStates>;
using Random = std::mt19937;

struct Candidate {
  TrellisCode code;
  double error = 0;
};

int draw(Random& random, int first, int last) {
  return std::uniform_int_distribution(first, last)(random);
}

Levels levels_of(const TrellisCode& code) {
  Levels levels;
  for (int state = 0; state < kTrellisStates; ++state)
    levels[state] = code.scale * static_cast<float>(kvant::state_level(code, state));
  return levels;
}

// Returns the squared error of the best path (Viterbi). The oldest bits of a state are its lowest bits, so
// state k * nodes + node follows the states node * symbols + j.
double path_error(const float* row, int bits, const Levels& levels) {
  const int symbols = 1 << bits, nodes = kTrellisStates >> bits;
  Levels costs{}, after, least;
  for (int i = 0; i < kRowValues; ++i) {
    for (int node = 0; node < nodes; ++node)
      least[node] = *std::min_element(&costs[node * symbols], &costs[node * symbols] + symbols);
    for (int k = 0; k < symbols; ++k) {
      for (int node = 0; node < nodes; ++node) {
        const float error = row[i] - levels[k * nodes + node];
        after[k * nodes + node] = least[node] + error * error;
      }
    }
    costs = after;
  }
  return *std::min_element(costs.begin(), costs.end());
}

double mean_error(const TrellisCode& code, const std::vector<float>& values, int n_rows) {
  const Levels levels = levels_of(code);
  double sum = 0;
  for (int row = 0; row < n_rows; ++row) sum += path_error(&values[row * kRowValues], code.bits, levels);
  return sum / (static_cast<double>(n_rows) * kRowValues);
}

// Fits the scale to the candidate's other constants. The function tries all scales and keeps the best scale,
// with its error on the first n_rows rows.
template <class Scales>
void fit_scale(Candidate& candidate, float unit, const Scales& scales, const std::vector<float>& values,
               int n_rows) {
  candidate.error = INFINITY;
  TrellisCode code = candidate.code;
  for (const float scale : scales) {
    code.scale = unit * scale;
    const double error = mean_error(code, values, n_rows);
    if (error < candidate.error) candidate = {code, error};
  }
}

// The AVX2 kernel requires that mix is at least 4, and that mix and fold add up to at least 8.
void change(Random& random, int what, TrellisCode& code) {
  if (what == 0) code.mix = draw(random, 4, 7);
  if (what == 1) code.fold = draw(random, 1, 7);
  code.fold = std::max(code.fold, 8 - code.mix);
  if (what == 2) code.fold_mask = static_cast<std::uint8_t>(draw(random, 0, 255));
  if (what == 3) code.fold_mask ^= static_cast<std::uint8_t>(1 << draw(random, 1, 7));
  code.fold_mask &= static_cast<std::uint8_t>(0xff << code.fold);
}

Candidate next_candidate(Random& random, int bits, const std::vector<Candidate>& best) {
  Candidate next{.code = {.bits = bits, .scale = 1, .mix = 4, .fold = 1, .fold_mask = 0}};
  if (best.size() < kKept || draw(random, 0, 2) == 0) {
    for (const int what : {0, 1, 2}) change(random, what, next.code);
  } else {
    next = best[draw(random, 0, kKept - 1)];
    change(random, draw(random, 0, 3), next.code);
  }
  return next;
}

std::vector<Candidate> search(int bits, double seconds, const std::vector<float>& values, Random& random) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::vector<Candidate> best;
  while (Clock::now() < end) {
    Candidate next = next_candidate(random, bits, best);
    double squares = 0;
    for (const float level : levels_of(next.code)) squares += level * level;
    fit_scale(next, static_cast<float>(std::sqrt(kTrellisStates / squares)), kQuickScales, values, 1);
    const auto same = [&](const Candidate& other) { return other.error == next.error; };
    if (std::any_of(best.begin(), best.end(), same)) continue;
    best.push_back(next);
    std::ranges::sort(best, {}, &Candidate::error);
    if (best.size() > kKept) best.pop_back();
  }
  return best;
}

void rank(std::vector<Candidate>& candidates, const std::vector<float>& values, int n_rows) {
  for (Candidate& candidate : candidates)
    fit_scale(candidate, candidate.code.scale, kFineScales, values, n_rows);
  std::ranges::sort(candidates, {}, &Candidate::error);
}

}  // namespace

int main(int argc, char** argv) {
  const int bits = argc > 1 ? std::atoi(argv[1]) : 0;
  if (bits < 1 || bits > kvant::kMaxTrellisBits) {
    std::puts("usage: search_trellis BITS [SECONDS [SEED]], BITS 1 to 6");
    return 1;
  }
  Random random(argc > 3 ? std::atoi(argv[3]) : 1);
  std::normal_distribution<float> gaussian;
  std::vector<float> values(static_cast<std::size_t>(kRows) * kRowValues);
  for (float& value : values) value = gaussian(random);

  std::vector<Candidate> best = search(bits, argc > 2 ? std::atof(argv[2]) : 20, values, random);
  rank(best, values, 12);
  best.resize(std::min(best.size(), kFinalists));
  rank(best, values, kRows);
  Candidate now{.code = kvant::kTrellisCodes[bits - 1]};
  now.error = mean_error(now.code, values, kRows);
  best.resize(std::min<std::size_t>(best.size(), 3));
  best.push_back(now);
  for (const auto& [code, error] : best) {
    std::printf("{.bits = %d, .scale = %.5fF, .mix = %d, .fold = %d, .fold_mask = 0x%02x}  // %.5f\n", bits,
                code.scale, code.mix, code.fold, code.fold_mask, error);
  }
}
