// Holds the choices of parents that a search for trellis codes must remember, for a window of values and for
// the previous window. The codes of the previous window are written after the search of the newer window.
// Both windows are in shared memory, both are in local memory, or the older window is mostly in registers.
//
// Until a step is searched, its value lies in the place of its choices.
#pragma once

#include <cstdint>

#include "device/cuda/seal/trellis_page.cuh"

namespace kvant::cuda {

// SharedChoices keeps both windows in shared memory. A step has `Words` words, and both windows together have
// `Kept` values.
template <int Words, int Kept, int Threads>
class SharedChoices {
 public:
  using Step = std::uint32_t[Words][Threads];
  struct Shared {
    Step steps[Kept];
  };

  // `column` is the calling thread's column of the choices.
  __device__ SharedChoices(Shared& shared, int column) : shared_(shared), column_(column) {}

  // Returns word `word` of the choices for value `i` of the newer window.
  __device__ __forceinline__ std::uint32_t& newer(int i, int word) const {
    return shared_.steps[i % Kept][word][column_];
  }
  // Returns a function of (value within the octet, word) that reads the octet of choices from value `i` on.
  // Callers must request each octet of the older window once, from the last to the first.
  __device__ __forceinline__ auto octet(int i, bool) const {
    return [from = &shared_.steps[i % Kept][0][column_]](int value, int word) {
      return from[(value * Words + word) * Threads];
    };
  }
  // Makes the newer window the older window. Both windows are in one ring, so nothing moves.
  __device__ __forceinline__ void end_window() const {}

 private:
  Shared& shared_;
  int column_;
};

template <int Words, int Kept>
class LocalChoices {
 public:
  struct Shared {};
  __device__ LocalChoices(Shared&, int) {}
  __device__ __forceinline__ std::uint32_t& newer(int i, int word) { return steps_[i % Kept * Words + word]; }
  __device__ __forceinline__ auto octet(int i, bool) const {
    return [from = steps_ + i % Kept * Words](int value, int word) { return from[value * Words + word]; };
  }
  __device__ __forceinline__ void end_window() const {}

 private:
  std::uint32_t steps_[Kept * Words];
};

// SplitChoices keeps only one octet of the older window in shared memory and the other octets in registers,
// so more CTAs fit in an SM. One octet in shared memory is enough, because the older window is read only when
// its codes are written.
template <int Words, int Window, int Threads>
class SplitChoices {
 public:
  using Step = std::uint32_t[Words][Threads];
  struct Shared {
    Step newer[Window], older[kOctetValues];
  };

  __device__ SplitChoices(Shared& shared, int column) : shared_(shared), column_(column) {}

  __device__ __forceinline__ std::uint32_t& newer(int i, int word) const {
    return shared_.newer[i % Window][word][column_];
  }
  __device__ __forceinline__ auto octet(int i, bool is_newer) {
    if (!is_newer && i % Window != Window - kOctetValues) bring_octet();
    const Step* const steps = is_newer ? shared_.newer + i % Window : shared_.older;
    return [from = &steps[0][0][column_]](int value, int word) {
      return from[(value * Words + word) * Threads];
    };
  }
  __device__ __forceinline__ void end_window() {
#pragma unroll
    for (int i = 0; i < Window; ++i)
#pragma unroll
      for (int word = 0; word < Words; ++word) {
        const std::uint32_t choices = newer(i, word);
        if (i < kHeld) {
          held_[i / kOctetValues][i % kOctetValues][word] = choices;
        } else {
          shared_.older[i - kHeld][word][column_] = choices;
        }
      }
  }

 private:
  static constexpr int kHeld = Window - kOctetValues;
  static constexpr int kHeldOctets = kHeld / kOctetValues;

  // Moves the last octet of held_ to shared memory, and each other octet to the next place.
  __device__ __forceinline__ void bring_octet() {
#pragma unroll
    for (int i = 0; i < kOctetValues; ++i)
#pragma unroll
      for (int word = 0; word < Words; ++word) {
        shared_.older[i][word][column_] = held_[kHeldOctets - 1][i][word];
#pragma unroll
        for (int octet = kHeldOctets - 1; octet > 0; --octet)
          held_[octet][i][word] = held_[octet - 1][i][word];
      }
  }

  Shared& shared_;
  int column_;
  std::uint32_t held_[kHeldOctets][kOctetValues][Words];
};

}  // namespace kvant::cuda
