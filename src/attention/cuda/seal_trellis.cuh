// Trellis-coded pages (tcq<B>, src/format/trellis.h): a warp finds the best path of a token by the Viterbi
// algorithm, with eight of the 256 states in each lane.
//
// Lane l holds the states 8 l .. 8 l + 7. A step's predecessors of the states s with s mod 2^(8 - B) == p are
// the neighbours p << B | j: for B up to 3 all in one lane, beyond that in 2^(B - 3) lanes.
#pragma once

#include "attention/cuda/seal_page.cuh"

namespace kvant::cuda {

inline constexpr int kStatesOfLane = 8;

template <int Bits>
class LaneViterbi {
 public:
  static constexpr int kGroups = 256 >> Bits;                            // of states with common predecessors
  static constexpr int kOwn = Bits < 3 ? kStatesOfLane >> Bits : 1;      // groups that a lane decides
  static constexpr int kParents = Bits < 3 ? 1 << Bits : kStatesOfLane;  // of a group, in one lane
  static constexpr float kForbidden = 1e30F;

  // levels: of all states; steps: a byte for each step and lane.
  __device__ LaneViterbi(const float* levels, unsigned char* steps) : steps_(steps), lane_(threadIdx.x % 32) {
#pragma unroll
    for (int i = 0; i < kStatesOfLane; ++i) levels_[i] = levels[lane_ * kStatesOfLane + i];
  }

  __device__ void begin_anywhere() {
#pragma unroll
    for (int i = 0; i < kStatesOfLane; ++i) costs_[i] = 0;
    n_ = 0;
  }
  // In any of the states of a node: those with the same upper 8 - B bits, which is all that successors share.
  __device__ void begin_in(int node) {
#pragma unroll
    for (int i = 0; i < kStatesOfLane; ++i)
      costs_[i] = (lane_ * kStatesOfLane + i) >> Bits == node ? 0 : kForbidden;
    n_ = 0;
  }

  __device__ void step(float x) {
    float least[kOwn];
    int choices = 0;
#pragma unroll
    for (int group = 0; group < kOwn; ++group) {
      least[group] = costs_[group * kParents];
      int best = 0;
#pragma unroll
      for (int j = 1; j < kParents; ++j) {
        const float cost = costs_[group * kParents + j];
        best = cost < least[group] ? j : best;
        least[group] = fminf(cost, least[group]);
      }
      choices |= best << (group * Bits);
    }
    if constexpr (Bits > 3) {
      int best = choices + lane_ % (1 << (Bits - 3)) * kStatesOfLane;
#pragma unroll
      for (int other = 1; other < 1 << (Bits - 3); other *= 2) {
        const float cost = __shfl_xor_sync(~0U, least[0], other);
        const int choice = __shfl_xor_sync(~0U, best, other);
        if (cost < least[0] || (cost == least[0] && choice < best)) {
          least[0] = cost;
          best = choice;
        }
      }
      choices = best;
    }
    steps_[n_ * 32 + lane_] = static_cast<unsigned char>(choices);
#pragma unroll
    for (int i = 0; i < kStatesOfLane; ++i) {
      const int group = (lane_ * kStatesOfLane + i) % kGroups;
      const float low = __shfl_sync(~0U, least[i % kOwn], owner(group));
      const float difference = x - levels_[i];
      costs_[i] = fmaf(difference, difference, low);
    }
    ++n_;
  }

  // The cheapest state, of all or of a node.
  __device__ int cheapest() const {
    return cheapest_where([](int) { return true; });
  }
  __device__ int cheapest_in(int node) const {
    return cheapest_where([node](int state) { return state >> Bits == node; });
  }

  // The state before step n, in which the path to `state` was after it.
  __device__ int before(int n, int state) const {
    const int group = state % kGroups;
    const int choices = steps_[n * 32 + owner(group)];
    const int choice = Bits > 3 ? choices : choices >> (group % kOwn * Bits) & ((1 << Bits) - 1);
    return group << Bits | choice;
  }

 private:
  template <class Allowed>
  __device__ int cheapest_where(const Allowed& allowed) const {
    float low = INFINITY;
    int state = 0;
#pragma unroll
    for (int i = 0; i < kStatesOfLane; ++i) {
      if (allowed(lane_ * kStatesOfLane + i) && costs_[i] < low) {
        low = costs_[i];
        state = lane_ * kStatesOfLane + i;
      }
    }
#pragma unroll
    for (int other = 1; other < 32; other *= 2) {
      const float cost = __shfl_xor_sync(~0U, low, other);
      const int choice = __shfl_xor_sync(~0U, state, other);
      if (cost < low || (cost == low && choice < state)) {
        low = cost;
        state = choice;
      }
    }
    return state;
  }
  static __device__ int owner(int group) {
    return Bits > 3 ? group << (Bits - 3) : group / kOwn;
  }

