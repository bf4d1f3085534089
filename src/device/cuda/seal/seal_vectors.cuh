// Seals vector-quantized pages (src/format/vq.cc) by finding the nearest centroids of all sub-vectors. Tensor
// cores compute the squared distances of 64 vectors to 256 centroids at a time, as the sums of products |x -
// c|^2 / 2 = |c|^2 / 2 + |x|^2 / 2 - c.x. The distances are half-precision numbers, two per register. The
// distances that matter are small, so 11 bits are enough. A lane keeps the least distance of a cell (every
// eighth of 64 or 128 centroids) and the cell's number. All centroids of the nearest cell, and of cells that
// are equally near in half precision, are then scored again in F32 as in src/format.
//
// A CTA keeps the codebook of a head in shared memory and processes pages of that head. If codebooks are
// small, several CTAs share an SM, so some of them search while another sets up a page. If shared memory may
// be small, a large codebook is loaded in parts, once for every few of the page's vectors.
#pragma once

#include <climits>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/common/wgmma.cuh"
#include "device/cuda/seal/seal_page.cuh"

namespace kvant::cuda {

inline constexpr int kVectorThreads = 512;  // threads of all CTAs of an SM
inline constexpr int kGroupThreads = 128;   // threads that compute products together
inline constexpr int kGroupVectors = 64;    // 16 for each warp; a lane has vectors g = lane / 4 and g + 8
inline constexpr int kBlockCentroids = 256;
inline constexpr int kPartCells = 8;
// kPartCentroids is the number of centroids in a part. After each part, a lane records its least distance so
// far and the part of that distance.
template <int Channels>
inline constexpr int kPartCentroids = Channels == 2 ? 64 : 128;
template <int Channels>
inline constexpr int kCellCentroids = kPartCentroids<Channels> / kPartCells;

// CentroidRow is a row of the B operand. The row has a centroid's coordinates, |c|^2 / 2 as two halves (its
// value and the remainder), 1 and 1. Eight centroids by eight of these numbers are contiguous and form a
// matrix. After eight centroids, 16 bytes of padding put the centroids of a cell into different banks.
template <int Channels>
struct CentroidRow {
  static constexpr int kMatrices = Channels == 8 ? 2 : 1;
  static constexpr int kMatrixBytes = 128;
  static constexpr int kStride = kMatrices * kMatrixBytes + 16;  // bytes of every eight centroids
  static constexpr int kLength = Channels;  // place of |c|^2 / 2, where the A operand has a scale
  static __host__ __device__ constexpr int at(int centroid, int k) {
    return centroid / 8 * (kStride / 2) + k / 8 * 64 + centroid % 8 * 8 + k % 8;
  }
  // For vectors of 2 and 4 channels, the factors at the last eight contraction indices are 0, but products
  // read the memory after a matrix there. compute-sanitizer also assumes that 8 KB are read from the start of
  // an operand.
  static __host__ __device__ constexpr int bytes(int centroids) {
    constexpr int kOperand = kBlockCentroids * 32;
    constexpr int kBlock = kBlockCentroids / 8 * kStride;
    return centroids / kBlockCentroids * kBlock +
           (kOperand - kBlock > kMatrixBytes ? kOperand - kBlock : kMatrixBytes);
  }
};

// VectorShared is the shared memory of a CTA. IsLarge says whether the GPU has large shared memory.
template <int D, bool IsLarge>
struct alignas(128) VectorShared {
  static constexpr int kRow = D + 2;  // the padding spreads tokens over banks
  // kFetchesAhead says whether shared memory has space for the next page.
  static constexpr bool kFetchesAhead = IsLarge && D <= 128;
  __nv_bfloat16 values[kPageTokens * kRow];
  uint4 next_page[kFetchesAhead ? kPageTokens * D / 8 : 1];  // next page of the tail in its own layout
  // `page` holds the codes, which are at most 8 bits per 2 channels, and then the gains.
  std::uint32_t page[kPageTokens * (D / 2 * 8 + 16) / 32];
  // factors[token] is the scale of the centroids, divided by the token's length if lengths are stored as
  // gains.
  float factors[kPageTokens];
  float largest;   // largest |x| of the page's values times `factors`
  int next_group;  // next group of kGroupVectors vectors in the page that no thread has claimed
  // `taken` holds the group that each set of kGroupThreads threads has claimed. Even and odd turns use
  // different entries.
  int taken[kVectorThreads / kGroupThreads][2];
  float largest_coordinate;  // largest coordinate of the centroids

