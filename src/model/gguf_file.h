// GgufFile reads a GGUF file's metadata and tensors with checks and types. No reader aborts on a bad file.
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
  // What messages call the file, and what they advise if it is damaged.
  struct Words {
    const char* file = "GGUF model";
    const char* remedy = "get the file again";
  };

  // Opens and maps the file. Errors: it is missing, unreadable, not GGUF, or truncated (tensor data past the
  // end).
  static Result<std::shared_ptr<GgufFile>> open(const std::string& path) { return open(path, {}); }
  static Result<std::shared_ptr<GgufFile>> open(const std::string& path, const Words& words);
  ~GgufFile();

  const std::string& path() const;

  // Returns metadata of the right type, or nothing. Integers of any width and signedness are accepted.
  std::optional<std::string> text(const std::string& key) const;
  std::optional<std::int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  // A scalar counts as one element and a boolean as 0 or 1. Empty: the key is absent or has another type.
  std::vector<std::int64_t> integers(const std::string& key) const;
  // Return the number of elements of an array of this kind, or nothing if the key is absent or has another
  // type.
  std::optional<std::size_t> texts_count(const std::string& key) const;
  std::optional<std::size_t> numbers_count(const std::string& key) const;   // F32
  std::optional<std::size_t> integers_count(const std::string& key) const;  // 32 bits wide
  bool has(const std::string& key) const;

  // Returns the tensor called `name` (without a data pointer), or null.
  const ggml_tensor* tensor(const std::string& name) const;
  std::vector<std::string> tensor_names() const;
  // Returns the tensor's bytes inside the mapped file.
  const void* tensor_data(const ggml_tensor* tensor) const;
  // Returns the whole mapping, which contains the tensors.
  const void* mapping() const;
  std::size_t mapping_bytes() const;

  // Hashes (FNV-1a) all bytes before the tensor data, and bytes of every tensor: all of a small one, and 16
  // evenly spread runs of 256 bytes of a larger one. So a file of any size takes milliseconds, and a
  // fine-tune, which differs only in weights, gets another hash.
  std::uint64_t content_hash() const;

 private:
  struct State;
  explicit GgufFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvant
