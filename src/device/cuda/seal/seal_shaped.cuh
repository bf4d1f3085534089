// Seals trellis-coded pages of keys whose errors are shaped by a metric of their queries
// (src/format/error_metric.h). The kernel runs the search of src/format/shaped_search.cc, in which every
// survivor carries the errors of its own path. A token has 16 lanes of a warp, and each lane has 16 of the
// 256 states. A warp searches two tokens at a time.
//
// For the survivor of each node, shared memory holds the sums of its errors along the metric's eight
// directions in half precision, the resulting target of the next value, and its cost. Costs are F32 numbers
// whose bits are compared as integers. The lowest bits of a cost identify the branch by which the path comes.
#pragma once

#include "device/cuda/common/gpu.h"
#include "device/cuda/seal/page_metric.cuh"
#include "device/cuda/seal/seal_registry.h"
#include "device/cuda/seal/trellis_levels.cuh"
#include "device/cuda/seal/trellis_page.cuh"

namespace kvant::cuda {

inline constexpr int kTokenLanes = 16;
inline constexpr int kSeamRunIn = 12;  // number of values on each side of the seam that choose its node

// ShapedLanes describes how the nodes and states of a token are distributed over its lanes.
template <int Bits>
struct ShapedLanes {
  static constexpr int kNodes = kTrellisStates >> Bits;
  static constexpr int kOwn = kNodes > kTokenLanes ? kNodes / kTokenLanes : 1;  // nodes of each lane
  static constexpr int kBranches = kTrellisStates / kTokenLanes / kOwn;  // branches to each node in this lane
  // A lane's nodes have kSets sets of parents, and kChildren of the nodes share each set.
  static constexpr int kSets = Bits == 1 ? 4 : 1;
  static constexpr int kChildren = kOwn / kSets;
  static constexpr int kParents = kBranches < kNodes ? kBranches : kNodes;
  static constexpr int kChoice = (1 << Bits) - 1;

  // kSpread says whether parents are spread over shared memory. If there are many nodes, the nodes of one set
  // are kStride places apart, where kStride is the number of sets, and lanes permute their nodes. Lanes then
  // have no bank conflicts when they read their parents or write their nodes.
  static constexpr bool kSpread = Bits < 3;
  static constexpr int kStride = kSpread ? kNodes >> Bits : 1;
  static __device__ __forceinline__ int place_of_set(int set) {
    return kSpread ? set ^ (set >> 3 & 1) << (3 - Bits) : set << Bits;
  }
  static __device__ __forceinline__ int place(int node) {
    return kSpread ? place_of_set(node >> Bits) + (node & kChoice) * kStride : node;
  }
  // Returns the number of the set of parents of a node.
  static __device__ __forceinline__ int parents_of(int node) {
    constexpr int kAll = kNodes >> Bits > 0 ? kNodes >> Bits : 1;
    return node % kAll;
  }

  // node() returns the number of node n of a lane, and nth() returns n for the number of a node.
  static __device__ __forceinline__ int node(int lane, int n) {
    if constexpr (kNodes < kTokenLanes) return lane % kNodes;
    return lane + kTokenLanes * (kSpread ? n ^ (lane & kChoice) : n);
  }
  static __device__ __forceinline__ int nth(int node) {
    return kSpread ? node / kTokenLanes ^ (node & kChoice) : node / kTokenLanes;
  }
  // Extracts the choice of a node from the byte in which a lane stores the choices of its nodes.
  static __device__ __forceinline__ int choice(int byte, int node) {
    return kNodes < kTokenLanes ? byte : byte >> (Bits * nth(node)) & kChoice;
  }
};

// Holds the metric of a head in shared memory.
template <int D>
struct alignas(16) SharedMetric {
  uint4 feedback[D], directions[D];  // kMetricRank numbers in half precision per value
  float roots[D];                    // square roots of the weights
  bool exists;

