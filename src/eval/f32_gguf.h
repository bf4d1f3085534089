// Copies a GGUF file with all weights dequantized to F32. llama.cpp loads such a copy if an evaluation must
// tell the cache's error from the error of quantized weights.
#pragma once

#include <string>

#include "base/result.h"

namespace kvant {

// Names a file that the destructor deletes.
class TemporaryFile {
 public:
  // Makes an empty file in the system's folder for temporary files. Returns an error without permission or if
  // the disk is full.
  static Result<TemporaryFile> make(const std::string& suffix);
  TemporaryFile(TemporaryFile&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Writes a copy of the model at `path`. Floating-point and quantized tensors become F32 with exactly the
// values that ggml's dequantization gives. The metadata stays unchanged. Returns an error for an unreadable
// model or a full disk.
Result<TemporaryFile> dequantize_to_f32(const std::string& path);

}  // namespace kvant
