// Describes the pages of one KV head as attention reads them.
#pragma once

#include <cstddef>

#include "base/token_mask.h"
#include "format/format.h"

namespace kvant {

// PageSide is one side of a page.
struct PageSide {
  const Format* format = nullptr;
  const std::byte* bytes = nullptr;
  const PageContext* context = nullptr;
};

// A page of both sides: tokens [first_token, first_token + n_tokens) but those in `masked`. Protected rows
// come as pages whose tokens are not consecutive: `is_protected` is set, and every one is visible to every
// query.
struct PageView {
  int first_token = 0;
  int n_tokens = 0;
  bool is_protected = false;
  const int* protected_tokens = nullptr;  // of protected rows: the absolute index of each
  TokenMask masked;
  PageSide k, v;
};

}  // namespace kvant
