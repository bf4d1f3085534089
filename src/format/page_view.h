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

// PageView is a page of both sides. The page holds the tokens [first_token, first_token + n_tokens) except
// the tokens in `masked`. Protected rows also have the form of pages, whose tokens are not consecutive. In
// such pages, `is_protected` is set, and every token is visible to every query.
struct PageView {
  int first_token = 0;
  int n_tokens = 0;
  bool is_protected = false;
  const int* protected_tokens = nullptr;  // the absolute index of each row, only for protected rows
  TokenMask masked;
  PageSide k, v;
};

}  // namespace kvant
