// Reads the types of a GGUF file's tensors without ggml, which does not say which type it does not know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace kvant {

struct UnknownTensorType {
  std::string tensor;
  std::uint32_t type = 0;  // the type's number in the file
};

// Returns the first tensor whose type ggml does not know, or nothing if there is none or the file is damaged
// before it.
std::optional<UnknownTensorType> find_unknown_type(const std::uint8_t* file, std::size_t bytes);

}  // namespace kvant