  // Loads the steps [D][kStepNumbers]. All threads of the CTA must call this function. If the first weight is
  // 0, the head has no metric.
  __device__ void load(const float* steps) {
    const bool has_metric = steps[0] > 0;
    if (threadIdx.x == 0) exists = has_metric;
    for (int i = static_cast<int>(threadIdx.x); i < D; i += static_cast<int>(blockDim.x)) {
      const float* step = steps + i * kStepNumbers;
      roots[i] = has_metric ? sqrtf(step[0]) : 1;
#pragma unroll
      for (int r = 0; r < kMetricRank; ++r) {
        reinterpret_cast<__half*>(&feedback[i])[r] = half_saturated(has_metric ? step[1 + r] : 0);
        reinterpret_cast<__half*>(&directions[i])[r] =
            half_saturated(has_metric ? step[1 + kMetricRank + r] : 0);
      }
    }
  }
};

// ShapedToken holds a token that is being encoded.
template <int Bits, int D>
struct alignas(16) ShapedToken {
  using L = ShapedLanes<Bits>;
  uint4 along[L::kNodes];
  float2 paths[L::kNodes];  // root of the next value's weight times its target, and cost
  unsigned char trace[D][kTokenLanes];
  float values[D];  // values divided by their rounded root mean square
  unsigned char states[D];
};

template <int Bits, int D, int Warps>
struct ShapedShared {
  ShapedToken<Bits, D> tokens[2 * Warps];
  TrellisPage<Bits, D> page;
  SharedMetric<D> metric;
  float levels[kTrellisStates];
  float gains[kPageTokens];
};
// A CTA has four warps if the tokens of eight warps do not fit in the smallest shared memory.
template <int Bits, int D>
inline constexpr int kShapedWarps = sizeof(ShapedShared<Bits, D, 8>) <= Gpu::kLeastSharedBytes ? 8 : 4;
// If few pages are due, a CTA has this many warps. With more pages, two CTAs of eight warps keep an SM as
// busy.
inline constexpr int kMoreShapedWarps = 16;
// The launch bound of a CTA is a quarter above its number of threads, so the compiler gives each thread fewer
// registers. A quarter of an SM's registers stays free for a CTA of trellis_seal_kernel(), which seals values
// at the same time. With one bit, the compiler would spill registers, so the bound is the number of threads.
template <int Bits, int Warps>
inline constexpr int kBoundThreads = 32 * (Bits < kLeastJoinedBits ? Warps : Warps * 5 / 4);
inline constexpr int kSmRegisters = 65536;
// kShapedCtas is the number of CTAs per SM.
template <int Warps>
inline constexpr int kShapedCtas = kSmRegisters / (32 * Warps) / 128;
// Says whether CTAs of the kernel leave registers for a CTA of trellis_seal_kernel(). A thread has a multiple
// of 8 registers.
template <int Bits, int Warps>
inline constexpr bool kLeavesRegisters = [] {
  const int per_thread = kSmRegisters / (kBoundThreads<Bits, Warps> * kShapedCtas<Warps>) / 8 * 8;
  return 32 * Warps * kShapedCtas<Warps> * per_thread <= kSmRegisters - kSmRegisters / kJoiningCtas;
}();

__device__ __forceinline__ __half2 half2_of(const uint4& eight, int i) {
  const unsigned int words[4] = {eight.x, eight.y, eight.z, eight.w};
  return *reinterpret_cast<const __half2*>(&words[i]);
}

template <int Bits, int D, class Shared>
class ShapedPath {
 public:
  using L = ShapedLanes<Bits>;

  // All lanes of a token must construct a ShapedPath. Both tokens of a warp proceed in lockstep. The codes
  // are written to `page`, which another CTA of the cluster may hold.
  __device__ ShapedPath(Shared& shared, ShapedToken<Bits, D>& own, TrellisPage<Bits, D>& page, int lane)
      : shared_(shared),
        own_(own),
        page_(page),
        lane_(lane),
        not_choice_(-static_cast<int>(blockDim.y) << Bits) {
#pragma unroll
    for (int n = 0; n < L::kOwn; ++n) {
#pragma unroll
      for (int k = 0; k < L::kBranches; ++k)
        levels_[n][k] = shared.levels[L::node(lane, n) << Bits | first_branch() | k];
    }
  }

  // Encodes the token and returns its gain.
  __device__ float encode(const TailPage<D>& tail, int token) {
    const float loudness = take_values(tail, token);
    const int cheapest = search<false>(D - kSeamRunIn, 2 * kSeamRunIn, -1);
    const int seam = trace_back(cheapest, kSeamRunIn, 2 * kSeamRunIn);
    search<true>(0, D, seam);
    trace_back(seam, 0, D);
    __syncwarp();
    store_codes(tail.side, token);
    return fminf(rounded_gain(fit() * loudness), 0x1p126F);
  }

