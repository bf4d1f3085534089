// Turns quantized pages back into rows that any attention kernel can read. A CTA dequantizes one page of one
// KV head and side, and each thread writes 16 bytes at a time. Protected tokens come from their own pages.
// Rows that are rotated, or have a type other than BF16, take a slower path that decodes token by token.
#pragma once

#include <type_traits>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/rows/decode_page.cuh"

namespace kvant::cuda {

inline constexpr int kDequantizeThreads = 256;
// Returns the largest size in bytes of a page with codes. The largest page has 8 bits for each value, and a
// scale and a zero for every 32 values.
constexpr int max_page_bytes(int d) {
  return kPageTokens * d * 9 / 8;
}

// Holds one page and the page's tables in shared memory.
template <int D>
struct DequantizeShared {
  // The page has room for one piece more. If codes may cross a word boundary, the word after the last code is
  // also read.
  alignas(16) std::uint32_t page[(max_page_bytes(D) + 16 * kLanes) / 4];
  float levels[kMaxLevels];
  // Bits mark the tokens of the page that lie in protected pages, except tokens of the sink.
  std::uint32_t masked[kPageTokens / 32];
  // Holds the index of the first marked token among the sequence's protected tokens.
  int first_masked;
  bool has_protected_tokens;
};

// Describes the work of a CTA, which is a page of one KV head and side and the tokens that become rows.
struct DequantizedPage {
  int seq, head, page, n_tokens;
  bool sealed;
  int first_token = 0, end_token = kPageTokens;
};

// Returns eight channels of a token in an unquantized page as BF16.
template <PageSide Side, int D>
__device__ __forceinline__ uint4 plain_octet(const unsigned char* page, int token, int octet) {
  const auto* numbers = reinterpret_cast<const std::uint16_t*>(page);
  std::uint32_t words[kOctet / 2];
#pragma unroll
  for (int i = 0; i < kOctet / 2; ++i) {
    const std::uint32_t low = numbers[plain_index(Side, D, token, octet * kOctet + 2 * i)];
    const std::uint32_t high = numbers[plain_index(Side, D, token, octet * kOctet + 2 * i + 1)];
    words[i] = low | high << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}

// Finds the masked tokens of a page and the number of masked tokens in earlier pages, because protected pages
// hold masked tokens in the order of the sequence. All threads of the CTA must call this function, because it
// contains a barrier.
template <int D>
__device__ void find_masked(const DequantizeArgs& args, const DequantizedPage& at,
                            DequantizeShared<D>& shared) {
  const auto* masks = reinterpret_cast<const std::uint32_t*>(args.masks + at.seq * args.mask_seq_stride +
                                                             at.head * args.mask_head_stride);
  // Returns the mask bits of 32 tokens, but 0 for tokens of the sink. `word` counts from the sequence's first
  // page.
  const auto after_sink = [&](int word) {
    const int sink = min(max(args.sink - 32 * word, 0), 32);
    return sink == 32 ? 0 : masks[word] & ~0U << sink;
  };
  constexpr int kWords = kPageTokens / 32;
  const auto thread = static_cast<int>(threadIdx.x);
  std::uint32_t own = 0;
  if (thread < kWords && args.masks != nullptr) own = after_sink(at.page * kWords + thread);
  if (thread < kWords) shared.masked[thread] = own;
  if (thread == 0) shared.first_masked = args.sink;
  const bool any = __syncthreads_or(own != 0) != 0;
  if (thread == 0) shared.has_protected_tokens = any || (at.page == 0 && args.sink > 0);
  if (!any) return;
  int before = 0;
  for (int word = thread; word < at.page * kWords; word += kDequantizeThreads)
    before += __popc(after_sink(word));
  if (before != 0) atomicAdd(&shared.first_masked, before);
}

// Returns the index of a token among its sequence's protected tokens. A negative result means that the sealed
// page contains the token.
template <int D>
__device__ __forceinline__ int protected_token(const DequantizeArgs& args, const DequantizeShared<D>& shared,
                                               int page, int token) {
  if (page == 0 && token < args.sink) return token;
  const std::uint32_t word = shared.masked[token / 32];
  if ((word >> (token % 32) & 1) == 0) return -1;
  int rank = shared.first_masked + __popc(word & ((1U << (token % 32)) - 1));
  for (int i = 0; i < token / 32; ++i) rank += __popc(shared.masked[i]);
  return rank;
}

// Copies a page and the levels of its format to shared memory. All threads of the CTA must call this
// function, and must synchronize before they read the copy.
template <int D>
__device__ void load_page(const unsigned char* from, const PageDecoding& decoding,
                          DequantizeShared<D>& shared) {
  const auto* pieces = reinterpret_cast<const uint4*>(from);
  for (int i = static_cast<int>(threadIdx.x); i < decoding.page_bytes / 16; i += kDequantizeThreads)
    reinterpret_cast<uint4*>(shared.page)[i] = __ldg(pieces + i);
  if (threadIdx.x < kMaxLevels) shared.levels[threadIdx.x] = decoding.levels[threadIdx.x];
}

// Writes this thread's eight channels of a page's rows, from token `first` on. Channels that the rows do not
// have are left out. If a thread has several groups of eight channels, these are kOctets groups apart.
template <int D, int OfThread = 1>
struct RowWriter {
  static constexpr int kOctets = D / kOctet / OfThread;
  // The CTA writes this many tokens at a time.
  static constexpr int kTogether = kDequantizeThreads / kOctets;
  unsigned char* rows;
  std::int64_t token_bytes;
  int octet, first_token;

  __device__ RowWriter(unsigned char* page_rows, std::int64_t token_stride, int first, int channels)
      : token_bytes(2 * token_stride),
        octet(static_cast<int>(threadIdx.x) % kOctets),
        first_token(octet * kOctet < channels ? first + static_cast<int>(threadIdx.x) / kOctets
                                              : kPageTokens) {
    rows = page_rows - first * token_bytes + octet * 16;
  }
  __device__ __forceinline__ void store(int token, const uint4& packed, int nth = 0) const {
    *reinterpret_cast<uint4*>(rows + token * token_bytes + nth * (kOctets * 16)) = packed;
  }
};

// Dequantizes tokens [at.first_token, at.end_token) of a sealed page to BF16 rows. All threads of the CTA
// must call this function, because it contains a barrier.
template <PageSide Side, int D>
__device__ void dequantize_sealed(const DequantizeArgs& args, const DequantizedPage& at,
                                  const RowWriter<D>& writer, DequantizeShared<D>& shared) {
  const auto side = static_cast<int>(Side);
  const PageDecoding& decoding = args.decodings[args.decoding_of_head[at.head]][side];
  const SealedPage page{shared.page, shared.levels, decoding,
                        decoding.codebooks + at.head * decoding.codebook_stride};
  load_page(args.sealed.find(at.seq, at.head, side, at.page), decoding, shared);
  find_masked(args, at, shared);
  __syncthreads();
  with_octets<Side, D>(page, writer.octet, [&](const auto& octets) {
    constexpr int kTogether = std::remove_reference_t<decltype(octets)>::kTogether;
#pragma unroll kTogether
    for (int token = writer.first_token; token < at.end_token; token += RowWriter<D>::kTogether) {
      float x[kOctet];
      octets.decode(token, x);
      writer.store(token, {pack_bf16x2(x[0], x[1]), pack_bf16x2(x[2], x[3]), pack_bf16x2(x[4], x[5]),
                           pack_bf16x2(x[6], x[7])});
    }
  });
  if (!shared.has_protected_tokens) return;
  // No barrier is needed: the loop above wrote the decoded values of these tokens in the same thread.
  for (int token = writer.first_token; token < at.end_token; token += RowWriter<D>::kTogether) {
    const int protected_row = protected_token(args, shared, at.page, token);
    if (protected_row < 0) continue;
    const unsigned char* from = args.protected_pages.find(at.seq, at.head, side, protected_row / kPageTokens);
    writer.store(token, plain_octet<Side, D>(from, protected_row % kPageTokens, writer.octet));
  }
}

// Writes tokens [at.first_token, at.end_token) of a sealed page or a tail page as BF16 rows. All threads of
// the CTA must call this function, because a sealed page needs a barrier.
template <PageSide Side, int D>
__device__ void dequantize_page(const DequantizeArgs& args, const DequantizedPage& at, unsigned char* rows,
                                DequantizeShared<D>& shared) {
  const RowWriter<D> writer(rows, args.token_stride, at.first_token, args.channels);
  if (at.sealed) return dequantize_sealed<Side, D>(args, at, writer, shared);
  const int tail_page = at.page - (args.sealed_pages == nullptr ? 0 : args.sealed_pages[at.seq]);
  const unsigned char* page = args.tail.find(at.seq, at.head, static_cast<int>(Side), tail_page);
  for (int token = writer.first_token; token < min(at.n_tokens, at.end_token);
       token += RowWriter<D>::kTogether)
    writer.store(token, plain_octet<Side, D>(page, token, writer.octet));
}

// Writes the rows of a page in a basis other than the stored one, or in a type other than BF16. Tokens of
// any format are decoded one by one. All threads of the CTA must call this function, because it may contain a
// barrier.
template <PageSide Side, int D>
__device__ void turn_page(const DequantizeArgs& args, const DequantizedPage& at, unsigned char* rows,
                          DequantizeShared<D>& shared) {
  const auto side = static_cast<int>(Side);
  // Lanes of a warp rotate a row together, including lanes whose channels the row does not have.
  constexpr int kOfThread = D / kOctet > kLanes ? D / kOctet / kLanes : 1;  // groups of eight channels
  using Writer = RowWriter<D, kOfThread>;
  const Writer writer(rows, args.token_stride, at.first_token, D);
  const auto octet_of = [&](int nth) { return writer.octet + nth * Writer::kOctets; };
  const auto store = [&](int token, float(&x)[kOfThread * kOctet]) {
    if (args.bases[side].hadamard != 0)
      rotate_channels<Writer::kOctets>(static_cast<int>(threadIdx.x) % kLanes, x);
#pragma unroll
    for (int nth = 0; nth < kOfThread; ++nth) {
      const int channel = octet_of(nth) * kOctet;
      float own[kOctet];
#pragma unroll
      for (int i = 0; i < kOctet; ++i) own[i] = x[nth * kOctet + i];
      scale_channels(args.bases[side].factors, static_cast<std::int64_t>(at.head) * D + channel, own);
      if (channel >= args.channels) return;
      std::uint32_t words[kOctet / 2];
#pragma unroll
      for (int i = 0; i < kOctet / 2; ++i)
        words[i] = args.type == NumberType::f16 ? pack_half2(own[2 * i], own[2 * i + 1])
                                                : pack_bf16x2(own[2 * i], own[2 * i + 1]);
      writer.store(token, {words[0], words[1], words[2], words[3]}, nth);
    }
  };
  const auto store_plain = [&](int token, const PageSource& pages, int page, int token_of_page) {
    const auto* numbers = reinterpret_cast<const __nv_bfloat16*>(pages.find(at.seq, at.head, side, page));
    float x[kOfThread * kOctet];
#pragma unroll
    for (int i = 0; i < kOfThread * kOctet; ++i)
      x[i] =
          as_float(numbers[plain_index(Side, D, token_of_page, octet_of(i / kOctet) * kOctet + i % kOctet)]);
    store(token, x);
  };
  if (!at.sealed) {
    const int tail_page = at.page - (args.sealed_pages == nullptr ? 0 : args.sealed_pages[at.seq]);
#pragma unroll 1
    for (int token = writer.first_token; token < at.n_tokens; token += Writer::kTogether)
      store_plain(token, args.tail, tail_page, token);
    return;
  }
  const PageDecoding& decoding = args.decodings[args.decoding_of_head[at.head]][side];
  const SealedPage page{shared.page, shared.levels, decoding,
                        decoding.codebooks + at.head * decoding.codebook_stride};
  load_page(args.sealed.find(at.seq, at.head, side, at.page), decoding, shared);
  find_masked(args, at, shared);
  __syncthreads();
#pragma unroll 1
  for (int token = writer.first_token; token < kPageTokens; token += Writer::kTogether) {
    const int row = shared.has_protected_tokens ? protected_token(args, shared, at.page, token) : -1;
    if (row >= 0) {
      store_plain(token, args.protected_pages, row / kPageTokens, row % kPageTokens);
      continue;
    }
    float x[kOfThread * kOctet];
#pragma unroll
    for (int nth = 0; nth < kOfThread; ++nth) {
      float own[kOctet];
      decode_octet<Side, D>(page, token, octet_of(nth), own);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) x[nth * kOctet + i] = own[i];
    }
    store(token, x);
  }
}

// Writes the rows of a side with dequantize_page() or turn_page(), depending on the basis and type of the
// rows. All threads of the CTA must call this function.
template <PageSide Side, int D>
__device__ void dequantize_side(const DequantizeArgs& args, const DequantizedPage& at, unsigned char* rows,
                                DequantizeShared<D>& shared) {
  if (args.are_as_decoded(static_cast<int>(Side))) return dequantize_page<Side, D>(args, at, rows, shared);
  turn_page<Side, D>(args, at, rows, shared);
}

// For heads of 512 channels, the shared memory of a CTA exceeds the limit of static shared memory.
template <int D>
inline constexpr bool kIsDynamic = sizeof(DequantizeShared<D>) > 48 * 1024;
template <int D>
inline constexpr int kDequantizeDynamicBytes = kIsDynamic<D> ? sizeof(DequantizeShared<D>) : 0;

template <int D>
__device__ __forceinline__ DequantizeShared<D>& dequantize_memory() {
  if constexpr (kIsDynamic<D>) {
    extern __shared__ __align__(16) unsigned char dequantize_bytes[];
    return *reinterpret_cast<DequantizeShared<D>*>(dequantize_bytes);
  } else {
    __shared__ DequantizeShared<D> shared;
    return shared;
  }
}

// Writes the rows of one page in each CTA. The grid is [sequences * sides][KV heads][pages].
template <int D>
__global__ void __launch_bounds__(kDequantizeThreads)
    dequantize_kernel(const __grid_constant__ DequantizeArgs args) {
  DequantizeShared<D>& shared = dequantize_memory<D>();
  const int side = static_cast<int>(blockIdx.z) % 2;
  const int i = static_cast<int>(blockIdx.z) / 2;
  if (args.rows[side] == nullptr) return;
  DequantizedPage at;
  at.seq = args.seqs == nullptr ? i : args.seqs[i];
  at.head = args.first_head + static_cast<int>(blockIdx.y);
  const auto nth = static_cast<int>(blockIdx.x);
  if (args.page_counts != nullptr && nth >= args.page_counts[i]) return;
  at.page = (args.first_pages == nullptr ? args.first_page : args.first_pages[i]) + nth;
  const int n_sealed = args.sealed_pages == nullptr ? 0 : args.sealed_pages[at.seq];
  const int n_tail = args.tail_tokens == nullptr ? 0 : args.tail_tokens[at.seq];
  at.sealed = at.page < n_sealed;
  at.n_tokens = at.sealed ? kPageTokens : min(kPageTokens, n_tail - (at.page - n_sealed) * kPageTokens);
  if (at.n_tokens <= 0) return;
  const std::int64_t first =
      args.row_begins == nullptr ? i * args.seq_stride : args.row_begins[i] * args.token_stride;
  unsigned char* rows = static_cast<unsigned char*>(args.rows[side]) +
                        2 * (first + static_cast<std::int64_t>(nth) * kPageTokens * args.token_stride +
                             static_cast<std::int64_t>(blockIdx.y) * args.head_stride);
  if (side == 0) {
    dequantize_side<PageSide::key, D>(args, at, rows, shared);
  } else {
    dequantize_side<PageSide::value, D>(args, at, rows, shared);
  }
}

}  // namespace kvant::cuda
