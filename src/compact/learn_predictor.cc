#include "compact/learn_predictor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "base/checksum.h"
#include "base/gemm.h"
#include "cache/page_layout.h"
#include "cache/sealed_runs.h"
#include "compact/page_prediction.h"
#include "compact/trellis_page.h"

namespace kvant {
namespace {

// The first tokens of a sequence are left out, because the attention sink is unlike all other tokens.
constexpr int kFirstTokens = 8;
constexpr double kPenalty = 1e-4;           // a share of the inputs' mean square
constexpr double kLargestDeviation = 8192;  // the deviation of a layer's widest channel, in units
constexpr int kMaxExponent = 60;
constexpr int kWeightSteps = 127;

// Describes one sealed page.
struct LearnedPage {
  int page;                // index of the page in its sequence
  const std::byte* entry;  // The entry of the page's group of layers.
};

// Holds the sealed pages of one group of layers.
struct GroupPages {
  std::vector<int> layers;
  std::vector<LearnedPage> pages;
};

struct PageValues {
  TrellisParameters parameters;
  GainUnits gains;
  std::vector<std::int32_t> values;  // [kPageTokens, d], in units
};

void read_values(const TrellisShape& shape, int exponent, const std::byte* page, PageValues& to) {
  to.parameters = read_parameters(shape, page);
  to.gains = gain_units(shape.bits, to.parameters.loudest, exponent);
  std::array<std::int32_t, kMaxHeadDim> means;
  for (int c = 0; c < shape.d; ++c)
    means[c] = units_of_mean(to.parameters.means[c], to.parameters.step, exponent);
  to.values.resize(static_cast<std::size_t>(kPageTokens) * shape.d);
  page_units(shape, to.parameters, to.gains, means.data(), page, to.values.data());
}

// Computes the Cholesky factorization in place: the lower triangle of L with L L' = a. `a` is [n, n], and
// only its lower triangle is read.
void factorize(std::vector<double>& a, int n) {
  for (int j = 0; j < n; ++j) {
    double* row_j = &a[static_cast<std::size_t>(j) * n];
    double square = row_j[j];
    for (int k = 0; k < j; ++k) square -= row_j[k] * row_j[k];
    row_j[j] = std::sqrt(std::max(square, 1e-12));
    for (int i = j + 1; i < n; ++i) {
      double* row_i = &a[static_cast<std::size_t>(i) * n];
      double sum = row_i[j];
#pragma GCC ivdep
      for (int k = 0; k < j; ++k) sum -= row_i[k] * row_j[k];
      row_i[j] = sum / row_j[j];
    }
  }
}

// Computes x <- a^-1 x from the first n rows of a Cholesky factor with `stride` columns.
void solve(const std::vector<double>& factor, int stride, int n, std::vector<double>& x) {
  for (int i = 0; i < n; ++i) {
    const double* row = &factor[static_cast<std::size_t>(i) * stride];
    double sum = x[i];
    for (int k = 0; k < i; ++k) sum -= row[k] * x[k];
    x[i] = sum / row[i];
  }
  for (int i = n - 1; i >= 0; --i) {
    const double* row = &factor[static_cast<std::size_t>(i) * stride];
    x[i] /= row[i];
    for (int k = 0; k < i; ++k) x[k] -= row[k] * x[i];
  }
}

class Learner {
 public:
  Learner(const Plan& plan, const PredictorText& text, int n_threads)
      : plan_(plan), g_(plan.geometry), n_threads_(n_threads), before_(layers_before(plan)) {
    predictor_.layers.resize(g_.n_layers);
    for (int layer = 0; layer < g_.n_layers; ++layer) {
      LayerPredictor& of_layer = predictor_.layers[layer];
      of_layer.turns = text.turns[layer];
      of_layer.k.resize(g_.kv_heads(layer));
      of_layer.v.resize(g_.kv_heads(layer));
    }
    for (const auto& sequence : text.sequences) add_pages(sequence);
  }

  Result<Predictor> learn() {
    const bool any = std::ranges::any_of(groups_, [](const GroupPages& g) { return !g.pages.empty(); });
    if (!any) return error("the text is too short to learn from: no page of it is sealed");
    for_each_layer([this](const GroupPages& group, int i) { measure(group, i); });
    for_each_layer([this](const GroupPages& group, int i) { fit(group, i); });
    for (const GroupPages& group : groups_) fit_rest(group);
    predictor_.checksum = checksum(write_predictor(plan_, predictor_));
    return std::move(predictor_);
  }