 private:
  static constexpr float kFar = 1e30F;  // cost of a path that does not begin at the node of the seam

  // Returns the number of this lane's first branch to each node.
  __device__ __forceinline__ int first_branch() const {
    return L::kNodes < kTokenLanes ? lane_ / L::kNodes * L::kBranches : 0;
  }

  template <class Number, class Take>
  static __device__ __forceinline__ Number over_lanes(Number x, const Take& take) {
#pragma unroll
    for (int distance = 1; distance < kTokenLanes; distance *= 2)
      x = take(x, __shfl_xor_sync(~0U, x, distance));
    return x;
  }
  static __device__ __forceinline__ float sum(float x) {
    return over_lanes(x, [](float a, float b) { return a + b; });
  }

  // Loads the token's values, subtracts the means, and divides the result by its root mean square, rounded to
  // a gain. Returns the rounded root mean square.
  __device__ float take_values(const TailPage<D>& tail, int token) {
    __syncwarp();  // Other lanes may still read the values of the previous token.
    float squares = 0;
#pragma unroll
    for (int octet = lane_ * kOctetValues; octet < D; octet += kTokenLanes * kOctetValues) {
      float x[kOctetValues];
      tail.channels_from(token, octet, x);
#pragma unroll
      for (int i = 0; i < kOctetValues; ++i) {
        x[i] -= shared_.page.means[octet + i];
        squares += x[i] * x[i];
        own_.values[octet + i] = x[i];
      }
    }
    squares = sum(squares);
    __syncwarp();
    const float loudness = rounded_gain(sqrtf(squares / D));
    const float reciprocal = loudness > 0 ? 1 / loudness : 0;
#pragma unroll
    for (int i = lane_; i < D; i += kTokenLanes) own_.values[i] *= reciprocal;
    __syncwarp();
    return loudness;
  }

  // Searches n values of the circle from `first` on. If `Shaped` is true the search uses the metric, and
  // otherwise equal weights. The search starts from the node `seam`, or from any node if `seam` is negative.
  // Returns the node to which the cheapest path leads.
  template <bool Shaped>
  __device__ int search(int first, int n, int seam) {
    float x = own_.values[first];
    float root = Shaped ? shared_.metric.roots[first] : 1;
#pragma unroll
    for (int i = 0; i < L::kOwn; ++i) {
      const int node = L::node(lane_, i);
      own_.paths[L::place(node)] = {x * root, seam < 0 || node == seam ? 0 : kFar};
      if (Shaped) own_.along[L::place(node)] = {};
    }
    __syncwarp();
#pragma unroll 1
    for (int step = 0; step < n; ++step) {
      int best[L::kOwn];
      choose(root, best);
      const int i = within<D>(first + step);
      const int next = Shaped ? min(i + 1, D - 1) : within<D>(i + 1);
      const float next_x = own_.values[next];
      if (Shaped) root = shared_.metric.roots[next];
      float2 paths[L::kOwn];
      uint4 along[L::kOwn];
      int choices = 0;
#pragma unroll
      for (int j = 0; j < L::kOwn; ++j) {
        const int node = L::node(lane_, j);
        const int choice = best[j] & L::kChoice;
        choices |= choice << (Bits * j);
        paths[j] = {next_x, __int_as_float(best[j])};
        if constexpr (Shaped) {
          const float error = x - shared_.levels[node << Bits | choice];
          along[j] = own_.along[place_of_parent(node, choice)];
          paths[j].x = root * (next_x + extend(along[j], error, i, next));
        }
      }
      own_.trace[step][lane_] = static_cast<unsigned char>(choices);
      x = next_x;
      __syncwarp();
#pragma unroll
      for (int j = 0; j < L::kOwn; ++j) {
        const int place = L::place(L::node(lane_, j));
        own_.paths[place] = paths[j];
        if constexpr (Shaped) own_.along[place] = along[j];
      }
      __syncwarp();
    }
    int cheapest = 0x7fffffff;
#pragma unroll
    for (int i = 0; i < L::kOwn; ++i) {
      const int node = L::node(lane_, i);
      cheapest = min(cheapest, (__float_as_int(own_.paths[L::place(node)].y) & ~0xff) | node);
    }
    return over_lanes(cheapest, [](int a, int b) { return min(a, b); }) & 0xff;
  }