  // Returns two channels of a token in the scale of its comparison with centroids.
  __device__ __forceinline__ float2 values_at(int token, int channel) const {
    const float2 x =
        __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(values + token * kRow + channel));
    return {x.x * factors[token], x.y * factors[token]};
  }

  // Returns the address of the centroids, which follow this struct. The centroids are scaled by a power of
  // two that brings the largest coordinate into [1/2, 1).
  __device__ __half* centroids() { return reinterpret_cast<__half*>(this + 1); }
  // Returns how many of n centroids are loaded at a time.
  static __host__ __device__ constexpr int part_of(int n) {
    constexpr int kMost = D <= 128 ? 1024 : 256;
    return IsLarge || n < kMost ? n : kMost;
  }
  template <int Channels>
  static int bytes(int n) {
    return static_cast<int>(sizeof(VectorShared)) + CentroidRow<Channels>::bytes(part_of(n));
  }
};

// Returns the exponent e for which x / 2^e lies in [1/2, 1).
__device__ __forceinline__ int exponent_of(float x) {
  int exponent = 0;
  frexpf(x, &exponent);
  return exponent;
}

// Loads n centroids from `from` in global memory, scales them, and writes them as rows of CentroidRow.
template <int Channels, int D, bool IsLarge>
__device__ void load_centroids(VectorShared<D, IsLarge>& shared, const __half* from, int n) {
  using Row = CentroidRow<Channels>;
  const float scale = ldexpf(1, -exponent_of(shared.largest_coordinate));
  __half* rows = shared.centroids();
  for (int i = static_cast<int>(threadIdx.x); i < Row::bytes(n) / 16; i += static_cast<int>(blockDim.x))
    reinterpret_cast<uint4*>(rows)[i] = {};
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < n; c += static_cast<int>(blockDim.x)) {
    float squares = 0;
    for (int k = 0; k < Channels; ++k) {
      const float x = __half2float(from[c * Channels + k]) * scale;
      rows[Row::at(c, k)] = __float2half_rn(x);
      squares += x * x;
    }
    const __half length = __float2half_rn(0.5F * squares);
    rows[Row::at(c, Row::kLength)] = length;
    rows[Row::at(c, Row::kLength + 1)] = __float2half_rn(0.5F * squares - __half2float(length));
    rows[Row::at(c, Row::kLength + 2)] = rows[Row::at(c, Row::kLength + 3)] = __half(1);
  }
  publish_to_wgmma();
}

// Finds the largest magnitude of the coordinates in a codebook of 2^bits centroids. If all centroids fit into
// shared memory, the function also loads the centroids.
template <int Channels, int D, bool IsLarge>
__device__ void load_codebook(VectorShared<D, IsLarge>& shared, const __half* from, int bits) {
  const int n = 1 << bits;
  if (threadIdx.x == 0) shared.largest_coordinate = 0;
  __syncthreads();
  float largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n * Channels; i += static_cast<int>(blockDim.x))
    largest = fmaxf(largest, fabsf(__half2float(from[i])));
  // Magnitudes are not negative, so their bits compare like integers.
  atomicMax(reinterpret_cast<int*>(&shared.largest_coordinate), __float_as_int(largest));
  __syncthreads();
  if (shared.part_of(n) == n) load_centroids<Channels>(shared, from, n);
}

// Returns the factor of a page's distances. The factor is a power of two that keeps distances below 2^15,
// unless values are thousands of times larger than the centroids.
template <int Channels, int D, bool IsLarge>
__device__ __forceinline__ float find_unit(const VectorShared<D, IsLarge>& shared) {
  constexpr int kMax = Channels == 8 ? 11 : Channels == 4 ? 12 : 13;  // log2 of 2^15 / (2 Channels)
  return ldexpf(1, kMax - 2 * min(max(exponent_of(shared.largest), 0), 12));
}

