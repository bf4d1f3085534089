// HeadImage holds what one (layer, KV head) of a sequence has besides its pages, in the form of images. Host
// memory and devices convert their own data to a HeadImage and back.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "cache/byte_stream.h"
#include "cache/protected_tokens.h"
#include "recipe/plan.h"

namespace kvant {

// Names the head of an image, and counts the sequence's tokens and the sealed pages of its image.
struct ImagedHead {
  int layer = 0, kv_head = 0;
  int n_tokens = 0, n_sealed = 0;
};

struct HeadImage {
  ProtectedTokens::Head chosen;
  // Each side has the rows of the protected tokens, as short pages in the tail's format. Each page except the
  // last has protected_page_rows() rows.
  std::array<std::vector<std::byte>, 2> rows;
  // If the layer needs scores, the tokens from first_observer on observe. -1 means that no token observes.
  int first_observer = -1;
  ObserverRows observers;
  // A corrected head has its sums here (linear_correction.h), or nothing before it has summed up a page.
  std::vector<float> sums, checkpoint_sums;

  void save(ByteWriter& to, const Plan& plan, const ImagedHead& head) const;
  // Reads an image. The reader refuses impossible data.
  static HeadImage load(ByteReader& from, const Plan& plan, const ImagedHead& head);
};

}  // namespace kvant
