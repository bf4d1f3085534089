// GgufFile reads a GGUF file's metadata and tensors with checks. Every reader states the type that it
// expects, and no reader aborts on a damaged file.
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
  // Words holds the name of the kind of file for messages, and the advice if a file is damaged.
  struct Words {
    const char* file = "GGUF model";
    const char* remedy = "get the file again";
  };

  // Opens and maps the file. Returns an error if the file is missing, unreadable, not GGUF, or truncated
  // (tensor data past its end).
  static Result<std::shared_ptr<GgufFile>> open(const std::string& path) { return open(path, {}); }
  static Result<std::shared_ptr<GgufFile>> open(const std::string& path, const Words& words);
  ~GgufFile();

  const std::string& path() const;

  // text(), integer(), number() and boolean() return a metadata value if it has the right type, else nothing.
  // Integers may have any width and sign.
  std::optional<std::string> text(const std::string& key) const;
  std::optional<std::int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  // Returns an array of integers. A scalar counts as one element, and a boolean as 0 or 1. The result is
  // empty if the key is absent or has a different type.
  std::vector<std::int64_t> integers(const std::string& key) const;
  // texts_count(), numbers_count() and integers_count() return the number of elements of an array. The
  // functions return nothing if the key is absent or the elements have a different type.
  std::optional<std::size_t> texts_count(const std::string& key) const;
  std::optional<std::size_t> numbers_count(const std::string& key) const;   // counts F32 elements
  std::optional<std::size_t> integers_count(const std::string& key) const;  // counts elements of 32 bits
  bool has(const std::string& key) const;

  // Returns the tensor called `name`, without a data pointer, or null.
  const ggml_tensor* tensor(const std::string& name) const;
  std::vector<std::string> tensor_names() const;
  // Returns the tensor's bytes within the mapped file.
  const void* tensor_data(const ggml_tensor* tensor) const;
  // Returns the whole mapping, which contains the tensors.
  const void* mapping() const;
  std::size_t mapping_bytes() const;

  // Hashes (FNV-1a) all bytes before the tensor data, and a part of every tensor. The part is all bytes of a
  // small tensor, or 16 evenly spread runs of 256 bytes of a larger tensor. Hashing any file therefore takes
  // only milliseconds. A fine-tune, which differs only in its weights, still gets another hash.
  std::uint64_t content_hash() const;

 private:
  struct State;
  explicit GgufFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvant
