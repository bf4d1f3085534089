#include "calibrate/vocabulary_products.h"

#include <algorithm>
#include <vector>

#include "calibrate/f32_layer.h"
#include "calibrate/row_gradients.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {
namespace {

class HostVocabulary final : public VocabularyProducts {
 public:
  HostVocabulary(const ModelParts& model, GemmPrecision precision) : model_(model), precision_(precision) {}

  Status begin(MatrixView<const float> x) override {
    x_ = x;
    gradient_.assign(static_cast<std::size_t>(x.rows) * x.cols, 0.0F);
    return {};
  }
  void begin_block(int first, int n, bool multiplies, bool multiplies_back, Team& team) override {
    constexpr int kRowsAtOnce = 128;
    const int n_embd = model_.hparams.n_embd;
    team.once([&] { weights_.resize(static_cast<std::size_t>(n) * n_embd); });
    team.for_each((n + kRowsAtOnce - 1) / kRowsAtOnce, [&](int i) {
      const int r = i * kRowsAtOnce;
      f32_rows(model_, model_.weights.output(), first + r, std::min(kRowsAtOnce, n - r),
               weights_.data() + static_cast<std::ptrdiff_t>(r) * n_embd);
    });
    if (multiplies) pack(n_embd, n, transposed(weights_.data(), n_embd), forward_, team);
    if (multiplies_back) pack(n, n_embd, row_major(weights_.data(), n_embd), back_, team);
  }
  void multiply(int first, MatrixView<float> out) const override {
    linear(x_.slice(first, out.rows), forward_, {}, out);
  }
  void multiply_back(int first, MatrixView<const float> derivative) override {
    linear_back(derivative, back_, /*accumulate=*/true, rows().slice(first, derivative.rows));
  }
  void end_block(Team& /*team*/) override {}
  Status finish(MatrixView<float> gradient) override {
    std::copy(gradient_.begin(), gradient_.end(), gradient.data);
    return {};
  }

 private:
  void pack(int k, int n, const GemmOperand& b, PackedMatrix& to, Team& team) const {
    team.once([&] { to.resize(k, n, precision_); });
    team.for_each(to.n_parts(), [&](int part) { to.pack(b, part); });
  }

  MatrixView<float> rows() { return {gradient_.data(), x_.rows, x_.cols}; }

  const ModelParts model_;
  const GemmPrecision precision_;
  MatrixView<const float> x_{nullptr, 0, 0};
  std::vector<float> gradient_;
  std::vector<float> weights_;   // [n, n_embd]
  PackedMatrix forward_, back_;  // the weights, packed for products and for derivatives
};

}  // namespace

std::unique_ptr<VocabularyProducts> make_host_vocabulary(const ModelParts& model, GemmPrecision precision) {
  return std::make_unique<HostVocabulary>(model, precision);
}

}  // namespace kvant
