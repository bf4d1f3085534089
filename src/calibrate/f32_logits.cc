#include "calibrate/f32_logits.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/page_size.h"
#include "base/team.h"
#include "calibrate/f32_layer.h"
#include "calibrate/row_gradients.h"
#include "calibrate/score_gradient.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {

Status f32_logits(const ModelParts& model, VocabularyProducts& products, MatrixView<const float> x,
                  int n_threads, MatrixView<float> logits) {
  const Hparams& h = model.hparams;
  const std::vector<float> norm = f32_values(model, model.weights.output_norm(), n_threads);
  const std::vector<float> bias = f32_values(model, model.weights.output_bias(), n_threads);
  std::vector<float> normed(static_cast<std::size_t>(x.rows) * x.cols), back(normed.size());
  rms_norm(x, norm, h.norm_epsilon, {normed.data(), x.rows, x.cols});
  KVANT_RETURN_IF_ERROR(products.begin({normed.data(), x.rows, x.cols}));
  run_team(n_threads, [&](Team& team) {
    for (int word = 0; word < h.n_vocab; word += kVocabularyBlock) {
      const int n = std::min(kVocabularyBlock, h.n_vocab - word);
      products.begin_block(word, n, team);
      team.for_each((x.rows + kPageTokens - 1) / kPageTokens, [&](int block) {
        const int first = block * kPageTokens, rows = std::min(kPageTokens, x.rows - first);
        std::vector<float> z(static_cast<std::size_t>(rows) * n);
        products.multiply(first, {z.data(), rows, n});
        for (std::size_t i = 0; i < z.size(); ++i) {
          if (!bias.empty()) z[i] += bias[word + i % n];
          if (h.logit_softcap > 0) z[i] = h.logit_softcap * std::tanh(z[i] / h.logit_softcap);
        }
        for (int r = 0; r < rows; ++r)
          std::copy_n(z.data() + static_cast<std::ptrdiff_t>(r) * n, n, logits.row(first + r) + word);
      });
    }
  });
  return products.finish({back.data(), x.rows, x.cols});
}

}  // namespace kvant
