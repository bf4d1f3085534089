// Feeds arbitrary bytes to the recipe parsers. Nothing that a user types or puts into a file may break them.
#include <cstddef>
#include <cstdint>
#include <string>

#include "recipe/parser_property.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvant::check_parsers(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
