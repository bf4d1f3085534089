#include "calibrate/score_gradient.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/mix_bits.h"
#include "base/page_size.h"
#include "base/simd_clones.h"
#include "base/softmax.h"
#include "base/team.h"
#include "calibrate/f32_layer.h"
#include "calibrate/row_gradients.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {
namespace {

constexpr int kSignsAtOnce = 64;  // signs in a 64-bit number

KVANT_SIMD_CLONES void expand_signs(std::uint64_t bits, int n, float* signs) {
  for (int i = 0; i < n; ++i) signs[i] = static_cast<float>(static_cast<int>(bits >> i & 1) * 2 - 1);
}

// Computes roots_i = sqrt(masses_i) signs_i, and returns the sum of the roots.
KVANT_SIMD_CLONES double signed_roots(const float* masses, const float* signs, int n, float* roots) {
  double sums[kReductionLanes] = {};
  int i = 0;
  for (; i + kReductionLanes <= n; i += kReductionLanes) {
    for (int lane = 0; lane < kReductionLanes; ++lane) {
      roots[i + lane] = std::sqrt(masses[i + lane]) * signs[i + lane];
      sums[lane] += static_cast<double>(roots[i + lane]);
    }
  }
  for (; i < n; ++i) {
    roots[i] = std::sqrt(masses[i]) * signs[i];
    sums[0] += static_cast<double>(roots[i]);
  }
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

// Signs returns a random sign for each word of each row. A 64-bit number holds the signs of 64 words.
class Signs {
 public:
  Signs(std::uint64_t seed, int n_vocab)
      : start_(mix_bits(seed + kGoldenRatio64)),
        numbers_(static_cast<std::uint64_t>(n_vocab) / kSignsAtOnce + 1) {}
  // Returns the signs of words [first, first + n). `first` must be a multiple of 64.
  std::vector<float> operator()(int row, int first, int n) const {
    std::vector<float> signs(n);
    for (int i = 0; i < n; i += kSignsAtOnce) {
      const std::uint64_t index = static_cast<std::uint64_t>(row) * numbers_ + (first + i) / kSignsAtOnce;
      expand_signs(mix_bits(start_ + index * kGoldenRatio64), std::min(kSignsAtOnce, n - i),
                   signs.data() + i);
    }
    return signs;
  }

 private:
  std::uint64_t start_, numbers_;
};

static_assert(kVocabularyBlock % kSignsAtOnce == 0);

// ScorePass reads the vocabulary twice, block by block, so memory stays small. The first pass computes the
// normalizers and the product of z and sqrt(p). The second pass computes the derivative.
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
        norm_bias_(f32_values(model, model.weights.output_norm_bias(), n_threads)),
        bias_(f32_values(model, model.weights.output_bias(), n_threads)),
        normed_(static_cast<std::size_t>(x.rows) * x.cols),
        gradient_(normed_.size(), 0.0F),
        max_(x.rows, -std::numeric_limits<float>::infinity()),
        sum_(x.rows, 0.0),
        along_(x.rows, 0.0),
        word_logit_(x.rows, 0.0F) {
    const auto block_bytes =
        std::int64_t{x.rows} * kVocabularyBlock * static_cast<std::int64_t>(sizeof(float));
    kept_.resize(std::min<std::int64_t>(kMostLogitBytes / block_bytes,
                                        (h_.n_vocab + kVocabularyBlock - 1) / kVocabularyBlock));
  }

  Result<ScoreGradient> run() {
    for (int b = 0; b < n_blocks(); ++b) norm().run(part(b), norm_, norm_bias_, rows(normed_, b));
    KVANT_RETURN_IF_ERROR(products_.begin({normed_.data(), x_.rows, x_.cols}));
    run_team(n_threads_, [&](Team& team) {
      for_each_vocabulary_block(
          team, /*back=*/false, [&](int b, int first, int n) { add_masses(b, first, n); }, [] {});
      for_each_vocabulary_block(
          team, /*back=*/true, [&](int b, int first, int n) { add_derivative(b, first, n); },
          [&] { products_.end_block(team); });
    });
    KVANT_RETURN_IF_ERROR(products_.finish({gradient_.data(), x_.rows, x_.cols}));
    for (int b = 0; b < n_blocks(); ++b) norm().run_back(part(b), norm_, rows(gradient_, b));
    ScoreGradient result{std::move(gradient_), {}};
    for (int r = 0; r < x_.rows; ++r)
      result.log_probabilities.push_back(word_logit_[r] - max_[r] - std::log(sum_[r]));
    return result;
  }

 private:
  RowNorm norm() const { return {h_.architecture->layer_norm, h_.norm_epsilon}; }
  int n_blocks() const { return (x_.rows + kPageTokens - 1) / kPageTokens; }
  int block_rows(int b) const { return std::min(kPageTokens, x_.rows - b * kPageTokens); }
  MatrixView<const float> part(int b) const { return x_.slice(b * kPageTokens, block_rows(b)); }
  MatrixView<float> rows(std::vector<float>& values, int b) {
    return {values.data() + static_cast<std::ptrdiff_t>(b) * kPageTokens * x_.cols, block_rows(b), x_.cols};
  }

  bool is_kept(int first) const { return first / kVocabularyBlock < static_cast<int>(kept_.size()); }

  // Calls visit(block of rows, first, n) for words [first, first + n) of each block of the vocabulary, and
  // then end(). With `back`, `visit` multiplies by the derivative, and multiplies forward only by words whose
  // logits were not kept. Without `back`, `visit` multiplies forward by all words.
  template <class Visit, class End>
  void for_each_vocabulary_block(Team& team, bool back, const Visit& visit, const End& end) {
    for (int first = 0; first < h_.n_vocab; first += kVocabularyBlock) {
      const int n = std::min(kVocabularyBlock, h_.n_vocab - first);
      products_.begin_block(first, n, /*multiplies=*/!back || !is_kept(first), /*multiplies_back=*/back,
                            team);
      if (is_kept(first))
        team.once([&] { kept_[first / kVocabularyBlock].resize(static_cast<std::size_t>(x_.rows) * n); });
      team.for_each(n_blocks(), [&](int b) { visit(b, first, n); });
      end();
    }
  }

  // Returns the place for the logits [rows of the block, n] of words [first, first + n). The place is in
  // `memory` unless the logits are kept.
  MatrixView<float> place_of_logits(int b, int first, int n, std::vector<float>& memory) {
    if (is_kept(first)) {
      float* all = kept_[first / kVocabularyBlock].data();
      return {all + static_cast<std::ptrdiff_t>(b) * kPageTokens * n, block_rows(b), n};
    }
    memory.resize(static_cast<std::size_t>(block_rows(b)) * n);
    return {memory.data(), block_rows(b), n};
  }

  void find_logits(int b, int first, MatrixView<float> z) const {
    products_.multiply(b * kPageTokens, z);
    for (int r = 0; r < z.rows; ++r) {
      for (int i = 0; !bias_.empty() && i < z.cols; ++i) z.row(r)[i] += bias_[first + i];
      for (int i = 0; h_.logit_softcap > 0 && i < z.cols; ++i)
        z.row(r)[i] = h_.logit_softcap * std::tanh(z.row(r)[i] / h_.logit_softcap);
    }
  }

  void add_masses(int b, int first, int n) {
    std::vector<float> memory;
    const MatrixView<float> z = place_of_logits(b, first, n, memory);
    find_logits(b, first, z);
    for (int r = 0; r < z.rows; ++r) add_mass(b * kPageTokens + r, first, n, z.row(r));
  }

  // Adds the probability mass of words [first, first + n) to the sums of a row.
  void add_mass(int row, int first, int n, const float* logits) {
    if (words_[row] >= first && words_[row] < first + n) word_logit_[row] = logits[words_[row] - first];
    const float top = std::max(max_[row], max_row(logits, n));
    std::vector<float> masses(logits, logits + n);
    const double mass = exp_row(masses.data(), n, top);
    const double shrink = std::exp(static_cast<double>(max_[row]) - top);
    const double along = signed_roots(masses.data(), signs_(row, first, n).data(), n, masses.data());
    sum_[row] = sum_[row] * shrink + mass;
    along_[row] = along_[row] * std::sqrt(shrink) + along;
    max_[row] = top;
  }

  void add_derivative(int b, int first, int n) {
    std::vector<float> memory, roots(n);
    const MatrixView<float> z = place_of_logits(b, first, n, memory);
    if (!is_kept(first)) find_logits(b, first, z);
    for (int r = 0; r < z.rows; ++r) {
      const int row = b * kPageTokens + r;
      float* score = z.row(r);
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
      signed_roots(score, signs_(row, first, n).data(), n, roots.data());
      scale_row(score, n, -along);
      add_scaled_row(score, roots.data(), n, 1);
      for (std::size_t i = 0; i < slopes.size(); ++i) score[i] *= slopes[i];
    }
    products_.multiply_back(b * kPageTokens, z);
  }

  const Hparams& h_;
  VocabularyProducts& products_;
  MatrixView<const float> x_;
  std::span<const std::int32_t> words_;
  const Signs signs_;
  int n_threads_;
  std::vector<float> norm_, norm_bias_, bias_;
  std::vector<float> normed_, gradient_;  // [rows, n_embd]
  std::vector<float> max_;                // [rows], the largest logit so far
  std::vector<double> sum_;               // [rows], the sum of exp(logit - max)
  std::vector<double> along_;             // [rows], the sum of sqrt(exp(logit - max)) z
  std::vector<float> word_logit_;         // [rows], the logit of each of words_
  std::vector<std::vector<float>> kept_;  // logits [rows, n] of the first blocks of words, which become
                                          // derivatives
};

}  // namespace

Result<ScoreGradient> score_gradient(const ModelParts& model, VocabularyProducts& products,
                                     MatrixView<const float> x, std::span<const std::int32_t> words,
                                     std::uint64_t seed, int n_threads) {
  return ScorePass(model, products, x, words, seed, n_threads).run();
}

}  // namespace kvant