// Loads the A operand of a warp's 16 vectors from vector `first` on. The operand has the negated vectors, and
// then the factors of the other numbers of CentroidRow, which are unit, unit, and |x|^2 / 2 in units as two
// halves.
template <int Channels, int D, bool IsLarge>
__device__ __forceinline__ void load_vectors(const VectorShared<D, IsLarge>& shared, float unit, int first,
                                             std::uint32_t (&a)[4]) {
  constexpr int kOfToken = D / Channels;
  // kUnitPair is the position of the factor `unit` among the pairs of contraction indices.
  constexpr int kUnitPair = CentroidRow<Channels>::kLength / 2 % 4;
  const int lane = threadIdx.x % kLanes;
  const int t = lane % 4;
  const std::uint32_t units = t == kUnitPair ? pack_half2(unit, unit) : 0;
  const float per_unit = 0.5F / unit;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int vector = first + lane / 4 + 8 * row;
    const float2 x = shared.values_at(vector / kOfToken, vector % kOfToken * Channels + 2 * t % Channels);
    const __half2 scaled = __floats2half2_rn(x.x * -unit, x.y * -unit);
    const float2 rounded = __half22float2(scaled);
    float squares = rounded.x * rounded.x + rounded.y * rounded.y;
#pragma unroll
    for (int step = 1; step < Channels / 2; step *= 2) squares += __shfl_xor_sync(~0U, squares, step);
    const float length = fminf(squares * per_unit, 65504.0F);
    const float upper = __half2float(__float2half_rn(length));
    const std::uint32_t others = t == kUnitPair + 1 ? pack_half2(upper, length - upper) : units;
    const auto coordinates = *reinterpret_cast<const std::uint32_t*>(&scaled);
    if constexpr (Channels == 8) {
      a[row] = coordinates;
      a[2 + row] = others;
    } else {
      a[row] = t < Channels / 2 ? coordinates : others;
      a[2 + row] = 0;
    }
  }
}

// Holds the least of the distances of two vectors that a lane has computed, and the parts in which these
// distances occurred. The halves of a word belong to even and odd centroids.
struct BestParts {
  std::uint32_t distances[2];
  int parts[2][2];
};

__device__ __forceinline__ std::uint32_t min_half2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("min.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Updates `best` with the distances of a part. Words belong alternately to vectors g and g + 8, where g is
// lane / 4, and each word has two centroids.
template <int Numbers>
__device__ __forceinline__ void take_part(const std::uint32_t* distances, int part, BestParts& best) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // Minima of floats and minima of integers use different units of the SM, which work in parallel.
    constexpr int kFloats = 2 * (Numbers / 8 + 2);
    std::uint32_t first = distances[row];
#pragma unroll
    for (int i = 2; i < kFloats; i += 2) first = min_half2(first, distances[i + row]);
    std::uint32_t least = distances[kFloats + row];
#pragma unroll
    for (int i = kFloats + 2; i < Numbers - 2; i += 4)
      least = __vimin3_s16x2(least, distances[i + row], distances[i + 2 + row]);
    least = __vimin3_s16x2(least, first, distances[Numbers - 2 + row]);
    bool upper_stays = false;
    bool lower_stays = false;
    best.distances[row] = __vibmin_s16x2(best.distances[row], least, &upper_stays, &lower_stays);
    best.parts[row][0] = lower_stays ? best.parts[row][0] : part;
    best.parts[row][1] = upper_stays ? best.parts[row][1] : part;
  }
}

template <int Channels>
__device__ __forceinline__ BestParts search_parts(const __half* centroids, int n,
                                                  const std::uint32_t (&vectors)[4]) {
  using Row = CentroidRow<Channels>;
  constexpr int kParts = kBlockCentroids / kPartCentroids<Channels>;
  constexpr int kNumbers = kPartCentroids<Channels> / 4;
  BestParts best{{0x7fff7fff, 0x7fff7fff}, {}};
#pragma unroll 1
  for (int block = 0; block < n / kBlockCentroids; ++block) {
    std::uint32_t distances[kBlockCentroids / 4];
    const __half* const rows = centroids + Row::at(block * kBlockCentroids, 0);
    if constexpr (Architecture::kWarpgroupProducts) {
      multiply_64_by_256(distances, vectors, wgmma_matrix(rows, Row::kMatrixBytes, Row::kStride));
    } else {
      multiply_16_by_256<8 * Row::kMatrices>(distances, vectors, rows, Row::kMatrixBytes, Row::kStride);
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) take_part<kNumbers>(distances + i * kNumbers, block * kParts + i, best);
  }
  return best;
}

// Holds the nearest centroid in F32 among the centroids that a lane has searched.
struct Nearest {
  float score;  // |c|^2 / 2 - c.x
  int code;
};

