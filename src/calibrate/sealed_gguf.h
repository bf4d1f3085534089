// Builds GGUF files with a checksum in memory, writes them as a whole, and checks them when they are read.
//
// The 8 bytes after the GGUF data are the FNV-1a hash of all bytes before, little-endian. GGUF readers ignore
// bytes after the last tensor.
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

// Returns the FNV-1a hash of bytes. `hash` continues an earlier hash.
std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = 0xcbf29ce484222325U);

class SealedGguf {
 public:
  SealedGguf();
  ~SealedGguf();

  void set(const std::string& key, const std::string& text);
  void set(const std::string& key, std::int64_t number);
  void set(const std::string& key, std::span<const std::int32_t> numbers);
  // Each of these functions adds a tensor [n], n > 0. Names must be distinct and shorter than 64 characters.
  void add_f32(const std::string& name, std::span<const float> values);
  void add_f16(const std::string& name, std::span<const std::uint16_t> values);
  // The values of add_bf16() and add_bytes() must outlive the file object, because they are not copied. All
  // other functions copy the values.
  void add_bf16(const std::string& name, std::span<const std::uint16_t> values);
  void add_bytes(const std::string& name, std::span<const std::byte> bytes);
  void add_i8(const std::string& name, std::span<const std::int8_t> values);

  // Writes either the whole file or nothing. Returns the errors of write_whole_file().
  Status write(const std::string& path) const;

 private:
  void add(const std::string& name, int type, std::size_t n, std::span<const std::byte> bytes, bool copies);
  struct State;
  std::unique_ptr<State> state_;
};

// Marks a file as saved work. `identity` is a hash of everything that the work depends on.
void set_state(SealedGguf& file, const std::string& type, std::uint64_t identity);
// Opens a file of saved work. Returns null if there is none. Returns an error if the file is damaged or
// belongs to other work.
Result<std::shared_ptr<GgufFile>> open_state(const std::string& path, std::uint64_t identity);

// Opens a file with a checksum. Returns the errors of GgufFile::open(), and an error for a wrong checksum.
Result<std::shared_ptr<GgufFile>> open_sealed_gguf(const std::string& path);

}  // namespace kvant