 private:
  void add_pages(std::span<const std::byte> sequence) {
    const auto runs = sealed_runs(plan_, sequence, sequence.size());
    KVANT_CHECK(runs.has_value(), "a sequence of another plan");
    groups_.resize(runs->size());
    for (std::size_t i = 0; i < runs->size(); ++i) {
      const SealedRun& run = (*runs)[i];
      groups_[i].layers = run.layers;
      for (int p = 0; p < run.n_pages; ++p)
        groups_[i].pages.push_back({run.first_page + p, sequence.data() + run.first +
                                                            run.entry_bytes * static_cast<std::size_t>(p)});
    }
  }

  // Calls work(group, index of the layer in the group) for all layers, on several threads.
  void for_each_layer(const std::function<void(const GroupPages&, int)>& work) {
    for (const GroupPages& group : groups_) {
      std::atomic<int> next{0};
      const auto share = [&] {
        for (int i = next++; i < static_cast<int>(group.layers.size()); i = next++) work(group, i);
      };
      std::vector<std::thread> others;
      for (int i = 1; i < n_threads_; ++i) others.emplace_back(share);
      share();
      for (std::thread& other : others) other.join();
    }
  }

  TrellisShape shape_of(int layer, int h, Side side) const {
    const SidePlan& of_side = plan_.head(layer, h).side(side);
    const int d = g_.dim(layer);
    return {is_predicted(of_side, d) ? trellis_bits(*of_side.sealed, d) : 0, d};
  }
  const std::byte* page_of(const GroupPages& group, const LearnedPage& page, int layer, int h,
                           Side side) const {
    int index = 0;
    for (const int l : group.layers) {
      if (l == layer) break;
      index += g_.kv_heads(l);
    }
    return page.entry + PageLayout(plan_, group.layers).offset(index + h, side);
  }

  // Calls visit(token of the sequence, row [d] in the model's space, in units) for all tokens of the group's
  // sealed pages.
  template <class Visit>
  void for_each_row(const GroupPages& group, int layer, int h, Side side, const Visit& visit) const {
    const TrellisShape shape = shape_of(layer, h, side);
    if (shape.bits == 0) return;
    PagePrediction space(plan_, predictor_);
    PageValues page;
    for (const LearnedPage& at : group.pages) {
      read_values(shape, predictor_.layers[layer].exponents[static_cast<int>(side)],
                  page_of(group, at, layer, h, side), page);
      space.begin(at.page);
      space.to_model_space(layer, h, side, page.values.data());
      for (int t = 0; t < kPageTokens; ++t)
        visit(at.page * kPageTokens + t, &page.values[static_cast<std::size_t>(t) * shape.d]);
    }
  }

  // Measures the exponents, offsets and usual gains of a layer.
  void measure(const GroupPages& group, int i) {
    const int layer = group.layers[i], d = g_.dim(layer);
    LayerPredictor& of_layer = predictor_.layers[layer];
    for (const Side side : kSides) {
      std::int32_t& exponent = of_layer.exponents[static_cast<int>(side)];
      double squares = 0;
      std::size_t n = 0;
      for (int h = 0; h < g_.kv_heads(layer); ++h) {
        if (shape_of(layer, h, side).bits == 0) continue;
        for (const LearnedPage& at : group.pages) {
          const TrellisParameters p =
              read_parameters(shape_of(layer, h, side), page_of(group, at, layer, h, side));
          for (int c = 0; c < d; ++c)
            squares += std::pow(std::ldexp(units_of_mean(p.means[c], p.step, 10), -10), 2);
          const GainUnits gains = gain_units(1, p.loudest, 10);
          for (const std::uint8_t code : p.gains)
            squares += std::pow(std::ldexp(gains.units[code], -10), 2) * d / kPageTokens;
          n += static_cast<std::size_t>(d);
        }
      }
      exponent = exponent_for(n > 0 ? std::sqrt(squares / static_cast<double>(n)) : 1, 0);
      std::vector<double> sums(static_cast<std::size_t>(g_.kv_heads(layer)) * d), sums2(sums.size());
      double rows = 0, widest = 0;
      for (int h = 0; h < g_.kv_heads(layer); ++h) {
        rows = 0;
        for_each_row(group, layer, h, side, [&](int token, const std::int32_t* row) {
          if (token < kFirstTokens) return;
          ++rows;
          for (int c = 0; c < d; ++c) {
            sums[h * d + c] += row[c];
            sums2[h * d + c] += static_cast<double>(row[c]) * row[c];
          }
        });
        for (int c = 0; c < d && rows > 0; ++c)
          widest = std::max(widest, sums2[h * d + c] / rows - std::pow(sums[h * d + c] / rows, 2));
      }
      const std::int32_t coarse = exponent;
      exponent = exponent_for(std::sqrt(widest), coarse);
      for (int h = 0; h < g_.kv_heads(layer); ++h) {
        const TrellisShape shape = shape_of(layer, h, side);
        if (shape.bits == 0) continue;
        HeadPredictor& head = of_layer.head(side, h);
        head.offsets.resize(d);
        for (int c = 0; c < d; ++c)
          head.offsets[c] = static_cast<std::int32_t>(
              std::clamp<double>(std::ldexp(sums[h * d + c] / std::max(rows, 1.0), exponent - coarse),
                                 -kLargestUnits, kLargestUnits));
        head.usual_gain = usual_gain(group, layer, h, side, exponent);
      }
    }
  }