// Returns |c|^2 / 2 - c.x in F32 for the centroid c whose row in shared memory is `centroid`.
template <int Channels>
__device__ __forceinline__ float exact_score(const __half* centroid, const float (&x)[Channels]) {
  std::uint32_t words[5];  // coordinates, then |c|^2 / 2 as two halves
  if constexpr (Channels == 2) {
    const uint2 row = *reinterpret_cast<const uint2*>(centroid);
    words[0] = row.x;
    words[1] = row.y;
  } else {
    const uint4 row = *reinterpret_cast<const uint4*>(centroid);
    words[0] = row.x;
    words[1] = row.y;
    words[2] = row.z;
    words[3] = row.w;
  }
  if constexpr (Channels == 8)
    words[4] = *reinterpret_cast<const std::uint32_t*>(centroid + CentroidRow<Channels>::at(0, Channels));
  const auto pair = [&](int i) { return __half22float2(*reinterpret_cast<const __half2*>(&words[i])); };
  float along = 0;
#pragma unroll
  for (int k = Channels - 2; k >= 0; k -= 2) {
    const float2 c = pair(k / 2);
    along = fmaf(c.x, x[k], fmaf(c.y, x[k + 1], along));
  }
  const float2 length = pair(Channels / 2);
  return (length.x + length.y) - along;
}

// Searches this lane's quarter of the centroids of a cell.
template <int Channels>
__device__ __forceinline__ void search_cell(const __half* centroids, int cell, const float (&x)[Channels],
                                            Nearest& nearest) {
  const int first = cell / kPartCells * kPartCentroids<Channels> + cell % kPartCells +
                    static_cast<int>(threadIdx.x) % 4 * 8;
  const __half* from = centroids + CentroidRow<Channels>::at(first, 0);
#pragma unroll
  for (int i = 0; i < kCellCentroids<Channels> / 4; ++i) {
    const float score = exact_score<Channels>(from + CentroidRow<Channels>::at(32 * i, 0), x);
    if (score < nearest.score) nearest = {score, first + 32 * i};
  }
}

// CellKeys holds sort keys of the cells of a lane's two vectors. The upper half of a key is the distance, and
// the lower half the number of the cell.
struct CellKeys {
  int of[2][2];

  __device__ __forceinline__ explicit CellKeys(const BestParts& best) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int cell = best.parts[row][odd] * kPartCells + threadIdx.x % 4 * 2 + odd;
        const std::uint32_t distance = best.distances[row] << (16 * (1 - odd)) & 0xffff0000U;
        of[row][odd] = static_cast<int>(distance | cell);
      }
    }
  }
  // Removes a vector's nearest cell from the lane that has this cell. Returns the key of the cell to all four
  // lanes.
  __device__ __forceinline__ int take(int row) {
    int least = min(of[row][0], of[row][1]);
    least = min(least, __shfl_xor_sync(~0U, least, 1));
    least = min(least, __shfl_xor_sync(~0U, least, 2));
#pragma unroll
    for (int odd = 0; odd < 2; ++odd)
      if (of[row][odd] == least) of[row][odd] = INT_MAX;
    return least;
  }
  // Returns whether any lane of the warp still has cells below the limits.
  __device__ __forceinline__ bool any_within(const int (&limits)[2]) const {
    return __any_sync(~0U, min(of[0][0], of[0][1]) < limits[0] || min(of[1][0], of[1][1]) < limits[1]);
  }
};

// Finds the nearest of the loaded centroids for vectors g and g + 8 from vector `first` on, where g is lane /
// 4. Four lanes share the work for each vector.
template <int Channels, int D, bool IsLarge>
__device__ __forceinline__ void settle_codes(VectorShared<D, IsLarge>& shared, const BestParts& best,
                                             int first, Nearest (&nearest)[2]) {
  constexpr int kOfToken = D / Channels;
  constexpr int kInfinity = 0x7c00;
  const int lane = threadIdx.x % kLanes;
  float x[2][Channels];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int vector = first + lane / 4 + 8 * row;
#pragma unroll
    for (int k = 0; k < Channels; k += 2) {
      const float2 pair = shared.values_at(vector / kOfToken, vector % kOfToken * Channels + k);
      x[row][k] = pair.x;
      x[row][k + 1] = pair.y;
    }
  }
  nearest[0] = nearest[1] = {INFINITY, 0};
  CellKeys keys(best);
  int limits[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int cell = keys.take(row);
    limits[row] = min((cell >> 16) + 2, kInfinity) << 16;  // larger distances are larger in F32 too
    search_cell<Channels>(shared.centroids(), cell & 0xffff, x[row], nearest[row]);
  }
