// Assigns places and counters to the partial results of CTAs that share a sequence and KV head
// (partial_results.cuh).
#pragma once

#include "device/cuda/decode/decode_args.h"

namespace kvant::cuda {

// Locates the parts of a slice that are combined together. A slice is kSlice channels of a query head's
// result. Slices are independent, except that all slices of a query head may share the counter of the first
// slice.
struct SharedSlice {
  // Slices are numbered within the KV head.
  int index;
  int lane;
  int n_columns;       // columns for which a place has space
  int first_place, n;  // The parts lie at places [first_place, first_place + n).
  int own_place;       // the place of this CTA's part
  bool begins;         // The parts at the first place belong to a sequence that begins there.
  int counter;         // the row of the counter in Schedule::arrivals

  template <int D>
  KVANT_HOST_DEVICE int n_slices() const {
    return n_columns * slices_of_column(D);
  }
  // Returns where the part at a place lies. A place has two parts. The first part is for the sequence in
  // which the place's range begins. The second part is for the sequence in which that range ends.
  KVANT_HOST_DEVICE int slot(int place) const { return 2 * place + (begins && place == first_place ? 1 : 0); }
  template <int D>
  KVANT_HOST_DEVICE std::int32_t* counter_in(const Schedule& schedule) const {
    return schedule.arrivals + counter * n_slices<D>() + index;
  }
};

// Says which CTAs share a sequence and KV head, and in which levels their parts are combined.
struct SharingCtas {
  int first, last;

  KVANT_HOST_DEVICE int n_levels() const { return last - first < kPartsTogether ? 1 : 2; }
  // Describes slice `index` at level 0 or 1, as CTA `cta` of a launch of n_ctas CTAs sees the slice.
  KVANT_HOST_DEVICE SharedSlice slice(int cta, int n_ctas, int index, int level, int n_columns,
                                      int lane) const {
    if (n_levels() == 1) return {index, lane, n_columns, first, last - first + 1, cta, true, first};
    const int block = cta / kPartsTogether;
    const int first_block = first / kPartsTogether;
    if (level == 1)
      return {index,          lane, n_columns, n_ctas + first_block, last / kPartsTogether - first_block + 1,
              n_ctas + block, true, first};
    const int begin = first > block * kPartsTogether ? first : block * kPartsTogether;
    const int end = last + 1 < (block + 1) * kPartsTogether ? last + 1 : (block + 1) * kPartsTogether;
    const bool begins = block == first_block;
    return {index, lane, n_columns, begin, end - begin, cta, begins, n_ctas + 2 * block + (begins ? 1 : 0)};
  }
};

}  // namespace kvant::cuda
