#include "model/finite_logits.h"

#include <bit>
#include <cstdint>

#include "base/simd_clones.h"
#include "model/engine.h"

namespace kvant {
namespace {

// The exponent bits of NaN and infinity are all ones.
KVANT_SIMD_CLONES bool has_others(const float* values, std::size_t n) {
  constexpr std::uint32_t kExponent = 0x7F800000;
  std::uint32_t others = 0;
  for (std::size_t i = 0; i < n; ++i)
    others |= (std::bit_cast<std::uint32_t>(values[i]) & kExponent) == kExponent ? 1U : 0U;
  return others != 0;
}

}  // namespace

bool are_finite(std::span<const float> logits) {
  return !has_others(logits.data(), logits.size());
}

Error unsound_predictions(const Engine& engine) {
  return error(
      "the model '{}' ({}) predicts values that are not numbers (NaN or infinity): its file is damaged, or "
      "its weights overflow",
      engine.geometry().model, engine.description());
}

Status check_logits(const Engine& engine, MatrixView<const float> logits) {
  for (int row = 0; row < logits.rows; ++row) {
    if (!are_finite({logits.row(row), static_cast<std::size_t>(logits.cols)}))
      return unsound_predictions(engine);
  }
  return {};
}

}  // namespace kvant