  // Chooses the cheapest branch to each node. best[n] becomes its cost, with the branch's number in the
  // lowest bits. The function does not first clear the lowest bits of the parents' costs, because this would
  // take more time than it is worth.
  __device__ __forceinline__ void choose(float root, int (&best)[L::kOwn]) const {
#pragma unroll
    for (int set = 0; set < L::kSets; ++set) {
      float2 parents[L::kParents];
      const int place = L::place_of_set(L::parents_of(L::node(lane_, set)));
#pragma unroll
      for (int k = 0; k < L::kParents; ++k) parents[k] = own_.paths[place + k * L::kStride];
#pragma unroll
      for (int child = 0; child < L::kChildren; ++child) {
        const int n = set + child * L::kSets;
        const auto cost = [&](int k) {
          const float2 parent = parents[k % L::kParents];
          const float error = __fmaf_rn(-root, levels_[n][k], parent.x);
          return (__float_as_int(__fmaf_rn(error, error, parent.y)) & not_choice_) | k;
        };
        best[n] = min(cost(0), cost(1));
#pragma unroll
        for (int k = 2; k < L::kBranches; k += 2) best[n] = __vimin3_s32(best[n], cost(k), cost(k + 1));
      }
    }
    if constexpr (L::kNodes < kTokenLanes) {
      best[0] |= first_branch();
#pragma unroll
      for (int distance = L::kNodes; distance < kTokenLanes; distance *= 2)
        best[0] = min(best[0], __shfl_xor_sync(~0U, best[0], distance));
    }
  }
  static __device__ __forceinline__ int place_of_parent(int node, int choice) {
    return L::place_of_set(L::parents_of(node)) + choice % L::kNodes * L::kStride;
  }

  // Adds the error of value `i` to `along`. Returns the contribution of all errors to the target of value
  // `next`.
  __device__ __forceinline__ float extend(uint4& along, float error, int i, int next) const {
    const uint4 directions = shared_.metric.directions[i], feedback = shared_.metric.feedback[next];
    const __half2 of_both = __float2half2_rn(error);
    __half2 sums[kMetricRank / 2];
    __half2 target = __half2half2(__half(0));
#pragma unroll
    for (int r = 0; r < kMetricRank / 2; ++r) {
      sums[r] = __hfma2(half2_of(directions, r), of_both, half2_of(along, r));
      target =
          r == 0 ? __hmul2(half2_of(feedback, r), sums[r]) : __hfma2(half2_of(feedback, r), sums[r], target);
    }
    along = *reinterpret_cast<const uint4*>(sums);
    return __low2float(target) + __high2float(target);
  }

  // Traces the path that is at `node` after step `end` back to step `begin`, and stores its states. Returns
  // the node of the path before step `begin`.
  __device__ int trace_back(int node, int begin, int end) {
#pragma unroll 1
    for (int step = end - 1; step >= begin; --step) {
      const int state = node << Bits | L::choice(own_.trace[step][node % kTokenLanes], node);
      if (lane_ == 0) own_.states[step] = static_cast<unsigned char>(state);
      node = state % L::kNodes;
    }
    return node;
  }

  __device__ void store_codes(PageSide side, int token) const {
#pragma unroll
    for (int octet = lane_ * kOctetValues; octet < D; octet += kTokenLanes * kOctetValues) {
      std::uint64_t codes = 0;
#pragma unroll
      for (int i = 0; i < kOctetValues; ++i)
        codes |= static_cast<std::uint64_t>(own_.states[octet + i] >> (kTrellisBits - Bits)) << (i * Bits);
      page_.store_codes(side, token, octet, codes);
    }
  }

