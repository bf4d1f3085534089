// GGUF files with a checksum: built in memory, written whole, checked when read.
//
// The 8 bytes after the GGUF data are the FNV-1a hash of everything before them, little-endian. GGUF readers
// ignore bytes after the last tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/gguf_file.h"

namespace kvant {

// FNV-1a hash of bytes; continues `hash`.
std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = 0xcbf29ce484222325U);

class SealedGguf {
 public:
  SealedGguf();
  ~SealedGguf();

  void set(const std::string& key, const std::string& text);
  void set(const std::string& key, std::int64_t number);
  void set(const std::string& key, std::span<const std::int32_t> numbers);
  // Adds a tensor [n], n > 0. Names must be distinct and shorter than 64 characters.
  void add_f32(const std::string& name, std::span<const float> values);
  void add_f16(const std::string& name, std::span<const std::uint16_t> values);
  // The values must outlive the file, because no copy is made.
  void add_bf16(const std::string& name, std::span<const std::uint16_t> values);
  void add_bytes(const std::string& name, std::span<const std::byte> bytes);
  void add_i8(const std::string& name, std::span<const std::int8_t> values);

  // Writes the whole file or nothing. Errors: see write_whole_file.
  Status write(const std::string& path) const;

 private:
  void add(const std::string& name, int type, std::size_t n, std::span<const std::byte> bytes, bool copies);
  struct State;
  std::unique_ptr<State> state_;
};

// Marks a file as saved work in progress. identity: hash of everything that the work depends on.
void set_state(SealedGguf& file, const std::string& type, std::uint64_t identity);
// Opens such a state; null: there is none. Errors: the file is damaged, or it belongs to other work.
Result<std::shared_ptr<GgufFile>> open_state(const std::string& path, std::uint64_t identity);

// Opens a file with a checksum. Errors: see GgufFile::open; a wrong checksum.
Result<std::shared_ptr<GgufFile>> open_sealed_gguf(const std::string& path);

}  // namespace kvant
