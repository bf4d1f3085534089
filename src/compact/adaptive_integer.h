// Codes integers by binary decisions, each with a probability of its own that is updated after every symbol.
//
// One function both writes and reads. `stream` is a WriteStream, which encodes the given value, or a
// ReadStream, which ignores the given value and returns the decoded value.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "compact/symbol_coder.h"

namespace kvant {

// Holds the probability of a 0, in 1 / 2^16.
class AdaptiveBit {
 public:
  std::uint32_t zero() const { return zero_; }
  void follow(bool one) {
    if (one) {
      zero_ -= (zero_ - kLeast) >> kRate;
    } else {
      zero_ += (kWholeInterval - kLeast - zero_) >> kRate;
    }
  }

 private:
  static constexpr std::uint32_t kLeast = 64;
  static constexpr int kRate = 5;
  std::uint32_t zero_ = kWholeInterval / 2;
};

class WriteStream {
 public:
  explicit WriteStream(SymbolWriter& to) : to_(to) {}
  bool bit(AdaptiveBit& model, bool value) {
    const std::uint32_t zero = model.zero();
    value ? to_.put(zero, kWholeInterval - zero) : to_.put(0, zero);
    model.follow(value);
    return value;
  }
  std::uint32_t bits(int n, std::uint32_t value) {
    to_.put_bits(value, n);
    return value;
  }

 private:
  SymbolWriter& to_;
};

class ReadStream {
 public:
  explicit ReadStream(SymbolReader& from) : from_(from) {}
  bool bit(AdaptiveBit& model, bool /*value*/) {
    const std::uint32_t zero = model.zero();
    const bool value = from_.point() >= zero;
    value ? from_.pass(zero, kWholeInterval - zero) : from_.pass(0, zero);
    model.follow(value);
    return value;
  }
  std::uint32_t bits(int n, std::uint32_t /*value*/) { return from_.bits(n); }

 private:
  SymbolReader& from_;
};

// Codes a number below 2^kBits from the highest bit down. The higher bits are the context of each bit.
template <int kBits>
class AdaptiveNumber {
 public:
  template <class Stream>
  std::uint32_t code(Stream& stream, std::uint32_t value) {
    std::uint32_t node = 1;
    for (int i = kBits - 1; i >= 0; --i) {
      const bool bit = stream.bit(nodes_[node], (value >> i & 1) != 0);
      node = node << 1 | static_cast<std::uint32_t>(bit);
    }
    return node - (1U << kBits);
  }

 private:
  std::array<AdaptiveBit, 1 << kBits> nodes_;
};

// Codes a signed integer of magnitude at most 2^16. The bit length of the magnitude is coded adaptively, and
// its lower bits and the sign uniformly.
class AdaptiveDifference {
 public:
  template <class Stream>
  int code(Stream& stream, int value) {
    const auto given = static_cast<std::uint32_t>(value < 0 ? -value : value);
    const auto length =
        static_cast<int>(length_.code(stream, static_cast<std::uint32_t>(std::bit_width(given))));
    if (length == 0) return 0;
    std::uint32_t magnitude = 1;
    // Damaged input may give a longer length.
    const int rest = length - 1 < kProbabilityBits ? length - 1 : kProbabilityBits;
    if (rest > 0) magnitude = magnitude << rest | stream.bits(rest, given & ((1U << rest) - 1));
    const bool negative = stream.bits(1, value < 0 ? 1 : 0) != 0;
    return negative ? -static_cast<int>(magnitude) : static_cast<int>(magnitude);
  }

 private:
  AdaptiveNumber<5> length_;
};

}  // namespace kvant
