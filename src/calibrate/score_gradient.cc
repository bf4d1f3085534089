#include "calibrate/score_gradient.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/softmax.h"
#include "base/mix_bits.h"
#include "base/page_size.h"
#include "base/team.h"
#include "calibrate/f32_layer.h"
#include "calibrate/row_gradients.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {
namespace {

// A sign for each word of a row, 64 words to a number.
class Signs {
 public:
  Signs(std::uint64_t seed, int n_vocab)
      : start_(mix_bits(seed + kGoldenRatio64)), numbers_(static_cast<std::uint64_t>(n_vocab) / 64 + 1) {}
  float operator()(int row, int word) const {
    const std::uint64_t index = static_cast<std::uint64_t>(row) * numbers_ + word / 64;
    return (mix_bits(start_ + index * kGoldenRatio64) >> (word % 64) & 1) != 0 ? 1.0F : -1.0F;
  }

 private:
  std::uint64_t start_, numbers_;
};

// The vocabulary is read twice, block by block, so that memory stays small: for the normalizers and what of z
// goes along sqrt(p), then for the derivative.
class ScorePass {
 public:
  ScorePass(const ModelParts& model, VocabularyProducts& products, MatrixView<const float> x,
            std::span<const std::int32_t> words, std::uint64_t seed, int n_threads)
      : h_(model.hparams),
        products_(products),
        x_(x),
        words_(words),
        signs_(seed, model.hparams.n_vocab),
        n_threads_(n_threads),
        norm_(f32_values(model, model.weights.output_norm(), n_threads)),
        bias_(f32_values(model, model.weights.output_bias(), n_threads)),
        normed_(static_cast<std::size_t>(x.rows) * x.cols),
        gradient_(normed_.size(), 0.0F),
        max_(x.rows, -std::numeric_limits<float>::infinity()),
        sum_(x.rows, 0.0),
        along_(x.rows, 0.0),
        word_logit_(x.rows, 0.0F) {}

  Result<ScoreGradient> run() {
    for (int b = 0; b < n_blocks(); ++b) rms_norm(part(b), norm_, h_.norm_epsilon, rows(normed_, b));
    KVANT_RETURN_IF_ERROR(products_.begin({normed_.data(), x_.rows, x_.cols}));
    run_team(n_threads_, [&](Team& team) {
      for_each_logits(
          team, [&](int row, int first, int n, const float* logits) { add_mass(row, first, n, logits); });
      for_each_vocabulary_block(
          team, [&](int b, int first, int n) { add_derivative(b, first, n); },
          [&] { products_.end_block(team); });
    });
    KVANT_RETURN_IF_ERROR(products_.finish({gradient_.data(), x_.rows, x_.cols}));
    for (int b = 0; b < n_blocks(); ++b) rms_norm_back(part(b), norm_, h_.norm_epsilon, rows(gradient_, b));
    ScoreGradient result{std::move(gradient_), {}};
    for (int r = 0; r < x_.rows; ++r)
      result.log_probabilities.push_back(word_logit_[r] - max_[r] - std::log(sum_[r]));
    return result;
  }

 private:
  int n_blocks() const { return (x_.rows + kPageTokens - 1) / kPageTokens; }
  int block_rows(int b) const { return std::min(kPageTokens, x_.rows - b * kPageTokens); }
  MatrixView<const float> part(int b) const { return x_.slice(b * kPageTokens, block_rows(b)); }
  MatrixView<float> rows(std::vector<float>& values, int b) {
    return {values.data() + static_cast<std::ptrdiff_t>(b) * kPageTokens * x_.cols, block_rows(b), x_.cols};
  }

  // Calls visit(block of rows, first, n) for words [first, first + n) of the vocabulary, then end().
  template <class Visit, class End>
  void for_each_vocabulary_block(Team& team, const Visit& visit, const End& end) {
    for (int first = 0; first < h_.n_vocab; first += kVocabularyBlock) {
      const int n = std::min(kVocabularyBlock, h_.n_vocab - first);
      products_.begin_block(first, n, team);
      team.for_each(n_blocks(), [&](int b) { visit(b, first, n); });
      end();
    }
  }

