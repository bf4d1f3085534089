// Entropy coding of symbols whose probabilities are known only while they are coded: a range variant of
// asymmetric numeral systems (Duda 2013, arXiv 1311.2540). A symbol is an interval of [0, 2^16); its
// probability is the interval's size / 2^16.
//
// The state is in [2^32, 2^64) and moves 32 bits at a time. Symbols are read in the order in which they were
// put, so the writer keeps them all until the end: 4 bytes each.
//
// Bytes: the state (u64), then words (u32) in the order in which the reader wants them, little-endian.
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
  // An interval of at least 1. The whole one takes no bits.
  void put(std::uint32_t first, std::uint32_t size) {
    if (size < kWholeInterval) symbols_.push_back(first << kProbabilityBits | size);
  }
  // n bits, at most 16, all values being alike.
  void put_bits(std::uint32_t value, int n) { put(value << (kProbabilityBits - n), kWholeInterval >> n); }
  // All of it. The writer is empty then.
  std::vector<std::byte> take();

 private:
  std::vector<std::uint32_t> symbols_;
};

// Reads what may be anything: whatever the bytes are, there is always a next symbol.
class SymbolReader {
 public:
  SymbolReader() = default;  // of nothing
  explicit SymbolReader(std::span<const std::byte> bytes);

  // A number within the next symbol's interval.
  std::uint32_t point() const { return static_cast<std::uint32_t>(state_) & (kWholeInterval - 1); }
  // Goes on behind that symbol. Where rows take turns, a call would cost as much as it does.
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
  // Whether these were the symbols that a writer has put, as far as that can be told.
  bool at_end() const { return !too_short_ && left_.empty() && state_ == kLeastState; }

  static constexpr std::uint64_t kLeastState = std::uint64_t{1} << 32;

 private:
  std::uint64_t state_ = kLeastState;
  std::span<const std::byte> left_;
  bool too_short_ = false;
};

}  // namespace kvant
