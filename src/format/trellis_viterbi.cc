#include "format/trellis_viterbi.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/processor_features.h"
#include "format/trellis.h"

namespace kvant {
namespace {

constexpr int kMaxCost = 0xffff;

template <int B>
struct Trellis {
  static constexpr int kNodes = kTrellisStates >> B;
  static constexpr int kParents = std::min(1 << B, kNodes);
  static constexpr int kBranches = kNodes * kParents;
  static constexpr int kStride = kViterbiStride[B];

  static int first_parent(int node) { return (node << B) & (kNodes - 1); }
};

template <int B>
void step(const std::uint16_t* costs, const std::uint16_t* before, int floor, std::uint16_t* after) {
  using T = Trellis<B>;
  for (int node = 0; node < T::kNodes; ++node) {
    const std::uint16_t* parents = before + T::first_parent(node);
    int low = kMaxCost;
    for (int k = 0; k < T::kParents; ++k)
      low = std::min(low, parents[k] - floor + costs[k * T::kNodes + node]);
    after[node] = static_cast<std::uint16_t>(low);
  }
}

template <int B>
void forward(const std::uint16_t* costs, int n, const ViterbiRow& row) {
  using T = Trellis<B>;
  std::uint16_t* least = row.least;
  for (int i = 0; i < n; ++i, least += T::kStride) {
    const int floor = i % kViterbiBlock == 0 ? *std::min_element(least, least + T::kNodes) : 0;
    step<B>(costs + static_cast<std::ptrdiff_t>(row.bins[i]) * T::kBranches, least, floor,
            least + T::kStride);
  }
}

template <int B>
void trace(const std::uint16_t* all_costs, int n, const ViterbiRow& row) {
  using T = Trellis<B>;
  int node = row.nodes[n];
  for (int i = n - 1; i >= 0; --i) {
    const std::uint16_t* costs =
        all_costs + static_cast<std::ptrdiff_t>(row.bins[i]) * T::kBranches + node * T::kParents;
    const int first = T::first_parent(node);
    const std::uint16_t* parents = row.least + static_cast<std::ptrdiff_t>(i) * T::kStride + first;
    int best = 0;
    int low = kMaxCost;
    for (int k = 0; k < T::kParents; ++k) {
      const int cost = parents[k] + costs[k];
      best = cost < low ? k : best;
      low = std::min(low, cost);
    }
    node = first + best;
    if (row.nodes[i] == node) return;
    row.nodes[i] = static_cast<std::uint8_t>(node);
  }
}

template <class Body>
void with_bits(int bits, const Body& body) {
  switch (bits) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    case 3:
      return body.template operator()<3>();
    case 4:
      return body.template operator()<4>();
    case 5:
      return body.template operator()<5>();
    case 6:
      return body.template operator()<6>();
    default:
      KVANT_CHECK(false, "trellis codes have 1 to 6 bits");
  }
}

}  // namespace

const ViterbiKernel& portable_viterbi() {
  static constexpr ViterbiKernel kernel = {
      "portable",
      [](const ViterbiBranches& branches, int n, const ViterbiRow* rows, int n_rows) {
        with_bits(branches.bits, [&]<int B>() {
          for (int row = 0; row < n_rows; ++row) forward<B>(branches.forward, n, rows[row]);
        });
      },
      [](const ViterbiBranches& branches, int n, const ViterbiRow* rows, int n_rows) {
        with_bits(branches.bits, [&]<int B>() {
          for (int row = 0; row < n_rows; ++row) trace<B>(branches.backward, n, rows[row]);
        });
      }};
  return kernel;
}

const ViterbiKernel& best_viterbi() {
  const ProcessorFeatures& has = processor_features();
  const ViterbiKernel* fast = has.avx2 ? avx2_viterbi() : has.neon ? neon_viterbi() : nullptr;
  return fast != nullptr ? *fast : portable_viterbi();
}

}  // namespace kvant