  // Returns the gain at which the decoded values have the same length in the metric as the values.
  __device__ float fit() const {
    float energy = 0, product = 0, length = 0;
    float2 x_along[kMetricRank / 2] = {}, shape_along[kMetricRank / 2] = {};
#pragma unroll 1
    for (int i = lane_; i < D; i += kTokenLanes) {
      const float x = own_.values[i], shape = shared_.levels[own_.states[i]];
      energy += x * x;
      product += x * shape;
      length += shape * shape;
      const uint4 directions = shared_.metric.directions[i];
#pragma unroll
      for (int r = 0; r < kMetricRank / 2; ++r) {
        const float2 direction = __half22float2(half2_of(directions, r));
        x_along[r] = {x_along[r].x + direction.x * x, x_along[r].y + direction.y * x};
        shape_along[r] = {shape_along[r].x + direction.x * shape, shape_along[r].y + direction.y * shape};
      }
    }
    energy = sum(energy);
    product = sum(product);
    length = sum(length);
#pragma unroll
    for (int r = 0; r < kMetricRank / 2; ++r) {
      const float2 x = {sum(x_along[r].x), sum(x_along[r].y)};
      const float2 shape = {sum(shape_along[r].x), sum(shape_along[r].y)};
      energy += x.x * x.x + x.y * x.y;
      product += x.x * shape.x + x.y * shape.y;
      length += shape.x * shape.x + shape.y * shape.y;
    }
    return fitted_gain(energy, product, length, shared_.metric.exists ? 1.0F : kUnbiasedKeys,
                       [](float base, float exponent) { return powf(base, exponent); });
  }

  Shared& shared_;
  ShapedToken<Bits, D>& own_;
  TrellisPage<Bits, D>& page_;
  int lane_;
  // not_choice_ is ~kChoice. The compiler must not know that it is constant, because one operation with two
  // constants would become two operations.
  int not_choice_;
  float levels_[L::kOwn][L::kBranches];
};

// The CTAs of a cluster share a page. Each CTA encodes every n-th group of tokens, where n is the number of
// CTAs, and writes the codes and gains to the first CTA, which stores the page.
template <int Bits, int D, int Warps>
__global__ void __launch_bounds__(kBoundThreads<Bits, Warps>, kShapedCtas<Warps>)
    seal_shaped_kernel(const __grid_constant__ SealArgs args) {
  static_assert(kLeavesRegisters<Bits, Warps> == (Bits >= kLeastJoinedBits));
  using Shared = ShapedShared<Bits, D, Warps>;
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& shared = *reinterpret_cast<Shared*>(bytes);
  const SealLaunch launch(args);
  const SealUnit& unit = args.units[blockIdx.y];
  const auto thread = static_cast<int>(threadIdx.x);
  const int n_ctas = ctas_of_cluster();
  DuePage due;
  if (!find_due_page(args, unit, static_cast<int>(blockIdx.x) / n_ctas, &due)) return;
  const TailPage<D> tail{reinterpret_cast<const __nv_bfloat16*>(due.tail), PageSide::key};
  shared.page.template begin<32 * Warps>(args, unit, due, tail);
  if (unit.turns == nullptr) {
    shared.metric.load(unit.metric);
  } else {  // the work is in the memory of the tokens, which are loaded later
    auto& work = *reinterpret_cast<PageMetricWork<D>*>(shared.tokens);
    static_assert(sizeof work <= sizeof shared.tokens);
    make_page_metric<D>(args.page_metrics, unit, due.layer,
                        page_of_sequence(args.page_metrics, args.due, due), work);
    shared.metric.load(work.steps);
    __syncthreads();
  }
  for (int state = thread; state < kTrellisStates; state += 32 * Warps)
    shared.levels[state] = static_cast<float>(level_of_state<Bits>(state)) * kTrellisCodes[Bits - 1].scale;
  __syncthreads();
  if (n_ctas > 1) cluster_sync();
  Shared& stored = of_cluster(shared, 0);
  const int of_warp = thread % 32 / kTokenLanes;
  const int first = thread / 32 * 2 + of_warp;
  ShapedPath<Bits, D, Shared> path(shared, shared.tokens[first], stored.page, thread % kTokenLanes);
#pragma unroll 1
  for (int token = 2 * Warps * rank_in_cluster() + first; token < kPageTokens; token += 2 * Warps * n_ctas) {
    const float gain = path.encode(tail, token);
    if (thread % kTokenLanes != 0) continue;
    stored.page.note_gain(token, gain);
    stored.gains[token] = gain;
  }
  __syncthreads();
  if (n_ctas > 1) cluster_sync();
  if (rank_in_cluster() > 0) return;
  if (thread < kPageTokens) shared.page.store_gain(thread, shared.gains[thread]);
  shared.page.template finish<32 * Warps>(args, unit, due);
}

}  // namespace kvant::cuda