#pragma unroll 1
  while (keys.any_within(limits)) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int cell = keys.take(row);
      if (cell < limits[row]) search_cell<Channels>(shared.centroids(), cell & 0xffff, x[row], nearest[row]);
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      const float score = __shfl_xor_sync(~0U, nearest[row].score, step);
      const int code = __shfl_xor_sync(~0U, nearest[row].code, step);
      if (score < nearest[row].score || (score == nearest[row].score && code < nearest[row].code))
        nearest[row] = {score, code};
    }
  }
}

// Returns the next group of vectors for the kGroupThreads threads that compute products together. If groups
// take long, each set of threads claims one group after another. With equal shares, some sets would finish
// after three quarters of the time.
template <int D, bool IsLarge>
__device__ __forceinline__ unsigned take_group(VectorShared<D, IsLarge>& shared, bool takes_long, int turn) {
  const unsigned threads = threadIdx.x / kGroupThreads;
  if (!takes_long) return turn * (blockDim.x / kGroupThreads) + threads;
  int* const taken = &shared.taken[threads][turn % 2];
  if (threadIdx.x % kGroupThreads == 0) *taken = atomicAdd(&shared.next_group, 1);
  named_barrier(static_cast<int>(threads) + 1, kGroupThreads);
  return *taken;
}

// Stores the codes of vectors g and g + 8 from vector `first` on, where g is lane / 4.
template <int Channels, int D, bool IsLarge>
__device__ __forceinline__ void store_codes(VectorShared<D, IsLarge>& shared, int bits, PageSide side,
                                            int first, const Nearest (&nearest)[2]) {
  constexpr int kOfToken = D / Channels;
  const int lane = threadIdx.x % kLanes;
  const int row = lane % 4;
  if (row < 2) {
    const int vector = first + lane / 4 + 8 * row;
    const int token = vector / kOfToken;
    const int channel = vector % kOfToken * Channels;
    const int code = row == 0 ? nearest[0].code : nearest[1].code;
    if (bits == 8) {
      constexpr CodeLayout kBytes{CodeOrder::vectors, 8, Channels};
      reinterpret_cast<unsigned char*>(shared.page)[code_bit(kBytes, side, D, token, channel, 0) / 8] =
          static_cast<unsigned char>(code);
    } else {
      store_code<D>(shared.page, CodeLayout{CodeOrder::vectors, bits, Channels}, side, token, channel, code);
    }
  }
}

template <int D, int Channels>
inline constexpr int kGroupsOfPage = kPageTokens*(D / Channels) / kGroupVectors;

// Encodes a page and loads the codebook in parts. All threads of the CTA must call this function, because it
// contains barriers.
template <int Channels, int D, bool IsLarge>
__device__ void encode_by_parts(VectorShared<D, IsLarge>& shared, const __half* codebook, int bits,
                                PageSide side) {
  const int n = 1 << bits;
  const int part = shared.part_of(n);
  const int warp_of_group = threadIdx.x % kGroupThreads / kLanes;
  const int together = static_cast<int>(blockDim.x) / kGroupThreads;
  const float unit = find_unit<Channels>(shared);
#pragma unroll 1
  for (int begin = 0; begin < kGroupsOfPage<D, Channels>; begin += together) {
    const int group = begin + static_cast<int>(threadIdx.x) / kGroupThreads;
    const bool has_group = group < kGroupsOfPage<D, Channels>;
    const int first = (has_group ? group : 0) * kGroupVectors + 16 * warp_of_group;
    std::uint32_t vectors[4];
    load_vectors<Channels>(shared, unit, first, vectors);
    Nearest nearest[2] = {{INFINITY, 0}, {INFINITY, 0}};
#pragma unroll 1
    for (int first_centroid = 0; first_centroid < n; first_centroid += part) {
      __syncthreads();
      load_centroids<Channels>(shared, codebook + first_centroid * Channels, part);
      __syncthreads();
      const BestParts best = search_parts<Channels>(shared.centroids(), part, vectors);
      Nearest of_part[2];
      settle_codes<Channels>(shared, best, first, of_part);
#pragma unroll
      for (int row = 0; row < 2; ++row)
        if (of_part[row].score < nearest[row].score)
          nearest[row] = {of_part[row].score, of_part[row].code + first_centroid};
    }
    if (has_group) store_codes<Channels>(shared, bits, side, first, nearest);
  }
}

