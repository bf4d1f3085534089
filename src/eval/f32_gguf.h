// Copies a GGUF file with all weights dequantized to F32.
#pragma once

#include <string>

#include "base/result.h"

namespace kvant {

// A file that is deleted when this object is destroyed.
class TemporaryFile {
 public:
  // Makes an empty file in the system's folder for temporary files. Errors: no permission, disk full.
  static Result<TemporaryFile> make(const std::string& suffix);
  TemporaryFile(TemporaryFile&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Writes the model at `path` with its floating-point and quantized tensors as F32 (exact: each value is what
// ggml's dequantization gives) and its metadata unchanged. Errors: an unreadable model, disk full.
Result<TemporaryFile> dequantize_to_f32(const std::string& path);

}  // namespace kvant
