// Tests the page tables that a step makes from blocks of several pages. The expected ids follow from the
// numbering of the blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/page_size.h"
#include "device/cuda/test/device_memory.h"
#include "kvant/kvant.h"

namespace kvant::cuda::step_table_test {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr int kPagesOfBlock = 4, kPageUnits = 3, kUnits = 16, kEntries = 2, kPages = 9;

// Returns the id of entry `entry` of page `page` of a request, for blocks numbered as in this test.
int expected_id(int request, int page, int entry) {
  const int block = 100 * request + page / kPagesOfBlock * kEntries + entry;
  return block * kUnits + page % kPagesOfBlock * kPageUnits;
}

TEST(StepTables, NamePagesOfBlocksThatHaveSeveral) {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no GPU";
  constexpr int kRequests = 3, kBlocks = 6;  // blocks of each request
  const Ids lengths = {1153, 700, 129};
  Ids blocks;
  for (int request = 0; request < kRequests; ++request)
    for (int i = 0; i < kBlocks; ++i) blocks.push_back(100 * request + i);
  for (const int sliding_window : {0, 300}) {
    const DeviceArray<std::int32_t> seq_lens(lengths), block_ids(blocks), sealed(kRequests),
        first_tokens(kRequests), table(Ids(kRequests * kEntries * kPages, -1));
    kvant_step_table of_sealed{};
    of_sealed.struct_size = sizeof of_sealed;
    of_sealed.blocks = block_ids.get();
    of_sealed.block_stride = kBlocks;
    of_sealed.n_entries = kEntries;
    of_sealed.units = kUnits;
    of_sealed.n_pages = kPages;
    of_sealed.table = table.get();
    of_sealed.pages_of_block = kPagesOfBlock;
    of_sealed.page_units = kPageUnits;
    kvant_step step{};
    step.struct_size = sizeof step;
    step.n_requests = step.n_seqs = step.n_rows = kRequests;
    step.max_new_tokens = 1;
    step.sliding_window = sliding_window;
    step.seq_lens = seq_lens.get();
    step.sealed_pages = sealed.get();
    step.first_tokens = first_tokens.get();
    step.sealed = &of_sealed;
    ASSERT_EQ(kvant_plan_step(&step, nullptr), KVANT_OK) << kvant_last_error();
    const Ids ids = table.read(), counts = sealed.read();
    for (int request = 0; request < kRequests; ++request) {
      // The newest token attends to the sealed form of the full pages before it, as far as the window
      // reaches.
      const int all = (lengths[request] - 1) / kPageTokens;
      const int hidden = sliding_window == 0 ? 0 : std::max(lengths[request] - sliding_window, 0);
      const int first = hidden / kPageTokens;
      ASSERT_EQ(counts[request], all - first);
      for (int entry = 0; entry < kEntries; ++entry)
        for (int i = 0; i < kPages; ++i)
          EXPECT_EQ(ids[(request * kEntries + entry) * kPages + i],
                    i < all - first ? expected_id(request, first + i, entry) : -1)
              << request << " " << entry << " " << i;
    }
  }
}

}  // namespace
}  // namespace kvant::cuda::step_table_test