template <int Channels, int D, bool IsLarge>
__device__ void encode_vectors(VectorShared<D, IsLarge>& shared, int bits, PageSide side) {
  constexpr int kGroups = kGroupsOfPage<D, Channels>;
  const int warp_of_group = threadIdx.x % kGroupThreads / kLanes;
  const float unit = find_unit<Channels>(shared);
#pragma unroll 1
  for (int turn = 0;; ++turn) {
    const unsigned group = take_group(shared, 1 << bits > kBlockCentroids, turn);
    if (group >= kGroups) break;
    const int first = static_cast<int>(group % kGroups) * kGroupVectors + 16 * warp_of_group;
    std::uint32_t vectors[4];
    load_vectors<Channels>(shared, unit, first, vectors);
    const BestParts best = search_parts<Channels>(shared.centroids(), 1 << bits, vectors);
    Nearest nearest[2];
    settle_codes<Channels>(shared, best, first, nearest);
    store_codes<Channels>(shared, bits, side, first, nearest);
    __syncwarp();
  }
}

inline constexpr int kTokenThreads = 4;  // threads that measure a token together

__device__ __forceinline__ double token_sum(double x) {
  x += __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}

// Computes the factors of tokens and the largest value after applying them. Gain-shape formats divide tokens
// by their lengths.
template <int D, bool IsLarge>
__device__ void measure_tokens(VectorShared<D, IsLarge>& shared, bool has_gains) {
  const auto scale = ldexp(1.0, -exponent_of(shared.largest_coordinate));
  for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * kTokenThreads;
       i += static_cast<int>(blockDim.x)) {
    const int token = i / kTokenThreads;
    const int first = i % kTokenThreads * (D / kTokenThreads);
    double squares = 0;
    for (int channel = first; has_gains && channel < first + D / kTokenThreads; ++channel) {
      const double x = __bfloat162float(shared.values[token * VectorShared<D, IsLarge>::kRow + channel]);
      squares += x * x;
    }
    squares = token_sum(squares);
    const double length = has_gains ? sqrt(squares) : 1;
    if (i % kTokenThreads == 0) shared.factors[token] = length > 0 ? static_cast<float>(scale / length) : 0;
  }
  __syncthreads();
  float largest = 0;
#pragma unroll 4
  for (int i = 2 * static_cast<int>(threadIdx.x); i < kPageTokens * D;
       i += 2 * static_cast<int>(blockDim.x)) {
    const float2 x = shared.values_at(i / D, i % D);
    largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
  }
  for (int step = 1; step < kLanes; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
  if (threadIdx.x % kLanes == 0)
    // Magnitudes are not negative, so their bits compare like integers.
    atomicMax(reinterpret_cast<int*>(&shared.largest), __float_as_int(largest));
}

// Stores the least-squares gain of each token for the centroids that have been found. coordinate(code, k)
// returns coordinate k of a centroid.
template <int Channels, int D, bool IsLarge, class Coordinate>
__device__ void store_gains(VectorShared<D, IsLarge>& shared, const CodeLayout& layout, PageSide side,
                            const Coordinate& coordinate) {
  auto* gains =
      reinterpret_cast<__half*>(reinterpret_cast<unsigned char*>(shared.page) + code_bytes(layout, D));
  for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * kTokenThreads;
       i += static_cast<int>(blockDim.x)) {
    const int token = i / kTokenThreads;
    const int begin = i % kTokenThreads * (D / kTokenThreads);
    double along = 0;
    double squares = 0;
    for (int first = begin; first < begin + D / kTokenThreads; first += Channels) {
      const std::uint32_t code = load_code<D>(shared.page, layout, side, token, first);
#pragma unroll
      for (int k = 0; k < Channels; ++k) {
        const double c = coordinate(code, k);
        const double x = __bfloat162float(shared.values[token * VectorShared<D, IsLarge>::kRow + first + k]);
        along += x * c;
        squares += c * c;
      }
    }
    along = token_sum(along);
    squares = token_sum(squares);
    if (i % kTokenThreads == 0)
      gains[token] =
          along > 0 ? half_saturated(static_cast<float>(fmin(along / squares, 65504.0))) : __half(0);
  }
}