  unsigned char* steps_;
  int lane_;
  int n_ = 0;
  float levels_[kStatesOfLane];
  float costs_[kStatesOfLane];
};

inline constexpr int kRunIn = 16;  // values before the seam that choose its node

// What trellis pages need besides SealShared, for each warp.
template <int D>
struct TrellisShared {
  float rest[kSealThreads / 32][D];
  unsigned char steps[kSealThreads / 32][(kRunIn + D) * 32];
  float means[D];
  double gains[kTokens];
};

template <int D>
__device__ void store_means(SealPage<D>& page, TrellisShared<D>& shared) {
  for (int channel = static_cast<int>(threadIdx.x); channel < D; channel += kSealThreads) {
    double sum = 0;
    int n = 0;
    for (int token = 0; token < kTokens; ++token) {
      if (page.left_out(token)) continue;
      sum += page.value(token, channel);
      ++n;
    }
    const __half mean = n > 0 ? half_saturated(static_cast<float>(sum / n)) : __half(0);
    reinterpret_cast<__half*>(page.parameters() + kTokens)[channel] = mean;
    shared.means[channel] = __half2float(mean);
  }
}

__device__ inline double sum_over_warp(double x) {
#pragma unroll
  for (int other = 1; other < 32; other *= 2) x += __shfl_xor_sync(~0U, x, other);
  return x;
}

// Codes of one token, and its gain. The stream is a circle. A pass over the row's end and then the row finds
// a path; if that does not end in the node in which it entered the row, another pass must begin and end in
// that node.
template <int Bits, int D>
__device__ void encode_trellis_token(SealPage<D>& page, TrellisShared<D>& shared, int token) {
  const int lane = threadIdx.x % 32;
  float* rest = shared.rest[threadIdx.x / 32];
  double squares = 0;
  for (int i = lane; i < D; i += 32) {
    const double x = static_cast<double>(page.value(token, i)) - shared.means[i];
    squares += x * x;
  }
  squares = sum_over_warp(squares);
  const double reciprocal = squares > 0 ? sqrt(D / squares) : 0;
  for (int i = lane; i < D; i += 32)
    rest[i] = static_cast<float>((static_cast<double>(page.value(token, i)) - shared.means[i]) * reciprocal);
  __syncwarp();

  LaneViterbi<Bits> viterbi(page.format.levels, shared.steps[threadIdx.x / 32]);
  viterbi.begin_anywhere();
  for (int i = D - kRunIn; i < D; ++i) viterbi.step(rest[i]);
  for (int i = 0; i < D; ++i) viterbi.step(rest[i]);
  int state = viterbi.cheapest();
  __syncwarp();
  int seam = state;
  for (int i = D - 1; i >= 0; --i) seam = viterbi.before(kRunIn + i, seam);
  int first = kRunIn;  // the path's first step
  if (seam >> Bits != state >> Bits) {
    __syncwarp();
    viterbi.begin_in(seam >> Bits);
    for (int i = 0; i < D; ++i) viterbi.step(rest[i]);
    state = viterbi.cheapest_in(seam >> Bits);
    first = 0;
    __syncwarp();
  }

  double along = 0;
  double length = 0;
  for (int i = D - 1; i >= 0; --i) {
    if (i % 32 == lane) {
      page.store_code(token, i, state >> (8 - Bits));
      const double shape = page.format.levels[state];
      along += (static_cast<double>(page.value(token, i)) - shared.means[i]) * shape;
      length += shape * shape;
    }
    state = viterbi.before(first + i, state);
  }
  along = sum_over_warp(along);
  length = sum_over_warp(length);
  if (lane == 0) shared.gains[token] = length > 0 ? fmin(fmax(along / length, 0.0), 0x1p126) : 0;
  __syncwarp();
}

template <int Bits, int D>
__device__ void encode_trellis(SealPage<D>& page, TrellisShared<D>& shared) {
  store_means(page, shared);
  if (threadIdx.x == 0) page.shared.largest = 0;
  __syncthreads();
  for (int token = static_cast<int>(threadIdx.x) / 32; token < kTokens; token += kSealThreads / 32)
    encode_trellis_token<Bits>(page, shared, token);
  __syncthreads();
  const int token = static_cast<int>(threadIdx.x);
  if (token < kTokens && !page.left_out(token))
    atomicMax(reinterpret_cast<int*>(&page.shared.largest),
              __float_as_int(static_cast<float>(shared.gains[token])));  // not negative
  __syncthreads();
  const double loudest = page.shared.largest;
  if (token < kTokens) {
    const double gain = shared.gains[token];
    const bool silent = !(gain > 0) || !(loudest > 0);
    page.parameters()[token] =
        silent ? 255 : static_cast<unsigned char>(fmin(fmax(rint(32 * log2(loudest / gain)), 0.0), 255.0));
  }
  if (token == 0) *reinterpret_cast<float*>(page.parameters() + kTokens + 2 * D) = page.shared.largest;
}

template <int D>
__device__ void encode_any_trellis(SealPage<D>& page, TrellisShared<D>& shared) {
  switch (page.format.layout.bits) {
    case 1:
      return encode_trellis<1>(page, shared);
    case 2:
      return encode_trellis<2>(page, shared);
    case 3:
      return encode_trellis<3>(page, shared);
    case 4:
      return encode_trellis<4>(page, shared);
    case 5:
      return encode_trellis<5>(page, shared);
    default:
      return encode_trellis<6>(page, shared);
  }
}

}  // namespace kvant::cuda
