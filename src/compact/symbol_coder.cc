#include "compact/symbol_coder.h"

#include <algorithm>
#include <utility>

namespace kvant {

std::vector<std::byte> SymbolWriter::take() {
  std::vector<std::uint32_t> words;
  std::uint64_t state = SymbolReader::kLeastState;
  for (auto symbol = symbols_.rbegin(); symbol != symbols_.rend(); ++symbol) {
    const std::uint64_t size = *symbol & (kWholeInterval - 1), first = *symbol >> kProbabilityBits;
    if (state >= size << 48) {
      words.push_back(static_cast<std::uint32_t>(state));
      state >>= 32;
    }
    state = (state / size << kProbabilityBits) + state % size + first;
  }
  symbols_.clear();
  std::ranges::reverse(words);
  std::vector<std::byte> bytes(sizeof state + words.size() * sizeof(std::uint32_t));
  std::memcpy(bytes.data(), &state, sizeof state);
  if (!words.empty()) std::memcpy(bytes.data() + sizeof state, words.data(), bytes.size() - sizeof state);
  return bytes;
}

SymbolReader::SymbolReader(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof state_) {
    too_short_ = true;
    return;
  }
  std::memcpy(&state_, bytes.data(), sizeof state_);
  left_ = bytes.subspan(sizeof state_);
  if (state_ < kLeastState) {  // No writer produces such a state.
    state_ += kLeastState;
    too_short_ = true;
  }
}

}  // namespace kvant
