#include "compact/model_space.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/page_size.h"
#include "base/simd_clones.h"
#include "compact/trellis_page.h"

namespace kvant {
namespace {

constexpr int kAngleBits =
    12;  // The table of angles has 2^kAngleBits steps. Values between them are interpolated linearly.
constexpr std::size_t kAngles = 1 << kAngleBits;
constexpr int kSineBits = 15;

constexpr double sine_of_turn(double turn) {  // `turn` is at most a quarter.
  const double x = turn * 6.283185307179586;
  double term = x, sum = x;
  for (int i = 1; i < 12; ++i) {
    term *= -x * x / ((2 * i) * (2 * i + 1));
    sum += term;
  }
  return sum;
}

constexpr std::array<std::int32_t, kAngles + 1> sines() {
  std::array<std::int32_t, kAngles + 1> table{};
  for (std::size_t i = 0; i <= kAngles / 4; ++i) {
    const double scaled =
        sine_of_turn(static_cast<double>(i) / static_cast<double>(kAngles)) * (1 << kSineBits);
    // The number is not negative, and std::lround is no constant expression.
    const auto sine = static_cast<std::int32_t>(scaled + 0.5);
    table[i] = table[kAngles / 2 - i] = sine;
    table[kAngles / 2 + i] = table[kAngles - i] = -sine;
  }
  return table;
}
constexpr auto kSines = sines();

// `angle` is in 1 / 2^64 of a turn.
std::int32_t sine(std::uint64_t angle) {
  const auto at = static_cast<std::size_t>(angle >> (64 - kAngleBits));
  const auto part = static_cast<std::int32_t>(angle >> (64 - kAngleBits - 16) & 0xffff);
  return kSines[at] + ((kSines[at + 1] - kSines[at]) * part >> 16);
}

// kNorms[k] is 2^16 / sqrt(2^k).
constexpr std::int32_t kNorms[] = {65536, 46341, 32768, 23170, 16384, 11585, 8192, 5793, 4096, 2896};

// Holds eight integers, which the compiler keeps in one or two registers.
using IntegerLanes = std::int32_t __attribute__((vector_size(32)));

// Follows walsh_hadamard.cc: levels 1, 2 and 4 are computed within eight lanes.
KVANT_SIMD_CLONES void rotate_row(std::int32_t* x, int d, int order, std::int64_t norm) {
  const IntegerLanes sign1 = {1, -1, 1, -1, 1, -1, 1, -1}, sign2 = {1, 1, -1, -1, 1, 1, -1, -1},
                     sign4 = {1, 1, 1, 1, -1, -1, -1, -1};
  for (int i = 0; i < d; i += 8) {
    IntegerLanes a;
    std::memcpy(&a, x + i, sizeof a);
    a = __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6) + sign1 * a;
    a = __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5) + sign2 * a;
    a = __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3) + sign4 * a;
    std::memcpy(x + i, &a, sizeof a);
  }
  for (int half = 8; half < order; half *= 2) {
    for (int block = 0; block < d; block += 2 * half) {
      for (int i = block; i < block + half; i += 8) {
        IntegerLanes a, b;
        std::memcpy(&a, x + i, sizeof a);
        std::memcpy(&b, x + i + half, sizeof b);
        const IntegerLanes sum = a + b, difference = a - b;
        std::memcpy(x + i, &sum, sizeof sum);
        std::memcpy(x + i + half, &difference, sizeof difference);
      }
    }
  }
  for (int i = 0; i < d; ++i)
    x[i] =
        static_cast<std::int32_t>(std::clamp<std::int64_t>(x[i] * norm >> 16, -kLargestUnits, kLargestUnits));
}

}  // namespace

void rotate_units(std::int32_t* x, int n, int d, int order) {
  if (order == 1) return;
  int log = 0;
  while (1 << log < order) ++log;
  for (int row = 0; row < n; ++row)
    rotate_row(x + static_cast<std::ptrdiff_t>(row) * d, d, order, kNorms[log]);
}

void PageTurns::prepare(const std::vector<ChannelTurn>& turns, int first_token) {
  const auto same = [](const ChannelTurn& a, const ChannelTurn& b) {
    return a.first == b.first && a.second == b.second && a.step == b.step;
  };
  if (first_token == first_token_ && std::ranges::equal(turns, turns_, same)) return;
  turns_ = turns;
  first_token_ = first_token;
  angles_.resize(turns.size() * kPageTokens);
  for (int t = 0; t < kPageTokens; ++t) {
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const std::uint64_t angle = turns[i].step * static_cast<std::uint64_t>(first_token + t);
      angles_[t * turns.size() + i] = {sine(angle + (std::uint64_t{1} << 62)), sine(angle)};
    }
  }
}

template <bool kBack>
void PageTurns::apply(std::int32_t* x, int d) const {
  const Angle* angle = angles_.data();
  for (int t = 0; t < kPageTokens; ++t, x += d) {
    for (const ChannelTurn& turn : turns_) {
      const std::int64_t c = angle->cosine, s = kBack ? -angle->sine : angle->sine;
      ++angle;
      const std::int64_t a = x[turn.first], b = x[turn.second];
      x[turn.first] = static_cast<std::int32_t>((a * c - b * s) >> kSineBits);
      x[turn.second] = static_cast<std::int32_t>((a * s + b * c) >> kSineBits);
    }
  }
}
template void PageTurns::apply<false>(std::int32_t*, int) const;
template void PageTurns::apply<true>(std::int32_t*, int) const;

}  // namespace kvant
