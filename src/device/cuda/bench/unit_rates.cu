// Measures rates of GPU instructions that decide how pages are laid out and decoded. The rates are those of
// tensor-core products 8 columns wide, permutes, table look-ups, and bulk copies into shared memory, which
// warps start on their own. The program also checks whether half-precision subnormals are exact factors, and
// prints one line for each result.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "device/cuda/common/ptx.cuh"

namespace kvant::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRounds = 512;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

enum class Unit { hmma, imma, permute, transpose, pair_look_up, exponential };

__device__ __forceinline__ void imma(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                     std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Issues 8 independent operations a round in every warp, so latency does not limit the rate.
template <Unit U>
__global__ void __launch_bounds__(kWarps * 32)
    rate_kernel(const std::uint32_t* in, std::uint32_t* out, long long* clocks) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < 8192; i += blockDim.x)
    reinterpret_cast<std::uint32_t*>(shared)[i] = in[i % 64] * i;
  float f[8][4] = {};
  int n[8][4] = {};
  std::uint32_t x[8];
  for (int i = 0; i < 8; ++i) x[i] = in[i] + threadIdx.x * 977;
  std::uint32_t a[4] = {in[8], in[9], in[10], in[11]};
  __syncthreads();
  const long long start = clock64();
#pragma unroll 4
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (U == Unit::hmma) mma_f16(f[i], a[0], a[1], a[2], a[3], x[0], x[1]);
      if constexpr (U == Unit::imma) imma(n[i], a, x[0], x[1]);
      if constexpr (U == Unit::permute)
        asm volatile("prmt.b32 %0, %0, %1, %2;" : "+r"(x[i]) : "r"(a[0]), "r"(a[1]));
      if constexpr (U == Unit::transpose) x[i] = transpose_8x8(x[i]);
      if constexpr (U == Unit::exponential) f[i][0] = exp2_fast(f[i][0]);
      if constexpr (U == Unit::pair_look_up)
        x[i] ^= *reinterpret_cast<const std::uint32_t*>(shared + ((x[i] >> 9) & 0x7f80 | lane * 4));
    }
  }
  const long long stop = clock64();
  std::uint32_t sum = 0;
  for (int i = 0; i < 8; ++i)
    sum += x[i] + __float_as_uint(f[i][0] + f[i][1] + f[i][2] + f[i][3]) + n[i][0] + n[i][3];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  if (threadIdx.x == 0) clocks[blockIdx.x] = stop - start;
}

template <Unit U>
void report_rate(const char* name, const std::uint32_t* in, std::uint32_t* out, long long* clocks) {
  check(cudaFuncSetAttribute(rate_kernel<U>, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536), name);
  rate_kernel<U><<<132, kWarps * 32, 65536>>>(in, out, clocks);
  check(cudaDeviceSynchronize(), name);
  std::vector<long long> host(132);
  check(cudaMemcpy(host.data(), clocks, 132 * 8, cudaMemcpyDeviceToHost), name);
  const double issued = 8.0 * kRounds * kWarps / 4;  // operations of each of the SM's four schedulers
  std::printf("%-32s %6.2f clocks each on one scheduler\n", name, static_cast<double>(host[60]) / issued);
}

// Sums codes times factors, where codes are bits of half-precision subnormals. A code at bit 4 p stands for
// code * 2^(4 p - 24).
__global__ void subnormal_kernel(const std::uint32_t* words, const std::uint32_t* factors, float* sums) {
  const int lane = threadIdx.x;
  float c[4] = {};
  const std::uint32_t w = words[lane];
  mma_f16(c, w & 0x000f000f, w & 0x00f000f0, (w >> 8) & 0x000f000f, (w >> 8) & 0x00f000f0, factors[lane * 2],
          factors[lane * 2 + 1]);
  for (int i = 0; i < 4; ++i) sums[lane * 4 + i] = c[i] * (i < 2 ? 0x1p24F : 0x1p20F);
}

void report_subnormals(std::uint32_t* device, float* sums) {
  std::srand(3);
  double worst = 0;
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<std::uint32_t> words(96);
    for (int i = 0; i < 32; ++i) words[i] = static_cast<std::uint32_t>(std::rand()) * 2654435761U;
    const auto factor = [](int g, int k) {
      return static_cast<float>((g * 37 + k * 101) % 2048 - 1024) / 64;
    };
    for (int lane = 0; lane < 32; ++lane) {
      for (int half = 0; half < 2; ++half) {
        const int k = lane % 4 * 2 + half * 8;
        const __half2 pair = __floats2half2_rn(factor(lane / 4, k), factor(lane / 4, k + 1));
        words[32 + lane * 2 + half] = *reinterpret_cast<const std::uint32_t*>(&pair);
      }
    }
    check(cudaMemcpy(device, words.data(), 384, cudaMemcpyHostToDevice), "copy");
    subnormal_kernel<<<1, 32>>>(device, device + 32, sums);
    std::vector<float> got(128);
    check(cudaMemcpy(got.data(), sums, 512, cudaMemcpyDeviceToHost), "subnormals");
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4;
        const int column = lane % 4 * 2 + i % 2;
        double sum = 0;
        for (int k = 0; k < 16; ++k) {
          const std::uint32_t w = words[row * 4 + k % 8 / 2];
          const int shift = (k & 1) * 16 + (k / 8) * 8 + (i / 2) * 4;
          sum += ((w >> shift) & 15) * static_cast<double>(factor(column, k));
        }
        worst = std::max(worst, std::abs(sum - got[lane * 4 + i]));
      }
    }
  }
  std::printf("%-32s %g\n", "subnormal codes, worst error", worst);
}

