#include "cache/token_scores.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/float16.h"
#include "base/simd_clones.h"

namespace kvant {
namespace {

constexpr float kScoreUnit = 1.0F / 256;

// Updates the scores of a page's tokens, in units of kScoreUnit. A score is an average over n_before
// observers of the page's first token; tokens of the second half have fewer. The new observers are tokens
// first_observer to `end`, counted from the page's first token.
KVANT_SIMD_CLONES void add_weights(float* scores, const double* weights, int n_before, int first_observer,
                                   int end) {
  for (int t = 0; t < kPageTokens; ++t) {
    const int before = std::max(n_before - std::max(t - (kPageTokens - kObservers), 0), 0);
    const int now = end - std::max(t, first_observer);  // observers; the weights are summed over heads
    const double sum = static_cast<double>(scores[t] * kScoreUnit) * before + weights[t];
    scores[t] = static_cast<float>(sum / (before + now) / kScoreUnit);
  }
}

// Returns how many of n numbers are at most x.
KVANT_SIMD_CLONES int count_up_to(const std::uint16_t* numbers, int n, std::uint16_t x) {
  constexpr int kPart =
      1 << 15;  // The count of a part fits into 16 bits, and a vector holds many 16-bit numbers.
  int count = 0;
  for (int first = 0; first < n; first += kPart) {
    const int end = std::min(n, first + kPart);
    std::uint16_t of_part = 0;
    for (int i = first; i < end; ++i) of_part += numbers[i] <= x ? 1 : 0;
    count += of_part;
  }
  return count;
}

// Returns the number at position `rank` of the sorted numbers, which are below 2^15. The search goes bit by
// bit. The result is the smallest number such that more than `rank` numbers are at most as large.
std::uint16_t number_of_rank(const std::uint16_t* numbers, int n, int rank) {
  std::uint16_t found = 0;
  for (int bit = 1 << 14; bit > 0; bit /= 2) {
    const auto below = static_cast<std::uint16_t>(found + bit - 1);
    if (count_up_to(numbers, n, below) <= rank) found = static_cast<std::uint16_t>(found + bit);
  }
  return found;
}

}  // namespace

int observers_of(int token, int end) {
  const int later_pages = end / kPageTokens - token / kPageTokens - 1;
  if (later_pages < 0) return 0;
  return kObservers * later_pages + std::min(kObservers, kPageTokens - token % kPageTokens);
}

void TokenScores::end_page(int end, int first_observer, std::span<const double> weights) {
  scores_.resize(end, 0);
  std::array<float, kPageTokens> scores;
  for (int first = 0; first < end; first += kPageTokens) {
    float_row_from_f16(&scores_[first], scores.data(), kPageTokens);
    add_weights(scores.data(), &weights[first], observers_of(first, end - kPageTokens),
                first_observer - first, end - first);
    f16_row_from_float(scores.data(), &scores_[first], kPageTokens);
  }
}

float TokenScores::score(int token) const {
  return token < size() ? float_from_f16(scores_[token]) * kScoreUnit : 0.0F;
}

float TokenScores::quantile(double rho, int end) const {
  // Scores are not negative, so their bits as integers are in the order of the scores.
  const int rank = std::min(end - 1, static_cast<int>(std::ceil((1 - rho) * end)) - 1);
  return float_from_f16(number_of_rank(scores_.data(), end, rank)) * kScoreUnit;
}

TokenMask TokenScores::select(int page, double rho, int room, int sink) const {
  TokenMask mask;
  const int first = page * kPageTokens, end = first + kPageTokens;
  if (room <= 0 || size() < end) return mask;
  const float threshold = quantile(rho, end);
  std::vector<int> above;
  for (int t = std::max(first, sink); t < end; ++t) {
    if (score(t) > threshold) above.push_back(t);
  }
  std::stable_sort(above.begin(), above.end(), [&](int a, int b) { return score(a) > score(b); });
  above.resize(std::min<std::size_t>(above.size(), room));
  for (int t : above) mask.set(t - first);
  return mask;
}

void TokenScores::truncate(int n_tokens) {
  if (n_tokens < size()) scores_.resize(n_tokens);
}

}  // namespace kvant
