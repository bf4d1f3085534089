#include "device/cuda/decode/sharing_ctas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kvant::cuda {
namespace {

constexpr int kSharedColumns = 8, kLaneOfWarp = 0, kSharedSlice = 0;

// Holds one CTA's result for a sequence that several CTAs share.
struct LeftPart {
  int cta;
  SharingCtas ctas;
};

// Returns the parts of a launch in random order. Sequences are shared by at least two CTAs each. The next
// sequence begins in the last CTA of a sequence or in the CTA after it.
std::vector<LeftPart> random_parts(int n_ctas, std::mt19937& random) {
  std::vector<LeftPart> parts;
  for (int first = 0; first < n_ctas - 1;) {
    const int most = random() % 2 == 0 ? 3 : n_ctas;
    const int last = std::min(n_ctas - 1, first + 1 + static_cast<int>(random() % most));
    for (int cta = first; cta <= last; ++cta) parts.push_back({cta, {first, last}});
    first = last + static_cast<int>(random() % 2);
  }
  std::shuffle(parts.begin(), parts.end(), random);
  return parts;
}

// Stands for the workspace of a launch. A part is the number of CTAs whose results the part combines, and 0
// stands for the mark of an unwritten place.
struct Places {
  std::vector<int> parts, counters;

  explicit Places(int n_ctas) : parts(2 * part_places(n_ctas)), counters(arrival_rows(n_ctas)) {}

  // Leaves a part as a warp does. Returns the number of CTAs that the result combines, or 0 if other parts
  // are still to come.
  int leave(const LeftPart& from, int n_ctas) {
    int combined = 1;
    for (int level = 0; level < from.ctas.n_levels(); ++level) {
      const SharedSlice slice =
          from.ctas.slice(from.cta, n_ctas, kSharedSlice, level, kSharedColumns, kLaneOfWarp);
      int& own = parts.at(slice.slot(slice.own_place));
      EXPECT_EQ(own, 0) << "another part lies at the place of CTA " << from.cta << ", level " << level;
      own = combined;
      int& counter = counters.at(slice.counter);
      if (++counter < slice.n) return 0;
      counter = combined = 0;
      for (int i = 0; i < slice.n; ++i) {
        int& part = parts.at(slice.slot(slice.first_place + i));
        EXPECT_GT(part, 0) << "place " << slice.first_place + i << ", level " << level;
        combined += part;
        part = 0;
      }
    }
    return combined;
  }
};

TEST(SharingCtas, CombineEachPartOnceWhateverTheOrder) {
  std::mt19937 random(1);
  for (int n_ctas = 2; n_ctas <= 300; ++n_ctas) {
    Places places(n_ctas);
    for (int launch = 0; launch < 20; ++launch) {
      int combined = 0, left = 0;
      for (const LeftPart& part : random_parts(n_ctas, random)) {
        ++left;
        const int of_sequence = places.leave(part, n_ctas);
        if (of_sequence == 0) continue;
        ASSERT_EQ(of_sequence, part.ctas.last - part.ctas.first + 1) << n_ctas << " CTAs";
        combined += of_sequence;
      }
      ASSERT_EQ(combined, left) << n_ctas << " CTAs";
      // The next launch finds marks and zeros.
      ASSERT_EQ(std::count(places.parts.begin(), places.parts.end(), 0), std::ssize(places.parts));
      ASSERT_EQ(std::count(places.counters.begin(), places.counters.end(), 0), std::ssize(places.counters));
    }
  }
}

}  // namespace
}  // namespace kvant::cuda
