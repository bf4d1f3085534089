// Codes symbols whose probabilities are known only during coding, by the range variant of asymmetric numeral
// systems (Duda 2013, arXiv 1311.2540). A symbol is an interval of [0, 2^16), and the probability of the
// symbol is the interval's size / 2^16.
//
// The state is in [2^32, 2^64) and moves 32 bits at a time. Symbols are read in the order in which they were
// written, although ANS encodes backwards. So the writer keeps all symbols until the end, 4 bytes each.
//
// The bytes are the state (u64), then words (u32) in the order in which the reader takes them, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvant {

inline constexpr int kProbabilityBits = 16;
inline constexpr std::uint32_t kWholeInterval = 1U << kProbabilityBits;

class SymbolWriter {
 public:
  // Writes an interval whose size is at least 1. The whole interval takes no bits.
  void put(std::uint32_t first, std::uint32_t size) {
    if (size < kWholeInterval) symbols_.push_back(first << kProbabilityBits | size);
  }
  // Writes n bits, at most 16, with a uniform distribution.
  void put_bits(std::uint32_t value, int n) { put(value << (kProbabilityBits - n), kWholeInterval >> n); }
  // Returns all bytes and leaves the writer empty.
  std::vector<std::byte> take();

 private:
  std::vector<std::uint32_t> symbols_;
};

// Reads arbitrary bytes. There is always a next symbol.
class SymbolReader {
 public:
  SymbolReader() = default;  // Such a reader has no bytes to read.
  explicit SymbolReader(std::span<const std::byte> bytes);

  // Returns a number within the next symbol's interval.
  std::uint32_t point() const { return static_cast<std::uint32_t>(state_) & (kWholeInterval - 1); }
  // Moves past the symbol at point(). The function is inlined, because in interleaved rows a call would cost
  // as much as the work.
  [[gnu::always_inline]] void pass(std::uint32_t first, std::uint32_t size) {
    state_ = (state_ >> kProbabilityBits) * size + point() - first;
    if (state_ >= kLeastState) return;
    std::uint32_t word = 0;
    if (left_.size() >= sizeof word) {
      std::memcpy(&word, left_.data(), sizeof word);
      left_ = left_.subspan(sizeof word);
    } else {
      too_short_ = true;
    }
    state_ = state_ << 32 | word;
  }
  std::uint32_t bits(int n) {
    const std::uint32_t value = point() >> (kProbabilityBits - n);
    pass(value << (kProbabilityBits - n), kWholeInterval >> n);
    return value;
  }
  // Returns whether the reader has read exactly the symbols that a writer put, as far as the bytes tell.
  bool at_end() const { return !too_short_ && left_.empty() && state_ == kLeastState; }

  static constexpr std::uint64_t kLeastState = std::uint64_t{1} << 32;

 private:
  std::uint64_t state_ = kLeastState;
  std::span<const std::byte> left_;
  bool too_short_ = false;
};

}  // namespace kvant