  // Chooses the exponent that scales this deviation to the size that inputs are designed for. The deviation
  // is given in units of 2^-now.
  static std::int32_t exponent_for(double deviation, std::int32_t now) {
    if (!(deviation > 0)) return now;
    return std::clamp(now + static_cast<int>(std::floor(std::log2(kLargestDeviation / deviation))),
                      -kMaxExponent, kMaxExponent);
  }

  std::int32_t usual_gain(const GroupPages& group, int layer, int h, Side side, int exponent) const {
    if (group.pages.empty()) return static_cast<std::int32_t>(kLargestDeviation);
    const TrellisShape shape = shape_of(layer, h, side);
    double sum = 0;
    for (const LearnedPage& at : group.pages) {
      const TrellisParameters p = read_parameters(shape, page_of(group, at, layer, h, side));
      const GainUnits gains = gain_units(shape.bits, p.loudest, exponent);
      for (const std::uint8_t code : p.gains) sum += std::log(std::max(1, gains.units[code]));
    }
    return std::max(1, static_cast<std::int32_t>(
                           std::exp(sum / (static_cast<double>(group.pages.size()) * kPageTokens))));
  }

  // Writes the inputs of a layer's side into columns [first, first + heads * d) of rows of length `stride`.
  void fill_inputs(const GroupPages& group, int layer, Side side, int first, int stride,
                   std::vector<float>& rows) const {
    const int d = g_.dim(layer);
    for (int h = 0; h < g_.kv_heads(layer); ++h) {
      const HeadPredictor& head = predictor_.layers[layer].head(side, h);
      std::size_t i = 0;
      for_each_row(group, layer, h, side, [&](int token, const std::int32_t* row) {
        float* to = &rows[i++ * stride + first + static_cast<std::size_t>(h) * d];
        for (int c = 0; c < d; ++c)
          to[c] = token < kFirstTokens ? 0.0F : static_cast<float>(input_of(row[c], head.offsets[c]));
      });
    }
  }