  // Logits [rows of the block, n] of those words.
  std::vector<float> logits(int b, int first, int n) const {
    std::vector<float> z(static_cast<std::size_t>(block_rows(b)) * n);
    products_.multiply(b * kPageTokens, {z.data(), block_rows(b), n});
    for (std::size_t i = 0; !bias_.empty() && i < z.size(); ++i) z[i] += bias_[first + i % n];
    if (h_.logit_softcap > 0)
      for (float& value : z) value = h_.logit_softcap * std::tanh(value / h_.logit_softcap);
    return z;
  }

  template <class Visit>
  void for_each_logits(Team& team, const Visit& visit) {
    for_each_vocabulary_block(
        team,
        [&](int b, int first, int n) {
          const std::vector<float> z = logits(b, first, n);
          for (int r = 0; r < block_rows(b); ++r)
            visit(b * kPageTokens + r, first, n, z.data() + static_cast<std::ptrdiff_t>(r) * n);
        },
        [] {});
  }

  // Takes the words' mass into account.
  void add_mass(int row, int first, int n, const float* logits) {
    if (words_[row] >= first && words_[row] < first + n) word_logit_[row] = logits[words_[row] - first];
    const float top = std::max(max_[row], max_row(logits, n));
    std::vector<float> masses(logits, logits + n);
    const double mass = exp_row(masses.data(), n, top);
    const double shrink = std::exp(static_cast<double>(max_[row]) - top);
    double along = 0;
    for (int i = 0; i < n; ++i) along += static_cast<double>(std::sqrt(masses[i])) * signs_(row, first + i);
    sum_[row] = sum_[row] * shrink + mass;
    along_[row] = along_[row] * std::sqrt(shrink) + along;
    max_[row] = top;
  }

  void add_derivative(int b, int first, int n) {
    std::vector<float> z = logits(b, first, n);
    for (int r = 0; r < block_rows(b); ++r) {
      const int row = b * kPageTokens + r;
      float* score = z.data() + static_cast<std::ptrdiff_t>(r) * n;
      std::vector<float> slopes;
      if (h_.logit_softcap > 0) {
        for (int i = 0; i < n; ++i) {
          const float t = score[i] / h_.logit_softcap;
          slopes.push_back(1 - t * t);
        }
      }
      exp_row(score, n, max_[row]);
      scale_row(score, n, static_cast<float>(1 / sum_[row]));
      const auto along = static_cast<float>(along_[row] / std::sqrt(sum_[row]));
      for (int i = 0; i < n; ++i) score[i] = std::sqrt(score[i]) * signs_(row, first + i) - score[i] * along;
      for (std::size_t i = 0; i < slopes.size(); ++i) score[i] *= slopes[i];
    }
    products_.multiply_back(b * kPageTokens, {z.data(), block_rows(b), n});
  }

  const Hparams& h_;
  VocabularyProducts& products_;
  MatrixView<const float> x_;
  std::span<const std::int32_t> words_;
  const Signs signs_;
  int n_threads_;
  std::vector<float> norm_, bias_;
  std::vector<float> normed_, gradient_;  // [rows, n_embd]
  std::vector<float> max_;                // [rows], of the logits so far
  std::vector<double> sum_;               // of exp(logit - max)
  std::vector<double> along_;             // sum of sqrt(exp(logit - max)) z
  std::vector<float> word_logit_;         // of words_
};

}  // namespace

Result<ScoreGradient> score_gradient(const ModelParts& model, VocabularyProducts& products,
                                     MatrixView<const float> x, std::span<const std::int32_t> words,
                                     std::uint64_t seed, int n_threads) {
  return ScorePass(model, products, x, words, seed, n_threads).run();
}

}  // namespace kvant
