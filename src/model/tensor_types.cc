#include "model/tensor_types.h"

#include <ggml.h>
#include <gguf.h>

#include <cstring>
#include <string_view>

namespace kvant {
namespace {

// HeaderReader reads a header from its beginning. After the header's end, all values read as 0 and is_over()
// is true.
class HeaderReader {
 public:
  HeaderReader(const std::uint8_t* file, std::size_t bytes) : at_(file), left_(bytes) {}

  template <class T>
  T number() {
    T value{};
    if (skip(sizeof(T))) std::memcpy(&value, at_ - sizeof(T), sizeof(T));
    return value;
  }
  std::string_view text() {
    const auto size = number<std::uint64_t>();
    return skip(size) ? std::string_view(reinterpret_cast<const char*>(at_ - size), size)
                      : std::string_view();
  }
  void skip_value() {
    auto type = number<std::uint32_t>();
    std::uint64_t count = 1;
    if (type == GGUF_TYPE_ARRAY) {
      type = number<std::uint32_t>();
      count = number<std::uint64_t>();
    }
    if (type == GGUF_TYPE_STRING) {
      for (std::uint64_t i = 0; i < count && !is_over_; ++i) text();
      return;
    }
    const std::size_t size = size_of(type);
    if (size == 0 || count > left_ / size) {
      is_over_ = true;
    } else {
      skip(count * size);
    }
  }
  bool is_over() const { return is_over_; }

 private:
  static std::size_t size_of(std::uint32_t type) {
    switch (type) {
      case GGUF_TYPE_UINT8:
      case GGUF_TYPE_INT8:
      case GGUF_TYPE_BOOL:
        return 1;
      case GGUF_TYPE_UINT16:
      case GGUF_TYPE_INT16:
        return 2;
      case GGUF_TYPE_UINT32:
      case GGUF_TYPE_INT32:
      case GGUF_TYPE_FLOAT32:
        return 4;
      case GGUF_TYPE_UINT64:
      case GGUF_TYPE_INT64:
      case GGUF_TYPE_FLOAT64:
        return 8;
      default:
        return 0;
    }
  }
  bool skip(std::uint64_t bytes) {
    is_over_ = is_over_ || bytes > left_;
    if (is_over_) return false;
    at_ += bytes;
    left_ -= bytes;
    return true;
  }

  const std::uint8_t* at_;
  std::size_t left_;
  bool is_over_ = false;
};

}  // namespace

std::optional<UnknownTensorType> find_unknown_type(const std::uint8_t* file, std::size_t bytes) {
  HeaderReader header(file, bytes);
  header.number<std::uint32_t>();                               // the magic "GGUF"
  if (header.number<std::uint32_t>() < 2) return std::nullopt;  // version 1 has shorter counts
  const auto n_tensors = header.number<std::uint64_t>(), n_values = header.number<std::uint64_t>();
  for (std::uint64_t i = 0; i < n_values && !header.is_over(); ++i) {
    header.text();
    header.skip_value();
  }
  for (std::uint64_t i = 0; i < n_tensors && !header.is_over(); ++i) {
    const std::string name(header.text());
    const auto n_dimensions = header.number<std::uint32_t>();
    if (n_dimensions > GGML_MAX_DIMS) return std::nullopt;
    for (std::uint32_t k = 0; k < n_dimensions; ++k) header.number<std::uint64_t>();
    const auto type = header.number<std::uint32_t>();
    header.number<std::uint64_t>();  // the tensor's offset
    if (header.is_over()) return std::nullopt;
    if (type >= GGML_TYPE_COUNT || ggml_type_size(static_cast<ggml_type>(type)) == 0)
      return UnknownTensorType{name, type};
  }
  return std::nullopt;
}

}  // namespace kvant
