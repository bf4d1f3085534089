#include "model/matrix_product.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "model/weight_codes.h"

namespace kvant {
namespace {

// Problem holds a weight [n_in, n_out] of `type`, activations [n_in, n_rows] and their product.
class Problem {
 public:
  Problem(ggml_type type, int n_in, int n_out, int n_rows)
      : context_(ggml_init({16 << 20, nullptr, false}), ggml_free),
        buffer_(ggml_backend_cpu_buffer_from_ptr(ggml_get_mem_buffer(context_.get()), 16 << 20),
                ggml_backend_buffer_free),
        weight_(ggml_new_tensor_2d(context_.get(), type, n_in, n_out)),
        x_(ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, n_in, n_rows)) {
    weight_->buffer = buffer_.get();
    std::mt19937 random(n_in + n_out);
    std::normal_distribution<float> normal;
    std::vector<float> values(ggml_nelements(weight_));
    for (float& v : values) v = normal(random);
    dequantized_ = values;
    if (type == GGML_TYPE_F32) {
      std::copy(values.begin(), values.end(), static_cast<float*>(weight_->data));
    } else {
      ggml_quantize_chunk(type, values.data(), weight_->data, 0, n_out, n_in, nullptr);
      ggml_get_type_traits(type)->to_float(weight_->data, dequantized_.data(), ggml_nelements(weight_));
    }
    for (std::int64_t i = 0; i < ggml_nelements(x_); ++i) static_cast<float*>(x_->data)[i] = normal(random);
  }

  // Returns rows [first, first + n_rows) of the product [n_out, n_rows].
  std::vector<float> product(int first, int n_rows, int n_threads) {
    MatrixProduct products(n_threads);
    ggml_tensor* x = ggml_view_2d(context_.get(), x_, x_->ne[0], n_rows, x_->nb[1], first * x_->nb[1]);
    std::vector<float> y(weight_->ne[1] * n_rows);
    std::vector<ggml_cgraph*> graphs;
    for (int thread = 0; thread < n_threads; ++thread) {
      ggml_tensor* part = products.multiply(context_.get(), weight_, x, thread);
      part->data = y.data();
      graphs.push_back(ggml_new_graph(context_.get()));
      ggml_build_forward_expand(graphs.back(), part);
    }
    run_team(n_threads, [&](const Team& team) {
      ggml_cplan plan = ggml_graph_plan(graphs[team.index()], /*n_threads=*/1, nullptr);
      EXPECT_EQ(ggml_graph_compute(graphs[team.index()], &plan), GGML_STATUS_SUCCESS);
    });
    return y;
  }

  // Expected is the product of one row and one weight row in double precision, with its tolerance.
  // Activations are rounded to 16 bits of the largest of each 32 (code_gemm.h). A rounding error is uniform
  // over one unit, with variance unit^2 / 12. The tolerance is 6 standard deviations, plus 1e-6 of the terms
  // for F32.
  struct Expected {
    double value, allowed;
  };
  Expected expected(std::int64_t row, std::int64_t o) const {
    const bool rounds = has_code_blocks(weight_);
    const std::int64_t n = x_->ne[0];
    const float* x = static_cast<const float*>(x_->data) + row * n;
    const float* w = dequantized_.data() + o * n;
    double sum = 0, terms = 0, variance = 0;
    for (std::int64_t block = 0; block < n; block += kCodeBlockSize) {
      double largest = 0, squares = 0;
      for (std::int64_t i = block; i < std::min(block + kCodeBlockSize, n); ++i) {
        const double term = static_cast<double>(x[i]) * w[i];
        sum += term;
        terms += std::abs(term);
        largest = std::max(largest, static_cast<double>(std::abs(x[i])));
        squares += static_cast<double>(w[i]) * w[i];
      }
      const double unit = largest / 32512;
      if (rounds) variance += squares * unit * unit / 12;
    }
    return {sum, 6 * std::sqrt(variance) + 1e-6 * terms};
  }

  std::int64_t n_rows() const { return x_->ne[1]; }
  std::int64_t n_out() const { return weight_->ne[1]; }
  const ggml_tensor* weight() const { return weight_; }

 private:
  std::unique_ptr<ggml_context, decltype(&ggml_free)> context_;
  std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)> buffer_;
  ggml_tensor* weight_;
  ggml_tensor* x_;
  std::vector<float> dequantized_;
};

// Some n_out and n_rows fill whole blocks, and others do not.
TEST(MatrixProduct, IsTheProductOfTheDequantizedWeights) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                               GGML_TYPE_Q8_0, GGML_TYPE_Q6_K}) {
    for (const int n_in : {256, 512}) {
      for (const int n_out : {7, 96, 130}) {
        Problem problem(type, n_in, n_out, 61);
        const std::vector<float> y = problem.product(0, 61, 1);
        ASSERT_EQ(std::ssize(y), problem.n_rows() * problem.n_out());
        for (std::int64_t row = 0; row < problem.n_rows(); ++row) {
          for (std::int64_t o = 0; o < problem.n_out(); ++o) {
            const auto [value, allowed] = problem.expected(row, o);
            ASSERT_NEAR(y[row * problem.n_out() + o], value, allowed)
                << ggml_type_name(type) << " " << n_in << " x " << n_out << " at " << row << ", " << o;
          }
        }
      }
    }
  }
}

TEST(MatrixProduct, GivesARowTheSameBitsInAnyBatchAndOnAnyNumberOfThreads) {
  constexpr int kRows = 700;  // more rows than one piece of work has
  for (const ggml_type type :
       {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0}) {
    Problem problem(type, 544, 130, kRows);
    const std::vector<float> all = problem.product(0, kRows, 1);
    EXPECT_EQ(problem.product(0, kRows, 3), all);
    for (const auto& [first, n] : {std::pair(0, 128), std::pair(128, 33), std::pair(650, 50)}) {
      const std::vector<float> some = problem.product(first, n, 1);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * 130)) << first;
    }
  }
}

TEST(MatrixProduct, LeavesSmallBatchesAndRepackedWeightsToGgml) {
  EXPECT_FALSE(MatrixProduct::is_batch(MatrixProduct::kGemmRows - 1));
  EXPECT_TRUE(MatrixProduct::is_batch(MatrixProduct::kGemmRows));
  Problem problem(GGML_TYPE_F32, 64, 32, 8);
  EXPECT_TRUE(MatrixProduct::takes(problem.weight()));
  ggml_tensor repacked = *problem.weight();
  repacked.buffer = nullptr;
  EXPECT_FALSE(MatrixProduct::takes(&repacked));
}

}  // namespace
}  // namespace kvant
