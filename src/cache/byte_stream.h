// Writes and reads the bytes of a cache's interchange: plain numbers and arrays, little-endian, without gaps.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace kvant {

static_assert(std::endian::native == std::endian::little, "interchange is little-endian");

class ByteWriter {
 public:
  template <class T>
  void write(const T& value) {
    write_all(std::span(&value, 1));
  }
  template <class T>
  void write_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (values.empty()) return;
    std::memcpy(skip(values.size_bytes()), values.data(), values.size_bytes());
  }
  // Returns room for n bytes that the caller writes. The pointer is valid until the next call.
  std::byte* skip(std::size_t n) {
    bytes_.resize(bytes_.size() + n);
    return bytes_.data() + bytes_.size() - n;
  }
  void reserve(std::size_t n_more) { bytes_.reserve(bytes_.size() + n_more); }
  std::size_t size() const { return bytes_.size(); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads bytes that may be damaged. Once bytes are missing or refused, the reader reads nothing more, and ok()
// is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return left_.empty(); }
  std::size_t n_left() const { return left_.size(); }
  // Refuses what was read if the condition does not hold.
  void require(bool condition) { ok_ = ok_ && condition; }

  // Returns the next n bytes, or null if they are missing.
  const std::byte* skip(std::size_t n) {
    require(n <= left_.size());
    if (!ok_) return nullptr;
    const std::byte* at = left_.data();
    left_ = left_.subspan(n);
    return at;
  }
  template <class T>
  T read() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const std::byte* at = skip(sizeof(T))) std::memcpy(&value, at, sizeof(T));
    return value;
  }
  // Reads a number within [least, most]. Any other number is refused, and the result is `least`.
  int read_int(int least, int most) {
    const auto value = read<std::int32_t>();
    require(value >= least && value <= most);
    return ok_ ? value : least;
  }
  // Reads n values. The result is empty if values are missing.
  template <class T>
  std::vector<T> read_all(std::size_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    require(n <= left_.size() / sizeof(T));
    if (!ok_) return {};
    std::vector<T> values(n);
    if (n > 0) std::memcpy(values.data(), skip(n * sizeof(T)), n * sizeof(T));
    return values;
  }

 private:
  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace kvant
