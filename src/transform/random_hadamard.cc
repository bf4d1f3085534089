// rhadamard is the map x -> x S H, where S = diag(+-1) is fixed. Such a map is a randomized Hadamard
// transform (TurboQuant). Afterwards each coordinate of a unit vector is close to N(0, 1/d), the distribution
// for which Lloyd-Max codebooks are made. A sign depends on the channel alone, so every model, layer and run
// has the same signs.
#include <cstdint>
#include <vector>

#include "base/mix_bits.h"
#include "base/simd_clones.h"
#include "transform/kinds.h"
#include "transform/walsh_hadamard.h"

namespace kvant {
namespace {

constexpr std::uint64_t kSeed = 0x6b76616e74ULL;

float sign_of_channel(int channel) {
  const std::uint64_t bits = mix_bits(kSeed + kGoldenRatio64 * static_cast<std::uint64_t>(channel + 1));
  return (bits & 1) != 0 ? -1.0F : 1.0F;
}

KVANT_SIMD_CLONES void flip_signs(MatrixView<float> x, const float* signs) {
  for (int r = 0; r < x.rows; ++r) {
    float* row = x.row(r);
    for (int i = 0; i < x.cols; ++i) row[i] *= signs[i];
  }
}

class RandomHadamard final : public TransformStep {
 public:
  explicit RandomHadamard(int head_dim) : order_(hadamard_order(head_dim)), signs_(head_dim) {
    for (int i = 0; i < head_dim; ++i) signs_[i] = sign_of_channel(i);
  }
  void forward(MatrixView<float> x) const override {
    flip_signs(x, signs_.data());
    walsh_hadamard(x, order_);
  }
  void inverse(MatrixView<float> x) const override {
    walsh_hadamard(x, order_);
    flip_signs(x, signs_.data());
  }
  // S H is orthogonal, so queries map like keys: A^-T = A in terms of TransformStep.
  void query(MatrixView<float> q, float* /*offset*/) const override { forward(q); }

 private:
  int order_;
  std::vector<float> signs_;  // [d]
};

Result<std::unique_ptr<TransformStep>> make(int head_dim, const HeadConstants&, const std::string&) {
  return std::unique_ptr<TransformStep>(std::make_unique<RandomHadamard>(head_dim));
}

}  // namespace

const TransformKind rhadamard_transform = {"rhadamard", "Hadamard rotation after fixed random sign flips",
                                           false, false, make};

}  // namespace kvant
