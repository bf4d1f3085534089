// A GGUF file: typed, checked access to its metadata and tensors. No reader aborts on a bad file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

struct gguf_context;
struct ggml_context;
struct ggml_tensor;

namespace kvant {

class GgufFile {
 public:
  // What messages call a file, and what is to be done when it is damaged.
  struct Words {
    const char* file = "GGUF model";
    const char* remedy = "get the file again";
  };

  // Opens and maps the file. Errors: missing, unreadable, not GGUF, truncated (tensor data past the end).
  static Result<std::shared_ptr<GgufFile>> open(const std::string& path) { return open(path, {}); }
  static Result<std::shared_ptr<GgufFile>> open(const std::string& path, const Words& words);
  ~GgufFile();

  const std::string& path() const;

  // Metadata of the right type, or nothing. Integers of any width and signedness are accepted.
  std::optional<std::string> text(const std::string& key) const;
  std::optional<std::int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  // A scalar counts as one element, a boolean as 0 or 1; empty when absent or of another type.
  std::vector<std::int64_t> integers(const std::string& key) const;
  // The elements of an array of this kind; nothing when the key is absent or of another type.
  std::optional<std::size_t> texts_count(const std::string& key) const;
  std::optional<std::size_t> numbers_count(const std::string& key) const;   // F32
  std::optional<std::size_t> integers_count(const std::string& key) const;  // 32 bits wide
  bool has(const std::string& key) const;

  // The tensor called `name` (no data pointer), or null.
  const ggml_tensor* tensor(const std::string& name) const;
  std::vector<std::string> tensor_names() const;
  // Its bytes inside the mapped file.
  const void* tensor_data(const ggml_tensor* tensor) const;
  // The whole mapping: tensors lie in it.
  const void* mapping() const;
  std::size_t mapping_bytes() const;

  // FNV-1a of all bytes before the tensor data (metadata and tensor directory) and of every tensor's bytes:
  // all of those of small tensors, and 16 evenly spread runs of 256 of each larger one. So a file of any size
  // is read in milliseconds, and models that differ only in their weights, as a fine-tune does, are told
  // apart.
  std::uint64_t content_hash() const;

 private:
  struct State;
  explicit GgufFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvant
