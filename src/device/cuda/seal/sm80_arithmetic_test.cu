// Tests computations for which kernels for sm_80 have code of their own. The tests compare the results with
// definitions.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "device/cuda/seal/seal_vectors.cuh"
#include "device/cuda/test/device_memory.h"

namespace kvant::cuda {
namespace {

bool have_no_gpu() {
  int n = 0;
  return cudaGetDeviceCount(&n) != cudaSuccess || n == 0;
}

// Multiplies 16 vectors a[16][kAlong] by centroids b[256][kAlong] with a warp. The result is
// products[16][256].
template <int Channels>
__global__ void multiply(const __half* a, const __half* b, __half* products) {
  using Row = CentroidRow<Channels>;
  constexpr int kAlong = 8 * Row::kMatrices;
  __shared__ __align__(128) __half rows[Row::bytes(kBlockCentroids) / 2];
  for (int i = static_cast<int>(threadIdx.x); i < kBlockCentroids * kAlong; i += kLanes)
    rows[Row::at(i / kAlong, i % kAlong)] = b[i];
  __syncwarp();
  const int g = static_cast<int>(threadIdx.x) / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto pair = [&](int row, int k) {
    return *reinterpret_cast<const std::uint32_t*>(a + row * kAlong + k);
  };
  std::uint32_t vectors[4] = {pair(g, 2 * t), pair(g + 8, 2 * t), 0, 0};
  if (kAlong == 16) {
    vectors[2] = pair(g, kAlong - 8 + 2 * t);
    vectors[3] = pair(g + 8, kAlong - 8 + 2 * t);
  }
  std::uint32_t d[64];
  multiply_16_by_256<kAlong>(d, vectors, rows, Row::kMatrixBytes, Row::kStride);
  for (int j = 0; j < 32; ++j) {
    for (int row = 0; row < 2; ++row)
      *reinterpret_cast<std::uint32_t*>(products + (g + 8 * row) * kBlockCentroids + 8 * j + 2 * t) =
          d[2 * j + row];
  }
}

template <int Channels>
void expect_products() {
  constexpr int kAlong = 8 * CentroidRow<Channels>::kMatrices;
  // The products of these numbers are exact.
  const auto number = [](int i) { return (i * 37 + i / 11) % 17 - 8; };
  std::vector<__half> a, b;
  for (int i = 0; i < 16 * kAlong; ++i) a.push_back(__float2half(static_cast<float>(number(i))));
  for (int i = 0; i < kBlockCentroids * kAlong; ++i)
    b.push_back(__float2half(static_cast<float>(number(i + 5))));
  const DeviceArray<__half> device_a(a), device_b(b), device_products(16 * kBlockCentroids);
  multiply<Channels><<<1, kLanes>>>(device_a.get(), device_b.get(), device_products.get());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<__half> products = device_products.read();
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < kBlockCentroids; ++column) {
      int sum = 0;
      for (int k = 0; k < kAlong; ++k) sum += number(row * kAlong + k) * number(column * kAlong + k + 5);
      ASSERT_EQ(__half2float(products[row * kBlockCentroids + column]), static_cast<float>(sum))
          << row << ", " << column;
    }
  }
}

TEST(Sm80Arithmetic, MultipliesAWarpsVectorsByCentroids) {
  if (have_no_gpu()) GTEST_SKIP() << "no GPU";
  expect_products<4>();
  expect_products<8>();
}

// Converts every code. The lower byte of the word holds another code.
__global__ void convert_e4m3(float2* values) {
  const std::uint32_t code = threadIdx.x;
  values[code] = unpack_half2(half2_from_e4m3(code << 8 | (code ^ 0x81)));
}

TEST(Sm80Arithmetic, ConvertsE4m3) {
  if (have_no_gpu()) GTEST_SKIP() << "no GPU";
  const DeviceArray<float2> device_values(256);
  convert_e4m3<<<1, 256>>>(device_values.get());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto definition = [](int code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return (code & 128) != 0 ? -size : size;
  };
  const std::vector<float2> values = device_values.read();
  for (int code = 0; code < 256; ++code) {
    if ((code & 127) != 127) EXPECT_EQ(values[code].y, definition(code)) << code;  // the test excludes NaN
    if ((code & 127) != 126) EXPECT_EQ(values[code].x, definition(code ^ 0x81)) << code;
  }
}

__global__ void take_maxima(const std::uint32_t* pairs, std::uint32_t* maxima) {
  maxima[threadIdx.x] = max_u16x2(pairs[2 * threadIdx.x], pairs[2 * threadIdx.x + 1]);
}

TEST(Sm80Arithmetic, TakesMaximaOfHalfWords) {
  if (have_no_gpu()) GTEST_SKIP() << "no GPU";
  const std::vector<std::uint32_t> pairs = {0x00010002, 0x00020001, 0xffff0000, 0x7fff8000,
                                            0x80007fff, 0x7fff8000, 7,          7};
  const DeviceArray<std::uint32_t> device_pairs(pairs), device_maxima(4);
  take_maxima<<<1, 4>>>(device_pairs.get(), device_maxima.get());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(device_maxima.read(), (std::vector<std::uint32_t>{0x00020002, 0xffff8000, 0x80008000, 7}));
}

}  // namespace
}  // namespace kvant::cuda