  void fit(const GroupPages& group, int i) {
    const int layer = group.layers[i], before = before_[layer], d = g_.dim(layer);
    const int own = g_.kv_heads(layer) * d, older = before < 0 ? 0 : g_.kv_heads(before) * g_.dim(before);
    const int n = 2 * older + 2 * own;
    const auto n_rows = static_cast<int>(group.pages.size()) * kPageTokens;
    std::vector<float> rows(static_cast<std::size_t>(n_rows) * n, 0.0F),
        squares(static_cast<std::size_t>(n) * n);
    if (before >= 0) {
      fill_inputs(group, before, Side::key, 0, n, rows);
      fill_inputs(group, before, Side::value, older, n, rows);
    }
    fill_inputs(group, layer, Side::key, 2 * older, n, rows);
    fill_inputs(group, layer, Side::value, 2 * older + own, n, rows);
    if (n_rows > 0)
      gemm(n, n, n_rows, transposed(rows.data(), n), row_major(rows.data(), n), /*accumulate=*/false,
           squares.data(), n);
    std::vector<double> factor;
    std::vector<int> columns;
    for (int h = 0; h < g_.kv_heads(layer); ++h) {
      const HeadInputs inputs = head_inputs(g_, before, layer, h, Side::value);
      const std::vector<int> wanted = columns_of(inputs, older);
      if (wanted != columns) {
        columns = wanted;
        factor = factor_of(squares, n, columns);
      }
      for (const Side side : kSides) {
        if (shape_of(layer, h, side).bits == 0) continue;
        const int n_inputs = head_inputs(g_, before, layer, h, side).n();
        HeadPredictor& head = predictor_.layers[layer].head(side, h);
        head.weights.resize(static_cast<std::size_t>(d) * n_inputs);
        head.multipliers.resize(d);
        const int first = 2 * older + (side == Side::value ? own : 0) + h * d;
        std::vector<double> x(n_inputs);
        for (int c = 0; c < d; ++c) {
          for (int k = 0; k < n_inputs; ++k)
            x[k] = squares[static_cast<std::size_t>(columns[k]) * n + first + c];
          solve(factor, static_cast<int>(columns.size()), n_inputs, x);
          set_weights(x, head, c);
        }
      }
    }
  }

  static std::vector<int> columns_of(const HeadInputs& inputs, int older) {
    std::vector<int> columns;
    const auto add = [&](const ChannelRun& run, int first) {
      for (int c = 0; c < run.n; ++c) columns.push_back(first + run.first + c);
    };
    add(inputs.k_before, 0);
    add(inputs.v_before, older);
    add(inputs.k_own, 2 * older);
    return columns;
  }

  static std::vector<double> factor_of(const std::vector<float>& squares, int n,
                                       const std::vector<int>& columns) {
    const int size = static_cast<int>(columns.size());
    std::vector<double> factor(static_cast<std::size_t>(size) * size);
    double trace = 0;
    for (const int c : columns) trace += squares[static_cast<std::size_t>(c) * n + c];
    const double penalty = kPenalty * trace / std::max(1, size) + 1;
    for (int r = 0; r < size; ++r)
      for (int c = 0; c <= r; ++c)
        factor[static_cast<std::size_t>(r) * size + c] =
            squares[static_cast<std::size_t>(columns[r]) * n + columns[c]] + (r == c ? penalty : 0);
    factorize(factor, size);
    return factor;
  }

  static void set_weights(const std::vector<double>& x, HeadPredictor& head, int channel) {
    double largest = 0;
    for (const double w : x) largest = std::max(largest, std::abs(w));
    const double step = largest > 0 ? std::min(largest, 100.0) / kWeightSteps : 1;
    std::int16_t* weights = head.weights.data() + static_cast<std::ptrdiff_t>(channel) * std::ssize(x);
    for (std::size_t k = 0; k < x.size(); ++k)
      weights[k] =
          static_cast<std::int16_t>(std::clamp<long>(std::lround(x[k] / step), -kWeightSteps, kWeightSteps));
    head.multipliers[channel] =
        static_cast<std::int32_t>(std::lround(std::ldexp(step, kInputShift + kMultiplierBits)));
  }

  // Fits how the channels of a head predict each other and which deviations remain. Both come from the
  // prediction errors of all pages.
  void fit_rest(const GroupPages& group) {
    for (const int layer : group.layers) {
      for (int h = 0; h < g_.kv_heads(layer); ++h)
        for (const Side side : kSides) {
          HeadPredictor& head = predictor_.layers[layer].head(side, h);
          head.follow.resize(static_cast<std::size_t>(g_.dim(layer)) * g_.dim(layer), 0);
        }
    }
    const PageLayout layout(plan_, group.layers);
    std::vector<std::vector<float>> squares(2 * static_cast<std::size_t>(g_.n_all_kv_heads()));
    PagePrediction prediction(plan_, predictor_);
    for (const LearnedPage& at : group.pages) {
      prediction.begin(at.page);
      int first = 0;
      for (const int layer : group.layers) {
        prediction.begin_layer(before_[layer], layer);
        for (const Side side : kSides) {
          for (int h = 0; h < g_.kv_heads(layer); ++h) {
            if (shape_of(layer, h, side).bits == 0) continue;
            add_surprises(at, layer, h, side, at.entry + layout.offset(first + h, side), prediction,
                          squares[2 * g_.head_index(layer, h) + static_cast<int>(side)]);
          }
        }
        first += g_.kv_heads(layer);
      }
    }
    const auto n = static_cast<double>(group.pages.size()) * kPageTokens;
    for (const int layer : group.layers) {
      for (int h = 0; h < g_.kv_heads(layer); ++h) {
        for (const Side side : kSides) {
          if (shape_of(layer, h, side).bits == 0) continue;
          HeadPredictor& head = predictor_.layers[layer].head(side, h);
          if (n > 0)
            set_rest(squares[2 * g_.head_index(layer, h) + static_cast<int>(side)], n, g_.dim(layer), head);
          else
            head.deviations.assign(g_.dim(layer), static_cast<std::int32_t>(kLargestDeviation));
        }
      }
    }
  }

