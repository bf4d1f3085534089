// What a code of a page stands for (code_scheme.h).
#pragma once

#include <cstdint>

namespace kvant {

enum class CodeMeaning : std::uint8_t {
  number,  // the code itself, 0 .. 2^bits - 1
  level,   // table[code], 2^bits entries
  state,   // table[the 8 bits of the token's circular stream that end with the code], 256 entries
  vector,  // table[i][code] for channel i of the group, [group_channels][256]; a code is one byte
};

}  // namespace kvant
