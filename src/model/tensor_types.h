// The types of a GGUF file's tensors, read by itself: where ggml doesn't know one, it doesn't say which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace kvant {

struct UnknownTensorType {
  std::string tensor;
  std::uint32_t type = 0;  // its number in the file
};

// The first tensor of a type that ggml doesn't know. Nothing: there is none, or the file is damaged before.
std::optional<UnknownTensorType> find_unknown_type(const std::uint8_t* file, std::size_t bytes);

}  // namespace kvant