  void add_surprises(const LearnedPage& at, int layer, int h, Side side, const std::byte* bytes,
                     PagePrediction& prediction, std::vector<float>& squares) const {
    const TrellisShape shape = shape_of(layer, h, side);
    const int d = shape.d;
    const HeadPredictor& head = predictor_.layers[layer].head(side, h);
    std::vector<std::int32_t> expected(static_cast<std::size_t>(kPageTokens) * d);
    prediction.predict(h, side, expected.data());
    PageValues page;
    const int exponent = predictor_.layers[layer].exponents[static_cast<int>(side)];
    read_values(shape, exponent, bytes, page);
    std::vector<float> surprises(expected.size(), 0.0F);
    for (int c = 0; c < d; ++c) {
      double average = 0;
      for (int t = 0; t < kPageTokens; ++t) average += expected[static_cast<std::size_t>(t) * d + c];
      average /= kPageTokens;
      const double mean = units_of_mean(page.parameters.means[c], page.parameters.step, exponent);
      for (int t = at.page == 0 ? kFirstTokens : 0; t < kPageTokens; ++t) {
        const std::size_t i = static_cast<std::size_t>(t) * d + c;
        const double gain = std::max(1, page.gains.units[page.parameters.gains[t]]);
        surprises[i] = static_cast<float>(((page.values[i] - mean) - (expected[i] - average)) *
                                          std::sqrt(head.usual_gain / gain));
      }
    }
    const bool is_first = squares.empty();
    squares.resize(static_cast<std::size_t>(d) * d);
    gemm(d, d, kPageTokens, transposed(surprises.data(), d), row_major(surprises.data(), d), !is_first,
         squares.data(), d);
    prediction.tell(h, side, page.values.data());
  }

  static void set_rest(const std::vector<float>& squares, double n, int d, HeadPredictor& head) {
    std::vector<double> factor(squares.size());
    double trace = 0;
    for (int c = 0; c < d; ++c) trace += squares[static_cast<std::size_t>(c) * d + c] / n;
    for (int r = 0; r < d; ++r)
      for (int c = 0; c <= r; ++c)
        factor[static_cast<std::size_t>(r) * d + c] =
            squares[static_cast<std::size_t>(r) * d + c] / n + (r == c ? kPenalty * trace / d + 1e-3 : 0);
    factorize(factor, d);
    head.deviations.resize(d);
    for (int i = 0; i < d; ++i) {
      const double deviation = factor[static_cast<std::size_t>(i) * d + i];
      head.deviations[i] =
          static_cast<std::int32_t>(std::clamp<double>(std::ceil(deviation), 1, kLargestUnits));
      for (int j = i + 1; j < d; ++j)
        head.follow[static_cast<std::size_t>(i) * d + j] = static_cast<std::int16_t>(std::clamp<long>(
            std::lround(std::ldexp(factor[static_cast<std::size_t>(j) * d + i] / deviation, kFollowBits)),
            -32767, 32767));
    }
  }

  const Plan& plan_;
  const Geometry& g_;
  int n_threads_;
  std::vector<int> before_;
  std::vector<GroupPages> groups_;
  Predictor predictor_;
};

}  // namespace

Result<Predictor> learn_predictor(const Plan& plan, const PredictorText& text, int n_threads) {
  return Learner(plan, text, n_threads).learn();
}

}  // namespace kvant
