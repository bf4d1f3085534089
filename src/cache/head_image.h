// HeadImage holds what one (layer, KV head) of a sequence has besides its pages, in the form of images. Host
// memory and devices convert their own data to a HeadImage and back.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "base/token_mask.h"
#include "cache/byte_stream.h"
#include "cache/token_scores.h"
#include "recipe/plan.h"

namespace kvant {

// Names the tokens that are left out of a sealed page.
struct PageMask {
  int page = 0;
  TokenMask mask;
};

// Names the head of an image, and counts the sequence's tokens and the sealed pages of its image.
struct ImagedHead {
  int layer = 0, kv_head = 0;
  int n_tokens = 0, n_sealed = 0;
};

struct HeadImage {
  std::vector<int> tokens;  // protected tokens, in ascending order
  // Each side has the tokens' rows as short pages of the tail's format, of protected_page_rows() rows each
  // but the last.
  std::array<std::vector<std::byte>, 2> rows;
  std::vector<PageMask> masks;  // in ascending order of pages; with eviction, one for every sealed page
  TokenScores scores;           // Filled if the layer needs scores.
  // A corrected head has CorrectionState::sums() here, or nothing before it has summed up a page.
  std::vector<float> sums, checkpoint_sums;

  void save(ByteWriter& to, const Plan& plan, int layer, int kv_head) const;
  // Reads an image. The reader refuses impossible data.
  static HeadImage load(ByteReader& from, const Plan& plan, const ImagedHead& head);
};

}  // namespace kvant
