// Reads the types of a GGUF file's tensors without ggml. ggml refuses a file with an unknown type without
// naming the type.
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

// Returns the first tensor whose type ggml does not know. Returns nothing if there is none, or if the file is
// damaged before such a tensor.
std::optional<UnknownTensorType> find_unknown_type(const std::uint8_t* file, std::size_t bytes);

}  // namespace kvant
