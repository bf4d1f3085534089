// hadamard is the map x -> x H, with the orthonormal Walsh-Hadamard matrix H (QuaRot 3; VecInfer 3.2; KVLinC
// 3). The rotation spreads outlier channels over all channels of a block. Since H^-1 = H^T = H, forward,
// inverse and query are the same map.
#include "transform/kinds.h"
#include "transform/walsh_hadamard.h"

namespace kvant {
namespace {

class Hadamard final : public TransformStep {
 public:
  explicit Hadamard(int head_dim) : order_(hadamard_order(head_dim)) {}
  void forward(MatrixView<float> x) const override { walsh_hadamard(x, order_); }
  void inverse(MatrixView<float> x) const override { walsh_hadamard(x, order_); }
  void query(MatrixView<float> q, float* /*offset*/) const override { walsh_hadamard(q, order_); }

 private:
  int order_;
};

Result<std::unique_ptr<TransformStep>> make(int head_dim, const HeadConstants&, const std::string&) {
  return std::unique_ptr<TransformStep>(std::make_unique<Hadamard>(head_dim));
}

}  // namespace

const TransformKind hadamard_transform = {"hadamard", "orthonormal Walsh-Hadamard rotation", false, false,
                                          make};

}  // namespace kvant