// Copies data to shared memory. Every warp copies a share of the data through its own ring of `stages` slots.
__global__ void __launch_bounds__(kWarps * 32)
    copy_kernel(const unsigned char* data, long long pieces, int piece, int stages, std::uint32_t* out) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ std::uint64_t barriers[kWarps * 16];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const std::uint32_t first_barrier = shared_address(barriers + warp * 16);
  const unsigned char* ring = shared + warp * stages * piece;
  if (lane == 0)
    for (int i = 0; i < stages; ++i) barrier_init(first_barrier + 8 * i, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  const long long warps = static_cast<long long>(gridDim.x) * kWarps;
  const long long me = blockIdx.x * kWarps + warp;
  const auto start = [&](long long i) {
    const long long index = me + i * warps;
    if (lane != 0 || index >= pieces) return;
    const std::uint32_t barrier = first_barrier + 8 * static_cast<std::uint32_t>(i % stages);
    expect_bytes(barrier, piece);
    bulk_copy(shared_address(ring + i % stages * piece), data + index * piece, piece, barrier);
  };
  for (int i = 0; i < stages; ++i) start(i);
  std::uint32_t sum = 0;
  for (long long i = 0; me + i * warps < pieces; ++i) {
    barrier_wait(first_barrier + 8 * (i % stages), (i / stages) & 1);
    sum += *reinterpret_cast<const std::uint32_t*>(ring + i % stages * piece + lane * 16);
    __syncwarp();
    start(i + stages);
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

void report_copies(unsigned char* data, long long bytes, std::uint32_t* out) {
  check(cudaFuncSetAttribute(copy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 220000), "copies");
  const int shapes[][2] = {{4096, 2}, {4096, 3}, {4096, 6}, {4608, 2},
                           {4608, 4}, {8704, 1}, {8704, 2}, {8704, 3}};
  for (const auto& shape : shapes) {
    float best = 1e30F;
    for (int run = 0; run < 5; ++run) {
      cudaEvent_t start;
      cudaEvent_t stop;
      cudaEventCreate(&start);
      cudaEventCreate(&stop);
      cudaEventRecord(start);
      copy_kernel<<<132, kWarps * 32, kWarps * shape[0] * shape[1]>>>(data, bytes / shape[0], shape[0],
                                                                      shape[1], out);
      cudaEventRecord(stop);
      check(cudaDeviceSynchronize(), "copies");
      float ms = 0;
      cudaEventElapsedTime(&ms, start, stop);
      best = std::min(best, ms);
    }
    std::printf("bulk copies of %5d B, %d slots a warp  %7.0f GB/s\n", shape[0], shape[1],
                static_cast<double>(bytes) / best / 1e6);
  }
}

void report_all() {
  std::uint32_t* in;
  std::uint32_t* out;
  long long* clocks;
  unsigned char* data;
  const long long bytes = 4LL << 30;
  check(cudaMalloc(&in, 65536), "memory");
  check(cudaMalloc(&out, 1 << 20), "memory");
  check(cudaMalloc(&clocks, 4096), "memory");
  check(cudaMalloc(&data, bytes), "memory");
  check(cudaMemset(in, 0x35, 65536), "memory");
  check(cudaMemset(data, 0x5a, bytes), "memory");
  report_rate<Unit::hmma>("mma f16 m16n8k16", in, out, clocks);
  report_rate<Unit::imma>("mma s8 m16n8k32", in, out, clocks);
  report_rate<Unit::permute>("prmt", in, out, clocks);
  report_rate<Unit::transpose>("movmatrix", in, out, clocks);
  report_rate<Unit::exponential>("ex2", in, out, clocks);
  report_rate<Unit::pair_look_up>("look-up in a table per lane", in, out, clocks);
  report_subnormals(in, reinterpret_cast<float*>(out));
  report_copies(data, bytes, out);
}

}  // namespace
}  // namespace kvant::cuda

int main() {
  kvant::cuda::report_all();
}
