// Feeds arbitrary bytes to `kvant compare` and to the parser of prompts. Any file must give a result or an
// error.
#include <cstddef>
#include <cstdint>
#include <string>

#include "eval/comparison_property.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvant::check_comparison(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