// Starts copying a page of the tail to shared memory. Each thread copies the pieces that it will read itself.
template <int D, bool IsLarge>
__device__ void fetch_page(VectorShared<D, IsLarge>& shared, const unsigned char* tail) {
  for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * D / 8; i += static_cast<int>(blockDim.x))
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&shared.next_page[i])),
                 "l"(tail + 16 * i)
                 : "memory");
}
__device__ __forceinline__ void wait_for_fetched_page() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Returns whether a whole codebook may be loaded. Next to the values of heads of 512 channels, there is no
// space for a whole codebook.
template <int D>
KVANT_HOST_DEVICE constexpr bool has_large_shared(bool is_large) {
  return is_large && D <= 256;
}

template <int Channels, int D>
__global__ void __launch_bounds__(kVectorThreads, 1)
    seal_vectors_kernel(const __grid_constant__ SealArgs args) {
  extern __shared__ __align__(128) unsigned char bytes[];
  using Shared = VectorShared<D, has_large_shared<D>(Architecture::kLargeSharedMemory)>;
  auto& shared = *reinterpret_cast<Shared*>(bytes);
  const SealLaunch launch(args);
  const SealUnit& unit = args.units[blockIdx.y];
  const auto side = static_cast<PageSide>(unit.side);
  const PageEncoding& format = args.sides[unit.side];
  const auto* const codebook = static_cast<const __half*>(unit.codebook);
  const int n = args.n_seqs * args.due.max_pages;
  const auto step = static_cast<int>(gridDim.x);
  DuePage due;
  const auto find_from = [&](int i) {
    while (i < n && !find_due_page<true>(args, unit, i, &due)) i += step;
    return i;
  };
  int i = find_from(static_cast<int>(blockIdx.x));
  if (i >= n) return;
  if (Shared::kFetchesAhead && due.row < 0) fetch_page(shared, due.tail);
  load_codebook<Channels>(shared, codebook, format.layout.bits);
  while (i < n) {
    const DuePage sealed = due;  // meanwhile `due` is the next page, which is being fetched
    if (threadIdx.x == 0) {
      shared.largest = 0;
      shared.next_group = 0;
    }
    wait_for_fetched_page();
    if (due.row >= 0) {
      load_new_rows<D>(args, unit, due, shared.values, Shared::kRow);
    } else if constexpr (Shared::kFetchesAhead) {
      store_rows<D>([&](int piece) { return shared.next_page[piece]; }, side, shared.values, Shared::kRow);
    } else {
      load_rows<D>(due.tail, side, shared.values, Shared::kRow);
    }
    i = find_from(i + step);
    if (Shared::kFetchesAhead && i < n && due.row < 0) fetch_page(shared, due.tail);
    for (int j = static_cast<int>(threadIdx.x); j < format.page_bytes / 4; j += static_cast<int>(blockDim.x))
      shared.page[j] = 0;
    __syncthreads();
    const bool has_gains = format.stored.factor == TokenFactor::half;
    measure_tokens(shared, has_gains);
    __syncthreads();
    const bool at_once = Shared::part_of(1 << format.layout.bits) == 1 << format.layout.bits;
    if (at_once) {
      encode_vectors<Channels>(shared, format.layout.bits, side);
    } else {
      encode_by_parts<Channels>(shared, codebook, format.layout.bits, side);
    }
    __syncthreads();
    if (has_gains) {
      if (at_once) {
        const double scale = ldexp(1.0, exponent_of(shared.largest_coordinate));
        store_gains<Channels>(shared, format.layout, side, [&](std::uint32_t code, int k) {
          return scale * __half2float(shared.centroids()[CentroidRow<Channels>::at(code, k)]);
        });
      } else {
        store_gains<Channels>(shared, format.layout, side, [&](std::uint32_t code, int k) {
          return static_cast<double>(__half2float(codebook[code * Channels + k]));
        });
      }
      __syncthreads();
      count_if_out_of_range(
          args, unit, sealed, format, D,
          reinterpret_cast<const unsigned char*>(shared.page) + code_bytes(format.layout, D));
    }
    for (int j = static_cast<int>(threadIdx.x); j < format.page_bytes / 4; j += static_cast<int>(blockDim.x))
      reinterpret_cast<std::uint32_t*>(sealed.sealed)[j] = shared.page[j];
    __syncthreads();
  }
}

}  // namespace kvant::cuda
