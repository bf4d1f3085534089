// What a search for trellis codes remembers of its steps, a window of values and the one before it: the newer
// window in shared memory, and of the older one, of which nothing is read until its codes are written, an
// octet of values there and the others in registers. So shared memory holds little more than half of both,
// and as many more CTAs fit.
#pragma once

#include <cstdint>

#include "attention/cuda/seal/trellis_page.cuh"

namespace kvant::cuda {

// Words of a step; threads of a CTA, each of which has its own choices.
template <int Words, int Window, int Threads>
class RecentChoices {
 public:
  static constexpr int kWindow = Window;
  using Step = std::uint32_t[Words][Threads];
  struct Shared {
    Step newer[Window], older[kOctetValues];
  };

  __device__ RecentChoices(Shared& shared, int thread) : shared_(shared), thread_(thread) {}

  // Value i waits where its step's choices will be.
  __device__ __forceinline__ void put(int i, std::uint32_t value) {
    shared_.newer[i % Window][0][thread_] = value;
  }
  // Of value i, in the newer window.
  __device__ __forceinline__ void store(int i, const std::uint32_t (&words)[Words]) {
#pragma unroll
    for (int word = 0; word < Words; ++word) shared_.newer[i % Window][word][thread_] = words[word];
  }
  __device__ __forceinline__ std::uint32_t newer(int i, int word) const {
    return shared_.newer[i % Window][word][thread_];
  }

  // Where the choices of the octet from value i on are: at [value][word][0]. Octets of the older window are
  // asked for from the last to the first, each once.
  __device__ __forceinline__ const Step* octet(int i, bool is_newer) {
    if (!is_newer && i % Window != Window - kOctetValues) {
#pragma unroll
      for (int j = 0; j < kOctetValues; ++j)
#pragma unroll
        for (int word = 0; word < Words; ++word) {
          shared_.older[j][word][thread_] = held_[kHeldOctets - 1][j][word];
#pragma unroll
          for (int octet = kHeldOctets - 1; octet > 0; --octet)
            held_[octet][j][word] = held_[octet - 1][j][word];
        }
    }
    const Step* const choices = is_newer ? shared_.newer + i % Window : shared_.older;
    return reinterpret_cast<const Step*>(reinterpret_cast<const std::uint32_t*>(choices) + thread_);
  }

  // The newer window is the older one now.
  __device__ __forceinline__ void end_window() {
#pragma unroll
    for (int i = 0; i < Window; ++i)
#pragma unroll
      for (int word = 0; word < Words; ++word) {
        const std::uint32_t choices = shared_.newer[i][word][thread_];
        if (i < kHeld) {
          held_[i / kOctetValues][i % kOctetValues][word] = choices;
        } else {
          shared_.older[i - kHeld][word][thread_] = choices;
        }
      }
  }

 private:
  static constexpr int kHeld = Window - kOctetValues;
  static constexpr int kHeldOctets = kHeld / kOctetValues;

  Shared& shared_;
  int thread_;
  std::uint32_t held_[kHeldOctets][kOctetValues][Words];
};

}  // namespace kvant::cuda
