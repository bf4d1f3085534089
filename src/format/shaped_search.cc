#include "format/shaped_search.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "base/processor_features.h"

namespace kvant {
namespace {

// Holds the surviving paths, indexed by the node that they lead to.
template <int B>
struct Survivors {
  static constexpr int kNodes = kTrellisStates >> B;
  static constexpr int kMemory = kTrellisBits - B;  // bits of a node
  // kChoice is the mask of a cost's lowest bits, which identify the branch.
  static constexpr std::uint32_t kChoice = (1U << B) - 1;
  std::uint32_t cost[kNodes];
  std::int16_t along[kNodes][kMetricRank];  // the sums s
};

template <int B>
void begin(Survivors<B>& paths) {
  using S = Survivors<B>;
  paths = {};
  for (int q = 0; q < S::kNodes; ++q) paths.cost[q] = q & S::kChoice;
}

// Bars paths that do not begin in the seam. For the values i with i * B < kMemory, a node still contains bits
// of the seam.
template <int B>
void bar_other_seams(int i, int seam, Survivors<B>& paths) {
  using S = Survivors<B>;
  const int known = (1 << std::min(B, S::kMemory - i * B)) - 1;
  for (int q = 0; q < S::kNodes; ++q)
    if (((q ^ seam >> (i * B)) & known) != 0) paths.cost[q] |= kBarred;
}

std::uint32_t settled(std::uint32_t cost, const ShapedStep& step) {
  const auto below_limit = static_cast<std::int32_t>(std::min(cost, static_cast<std::uint32_t>(step.limit)));
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(static_cast<float>(below_limit) * step.fade));
}

template <int B>
void extend(const std::int16_t* levels, const ShapedStep& step, int x, const Survivors<B>& before,
            Survivors<B>& after, std::uint8_t* states) {
  using S = Survivors<B>;
  const int half = 1 << (kTargetShift + shaped_grain(B)) >> 1;
  int targets[S::kNodes];
  for (int q = 0; q < S::kNodes; ++q) {
    int sum = x * (1 << kTargetShift) + half;
    for (int r = 0; r < kMetricRank; ++r) sum += step.feedback[r] * before.along[q][r];
    targets[q] = std::clamp(sum >> kTargetShift, -kReach, kReach - 1) & -(1 << shaped_grain(B));
  }
  std::uint32_t best[S::kNodes];
  for (int q = 0; q < S::kNodes; ++q) {
    best[q] = ~0U;
    for (int k = 0; k < 1 << B; ++k) {
      const int parent = (q << B | k) & (S::kNodes - 1);
      const int error = targets[parent] - levels[q << B | k];
      const std::uint32_t other_states = k & S::kChoice & -S::kNodes;
      best[q] =
          std::min(best[q], before.cost[parent] + static_cast<std::uint32_t>(error * error) + other_states);
    }
  }
  const std::uint32_t least = step.settles ? *std::min_element(best, best + S::kNodes) & ~S::kChoice : 0;
  for (int q = 0; q < S::kNodes; ++q) {
    const int state = q << B | static_cast<int>(best[q] & S::kChoice);
    const int error = x - levels[state];
    const std::int16_t* along = before.along[state & (S::kNodes - 1)];
    for (int r = 0; r < kMetricRank; ++r)
      after.along[q][r] =
          static_cast<std::int16_t>(along[r] + ((step.directions[r] * error + (1 << 14)) >> 15));
    const std::uint32_t cost = step.settles ? settled(best[q] - least, step) : best[q];
    after.cost[q] = (cost & ~S::kChoice) | (q & S::kChoice);
    states[q] = static_cast<std::uint8_t>(state);
  }
}

template <int B>
void search_bits(const ShapedCode& code, const ShapedRow& row, std::uint8_t* trace) {
  using S = Survivors<B>;
  std::int16_t levels[kTrellisStates];
  for (int s = 0; s < kTrellisStates; ++s)
    levels[s] = static_cast<std::int16_t>(code.levels[s] * (1 << code.level_shift));
  Survivors<B> paths[2];
  begin(paths[0]);
  for (int i = 0; i < code.n; ++i) {
    if (i * B < S::kMemory) bar_other_seams(i, row.seam, paths[i % 2]);
    extend(levels, code.steps[i], row.values[i], paths[i % 2], paths[(i + 1) % 2],
           trace + static_cast<std::ptrdiff_t>(i) * S::kNodes);
  }
  int node = row.seam;
  for (int i = code.n - 1; i >= 0; --i) {
    row.states[i] = trace[static_cast<std::ptrdiff_t>(i) * S::kNodes + node];
    node = row.states[i] & (S::kNodes - 1);
  }
}

void search(const ShapedCode& code, const ShapedRow* rows, int n_rows, std::uint8_t* trace) {
  for (int row = 0; row < n_rows; ++row) {
    switch (code.trellis->bits) {
      case 1:
        search_bits<1>(code, rows[row], trace);
        break;
      case 2:
        search_bits<2>(code, rows[row], trace);
        break;
      case 3:
        search_bits<3>(code, rows[row], trace);
        break;
      case 4:
        search_bits<4>(code, rows[row], trace);
        break;
      case 5:
        search_bits<5>(code, rows[row], trace);
        break;
      case 6:
        search_bits<6>(code, rows[row], trace);
        break;
      default:
        KVANT_CHECK(false, "trellis codes have 1 to 6 bits");
    }
  }
}

}  // namespace

const ShapedKernel& portable_shaped_search() {
  static constexpr ShapedKernel kernel = {"portable", search};
  return kernel;
}

std::vector<const ShapedKernel*> runnable_shaped_searches() {
  const ProcessorFeatures& has = processor_features();
  std::vector<const ShapedKernel*> kernels;
  if (has.avx512 && has.avx512_vnni && avx512_shaped_search() != nullptr)
    kernels.push_back(avx512_shaped_search());
  if (has.avx2 && avx2_shaped_search() != nullptr) kernels.push_back(avx2_shaped_search());
  if (has.neon && neon_shaped_search() != nullptr) kernels.push_back(neon_shaped_search());
  kernels.push_back(&portable_shaped_search());
  return kernels;
}

const ShapedKernel& best_shaped_search() {
  static const ShapedKernel& best = *runnable_shaped_searches().front();
  return best;
}

}  // namespace kvant
