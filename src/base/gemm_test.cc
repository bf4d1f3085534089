#include "base/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/float16.h"
#include "base/gemm_kernels.h"
#include "base/processor_features.h"

namespace kvant {
namespace {

std::vector<float> random_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

float at(const GemmOperand& x, int row, int col) {
  return x.data[row * x.row_stride + col * x.col_stride];
}

// Compares c with sums in double precision.
void expect_product(int m, int n, int k, const GemmOperand& a, const GemmOperand& b,
                    const std::vector<float>& before, const std::vector<float>& c, int stride) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = before[i * stride + j], magnitude = 1;
      for (int p = 0; p < k; ++p) {
        const double term = static_cast<double>(at(a, i, p)) * at(b, p, j);
        sum += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(c[i * stride + j], sum, 1e-6 * magnitude)
          << m << " x " << n << " x " << k << ": " << i << ", " << j;
    }
  }
}

TEST(Gemm, IsTheProductInAnyShapeAndOrder) {
  for (const int m : {1, 3, 13, 30}) {
    for (const int n : {1, 31, 32, 70}) {
      for (const int k : {0, 1, 6, 64, 400, 801}) {
        const std::vector<float> a = random_values(m * (k + 3), 1), b = random_values((n + 2) * (k + 5), 2);
        for (const GemmOperand& left : {row_major(a.data(), k + 3), transposed(a.data(), m)}) {
          for (const GemmOperand& right : {row_major(b.data(), n + 2), transposed(b.data(), k + 5)}) {
            const int stride = n + 1;
            const std::vector<float> before = random_values(m * stride, 3);
            std::vector<float> c = before;
            gemm(m, n, k, left, right, /*accumulate=*/true, c.data(), stride);
            expect_product(m, n, k, left, right, before, c, stride);
            for (int i = 0; i < m; ++i)
              ASSERT_EQ(c[i * stride + n], before[i * stride + n]) << "beside the product";
            c = before;
            gemm(m, n, k, left, right, /*accumulate=*/false, c.data(), stride);
            expect_product(m, n, k, left, right, std::vector<float>(c.size()), c, stride);
          }
        }
      }
    }
  }
}

TEST(Gemm, GivesARowTheSameBitsWhateverIsBesideIt) {
  constexpr int kRows = 40, kCols = 50, kDepth = 500;
  const std::vector<float> a = random_values(kRows * kDepth, 4), b = random_values(kCols * kDepth, 5);
  std::vector<float> all(kRows * kCols), one(kCols);
  gemm(kRows, kCols, kDepth, row_major(a.data(), kDepth), transposed(b.data(), kDepth), false, all.data(),
       kCols);
  for (int row = 0; row < kRows; ++row) {
    gemm(1, kCols, kDepth, row_major(a.data() + row * kDepth, kDepth), transposed(b.data(), kDepth), false,
         one.data(), kCols);
    for (int j = 0; j < kCols; ++j) ASSERT_EQ(one[j], all[row * kCols + j]) << row << ", " << j;
  }
}

TEST(Gemm, WithAPackedMatrixIsTheSame) {
  constexpr int kRows = 70;
  for (const int n : {1, 32, 75}) {
    for (const int k : {1, 64, 801}) {
      const std::vector<float> a = random_values(kRows * k, 1), b = random_values(n * k, 2);
      for (const GemmOperand& right : {row_major(b.data(), n), transposed(b.data(), k)}) {
        PackedMatrix packed;
        packed.resize(k, n);
        for (int part = packed.n_parts() - 1; part >= 0; --part) packed.pack(right, part);
        for (const int columns : {n, (n + 1) / 2}) {
          std::vector<float> expected = random_values(kRows * n, 3), got = expected;
          gemm(kRows, columns, k, row_major(a.data(), k), right, /*accumulate=*/true, expected.data(), n);
          gemm(kRows, columns, row_major(a.data(), k), packed, /*accumulate=*/true, got.data(), n);
          ASSERT_EQ(got, expected) << n << ", " << k << ", " << columns;
        }
      }
    }
  }
}

// bfloat16 numbers and their products are exact in F32.
TEST(Gemm, InBfloat16IsTheProductOfRoundedNumbers) {
  if (fastest_gemm_precision() != GemmPrecision::bf16) GTEST_SKIP() << "this processor has no such products";
  const auto rounded = [](std::vector<float> values) {
    for (float& v : values) v = float_from_bf16(bf16_from_float(v));
    return values;
  };
  for (const int m : {1, 17, 140}) {
    for (const int n : {1, 16, 75}) {
      for (const int k : {1, 2, 33, 801, 1600}) {
        const int a_stride = k + 3;
        const std::vector<float> a = random_values(m * a_stride, 1), b = random_values(n * k, 2);
        const std::vector<float> a16 = rounded(a), b16 = rounded(b);
        for (const bool turned : {false, true}) {
          const auto operand = [&](const std::vector<float>& of) {
            return turned ? transposed(of.data(), k) : row_major(of.data(), n);
          };
          PackedMatrix packed;
          packed.resize(k, n, GemmPrecision::bf16);
          for (int part = packed.n_parts() - 1; part >= 0; --part) packed.pack(operand(b), part);
          const std::vector<float> before = random_values(m * n, 3);
          std::vector<float> c = before;
          gemm(m, n, row_major(a.data(), a_stride), packed, /*accumulate=*/true, c.data(), n);
          expect_product(m, n, k, row_major(a16.data(), a_stride), operand(b16), before, c, n);
          gemm(m, n, row_major(a.data(), a_stride), packed, /*accumulate=*/false, c.data(), n);
          expect_product(m, n, k, row_major(a16.data(), a_stride), operand(b16), std::vector<float>(c.size()),
                         c, n);
          std::vector<float> part = before;
          const int columns = (n + 1) / 2;
          gemm(1, columns, row_major(a.data() + (m - 1) * a_stride, a_stride), packed, /*accumulate=*/false,
               part.data(), n);
          for (int i = 0; i < n; ++i)
            ASSERT_EQ(part[i], i < columns ? c[(m - 1) * n + i] : before[i]) << m << " " << n << " " << k;
        }
      }
    }
  }
}

std::vector<const GemmKernel*> kernels_that_run_here() {
  std::vector<const GemmKernel*> kernels{&gemm_kernel_portable()};
#if defined(__x86_64__)
  const ProcessorFeatures& has = processor_features();
  if (has.avx2 && has.fma) kernels.push_back(&gemm_kernel_avx2());
  if (has.avx512) kernels.push_back(&gemm_kernel_avx512());
#endif
  return kernels;
}

TEST(GemmKernels, MultiplyStripsOfAnyHeight) {
  constexpr int kDepth = 9;
  for (const GemmKernel* kernel : kernels_that_run_here()) {
    ASSERT_LE(kernel->panel, kMaxGemmPanel);
    for (int m = 1; m <= 40; ++m) {
      for (const int n : {1, kernel->panel - 1, kernel->panel}) {
        const std::vector<float> a = random_values(m * kDepth, m),
                                 b = random_values(kDepth * kernel->panel, n);
        const std::vector<float> before = random_values(m * n, 6);
        std::vector<float> c = before;
        kernel->multiply(m, n, kDepth, a.data(), kDepth, 1, b.data(), kernel->panel, /*accumulate=*/true,
                         c.data(), n);
        SCOPED_TRACE(kernel->name);
        expect_product(m, n, kDepth, row_major(a.data(), kDepth), row_major(b.data(), kernel->panel), before,
                       c, n);
      }
    }
  }
}

}  // namespace
}  // namespace kvant
