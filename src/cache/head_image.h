// HeadImage: what one (layer, KV head) of a sequence has besides its pages, in the form that images have.
// Host and devices make it of what they keep, and the other way round.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "base/token_mask.h"
#include "cache/byte_stream.h"
#include "cache/token_scores.h"
#include "recipe/plan.h"

namespace kvant {

// The tokens that are left out of a sealed page.
struct PageMask {
  int page = 0;
  TokenMask mask;
};

// Whose image it is: a head of a sequence with so many tokens, and pages that its image has sealed.
struct ImagedHead {
  int layer = 0, kv_head = 0;
  int n_tokens = 0, n_sealed = 0;
};

struct HeadImage {
  std::vector<int> tokens;  // protected ones, ascending
  // Each side has the tokens' rows as short pages of the tail's format, of protected_page_rows() rows each
  // but the last.
  std::array<std::vector<std::byte>, 2> rows;
  std::vector<PageMask> masks;  // by page, ascending; with eviction, of every sealed page
  TokenScores scores;           // where the layer needs them
  // A corrected head has CorrectionState::sums() here, or nothing before it has summed up a page.
  std::vector<float> sums, checkpoint_sums;

  void save(ByteWriter& to, const Plan& plan, int layer, int kv_head) const;
  // What can't be is refused by the reader.
  static HeadImage load(ByteReader& from, const Plan& plan, const ImagedHead& head);
};

}  // namespace kvant
