// Copies the values of a page only if the page's weights matter (Sparse V). Keys and values of a page share
// one slot of the ring. Once the keys are scored, the values are copied over the keys, or the slot is
// released. Meanwhile the warp continues with the keys of the next page. The weights of up to two pages wait
// in registers for their values.
//
// Each lane has 16 tokens of a page. The page matters if a lane's tokens matter for any query head. Tokens
// matter if the sum of their weights exceeds the threshold, relative to the largest weight so far. The
// softmax sum includes all weights.
#pragma once

#include "device/cuda/pairs/weights.cuh"

namespace kvant::cuda {

// Holds the half-precision weights of a page that waits for its values. The weights belong to heads 2t and 2t
// + 1, for rows g and g + 8 of each tile. `stage` is the slot of the values.
struct KeptWeights {
  std::uint32_t pairs[kTokenTiles][2];
  int stage;
};

template <class Inner, int D>
struct SkippingPair {
  using Key = typename Inner::Key;
  using Value = typename Inner::Value;
  static constexpr bool kSealed = true;
  static constexpr bool kTablesPerHead = false;
  // With seven warps a thread can have 255 registers. With more warps the limit is 168, and the compiler
  // would spill some registers.
  static constexpr int kMaxWarps = 7;
  // The tables are followed by a barrier for the values of each slot, and then by the page number of each
  // slot's values.
  static constexpr int kSlots = kMaxConsumerWarps * kMaxStages;
  static constexpr int kBarriersAt = (Inner::kTableBytes + 15) / 16 * 16;
  static constexpr int kValueIdsAt = kBarriersAt + 8 * kSlots;
  static constexpr int kTableBytes = kValueIdsAt + 4 * kSlots;

  struct State {
    const DecodeArgs& args;
    Accumulator<D> acc = {};
    typename Value::State values;
    KeptWeights kept = {};
    bool has_kept = false;
    int seen = 0, skipped = 0;  // numbers of pages

    template <class Part>
    __device__ State(const DecodeArgs& of_launch, const Part&, int) : args(of_launch) {
      acc.max[0] = acc.max[1] = kNoScore;
    }
    __device__ __forceinline__ void scale(int h, float factor) {
      values.scale(h, factor);
      const std::uint32_t factors = h == 0 ? pack_half2(factor, 1) : pack_half2(1, factor);
#pragma unroll
      for (auto& tile : kept.pairs) {
        tile[0] = multiply_half2(tile[0], factors);
        tile[1] = multiply_half2(tile[1], factors);
      }
    }
  };

  template <class Part>
  static __device__ __forceinline__ void attend(const DecodeArgs& args, unsigned char* shared,
                                                const Part& segment, int page, const Query<D>& query,
                                                int lane, RingReader& ring, State& state) {
    Scores s;
    Key::score(args, shared, ring.wait(), query, lane, s);
    if (may_be_masked(args, segment, page)) mask_scores(args, segment, page, 0, lane, s);
    const float2 sums = online_softmax<SkippingPair>(args, s, state.acc, state);
    const int column = lane % 4 * 2;
    const int n_columns = segment.n_columns(args);
    const bool matters = (column < n_columns && sums.x > args.skip_below) ||
                         (column + 1 < n_columns && sums.y > args.skip_below);
    ++state.seen;
    KeptWeights second;
    bool has_second = false;
    if (__any_sync(~0U, matters)) {
      __syncwarp();  // all lanes have read the keys
      if (lane == 0 || !Architecture::kBulkCopies) copy_values(args, segment.head, shared, ring);
      has_second = state.has_kept;
      second = kept_weights(s, ring.stage);
      if (!has_second) state.kept = second;
      state.has_kept = true;
      ring.keep();
    } else {
      ++state.skipped;
      ring.release();
    }
    if (has_second || (state.has_kept && ring.stage == state.kept.stage)) {
#pragma unroll 1
      for (;;) {
        mix_kept(args, shared, lane, ring, state);
        if (!has_second) break;
        state.kept = second;
        has_second = false;
      }
      state.has_kept = false;
    }
  }

  // Adds the values of the page that still waits, if there is one. Kernels call flush() before they leave a
  // segment.
  static __device__ __forceinline__ void flush(const DecodeArgs& args, unsigned char* shared, int lane,
                                               RingReader& ring, State& state) {
    if (state.has_kept) mix_kept(args, shared, lane, ring, state);
  }

  static __device__ __forceinline__ void finish(State& state, int lane, Accumulator<D>& acc) {
    Value::finish(state.args, state.acc.out, state.values);
    acc = state.acc;
    if (lane == 0 && state.args.skip_counts != nullptr) {
      atomicAdd(state.args.skip_counts, static_cast<unsigned long long>(state.seen));
      atomicAdd(state.args.skip_counts + 1, static_cast<unsigned long long>(state.skipped));
    }
  }

  static __device__ void build_tables(const DecodeArgs& args, unsigned char* shared, int head, int thread,
                                      int n_threads) {
    Inner::build_tables(args, shared, head, thread, n_threads);
    for (int i = thread; i < kSlots; i += n_threads)
      barrier_init(shared_address(shared + kBarriersAt) + i * 8, kCopyArrivals);
    publish_barriers();
  }

 private:
  static __device__ __forceinline__ KeptWeights kept_weights(const Scores& s, int stage) {
    KeptWeights weights;
    weights.stage = stage;
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
      weights.pairs[tile][0] = pack_half2(s[tile][0], s[tile][1]);
      weights.pairs[tile][1] = pack_half2(s[tile][2], s[tile][3]);
    }
    return weights;
  }

  static __device__ __forceinline__ std::uint32_t value_barrier(const unsigned char* shared,
                                                                const RingReader& ring, int stage) {
    return shared_address(shared + kBarriersAt) + (ring.index * ring.rings.stages + stage) * 8;
  }

  // Starts the copy of a page's values over its keys. One lane calls this function, or all lanes if there are
  // no bulk copies.
  static __device__ __forceinline__ void copy_values(const DecodeArgs& args, int head,
                                                     const unsigned char* shared, const RingReader& ring) {
    const int slot = ring.index * ring.rings.stages + ring.stage;
    const std::int64_t id = load_shared(shared_address(shared + kValueIdsAt) + slot * 4);
    const unsigned char* page = args.sealed.at(id, head, static_cast<int>(PageSide::value));
    const std::uint32_t barrier = value_barrier(shared, ring, ring.stage);
    const std::uint32_t to = ring.rings.slot(ring.index, ring.stage);
    if constexpr (Architecture::kBulkCopies) {
      expect_bytes(barrier, args.value_bytes);
      bulk_copy(to, page, args.value_bytes, barrier);
    } else {
      copy_together({to, barrier, args.value_bytes, page});
    }
  }

  // Adds the values of the page whose weights are kept.
  static __device__ __forceinline__ void mix_kept(const DecodeArgs& args, unsigned char* shared, int lane,
                                                  RingReader& ring, State& state) {
    const int stage = state.kept.stage;
    Scores p;
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float2 pair = unpack_half2(state.kept.pairs[tile][row]);
        p[tile][2 * row] = pair.x;
        p[tile][2 * row + 1] = pair.y;
      }
    }
    barrier_wait(value_barrier(shared, ring, stage), (ring.value_parities >> stage) & 1);
    ring.value_parities ^= 1U << stage;
    Value::mix(args, shared, ring.first + stage * ring.rings.slot_bytes, p, lane, state.acc.out,
               state.values);
    ring.release_kept(stage);
  }
};

}  // namespace kvant::cuda
