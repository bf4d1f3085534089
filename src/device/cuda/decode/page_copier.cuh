// Defines the work of a CTA's copying warp. Lane w fills ring w with the pages of its units, in the order in
// which the consumers read them. Units are dealt out as rings have space, so faster warps get more units. For
// example, the warps that share a scheduler with the copying warp are slower than others. A sealed unit fills
// two slots, one with its key page and one with its value page. An unquantized unit fills two slots for each
// tile of 16 tokens, keys first.
#pragma once

#include "device/cuda/decode/work_range.cuh"
#include "device/cuda/page/page_copy.cuh"

namespace kvant::cuda {

// No unit has this number.
inline constexpr int kNoUnit = -1;

// A CTA with few units has at most this many bytes in flight before its queries arrive. With fewer bytes, the
// rings fill more slowly. With more bytes, the queries wait longer.
inline constexpr int kFirstBytes = 72 << 10;

// Locates the rings of pages, their barriers and the numbers of their units in shared memory. Addresses are
// shared-memory addresses in bytes.
struct Rings {
  std::uint32_t slots, barriers;
  int n, slot_bytes, stages;

  __device__ Rings(const DecodeArgs& args, const unsigned char* shared, int sharers_log2)
      : slots(shared_address(shared + args.ring_at)),
        barriers(shared_address(shared + args.barriers_at)),
        n(args.consumer_warps >> sharers_log2),
        slot_bytes(args.slot_bytes),
        stages(args.stages) {}
  __device__ std::uint32_t slot(int warp, int stage) const {
    return slots + (warp * stages + stage) * slot_bytes;
  }
  // The words at unit(), last_unit() and next_unit() hold unit numbers within the CTA's range. unit() holds
  // the unit whose copies begin in a slot. last_unit() holds the last unit of a ring, and next_unit() the
  // next unit to be dealt out.
  __device__ std::uint32_t unit(int warp, int stage) const {
    return barriers + n * stages * 16 + (warp * stages + stage) * 4;
  }
  __device__ std::uint32_t last_unit(int warp) const { return unit(n, 0) + warp * 4; }
  __device__ std::uint32_t next_unit() const { return last_unit(n); }
  // Returns the address of the word that becomes nonzero when the CTA's first queries have arrived.
  __device__ std::uint32_t have_queries() const { return next_unit() + 4; }
  static constexpr int bytes(int n_rings, int stages) { return n_rings * stages * 20 + (n_rings + 2) * 4; }
  __device__ std::uint32_t full(int warp, int stage) const { return barriers + (warp * stages + stage) * 16; }
  __device__ std::uint32_t empty(int warp, int stage) const { return full(warp, stage) + 8; }
  // Initializes the barriers and the unit numbers. All threads of the CTA must call init() and then pass a
  // barrier. `n_lanes` lanes release each slot.
  __device__ void init(int n_lanes) const {
    for (int i = threadIdx.x; i < n * stages; i += blockDim.x) {
      barrier_init(barriers + i * 16, kCopyArrivals);
      barrier_init(barriers + i * 16 + 8, n_lanes);
      store_shared(unit(0, i), kNoUnit);
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x) store_shared(last_unit(i), kNoUnit - 1);
    if (threadIdx.x == 0) {
      store_shared(next_unit(), n);
      store_shared(have_queries(), 0);
    }
    publish_barriers();
  }
};

// Copies the units of one ring. With KeysOnly, only the keys of a sealed unit are copied, and the consumer
// gets the id of the value page.
template <int D, bool KeysOnly>
class PageCopier {
 public:
  static constexpr int kTileBytes = 16 * D * 2;

  // Reads the schedule and the lengths, but no page table. A lane without a ring stays idle.
  __device__ PageCopier(const DecodeArgs& args, const Rings& rings, int warp, std::uint32_t value_ids)
      : args_(args),
        rings_(rings),
        range_(args),
        warp_(warp),
        value_ids_(value_ids),
        first_copies_(max(2, kFirstBytes / rings.slot_bytes)) {
    segment_.before = segment_.first = segment_.last = 0;
    live_ = warp < rings.n && find_unit(warp);
    if (live_) {
      prefetch_to_l2(entry_);
      prefetch_to_l2(entry_ + source_->side_stride);
    }
  }

  __device__ void begin() {
    if (live_) look_up();
  }
  // Ends the ring of a warp that gets no unit.
  __device__ void end_if_idle() const {
    if (!live_ && warp_ < rings_.n) store_shared(rings_.last_unit(warp_), kNoUnit);
  }
  __device__ bool live() const { return live_; }

  // Starts the next bulk copy if its slot is free.
  __device__ void poll() {
    if (!has_room()) return;
    note_unit();
    const std::uint32_t slot = rings_.slot(warp_, stage_);
    const std::uint32_t full = rings_.full(warp_, stage_);
    if (tiles_ > 0) {
      expect_bytes(full, kTileBytes);
      bulk_copy(slot, tile(), kTileBytes, full);
    } else {
      const int bytes = args_.page_bytes(segment_.head, step_);
      expect_bytes(full, bytes);
      bulk_copy(slot, sealed_page(), bytes, full);
    }
    advance();
  }

  // Returns whether the first copies should go through may_poll(). Otherwise, queries and the requests of
  // predecessors would wait until the SM has all pages that it requested to fill its rings.
  __device__ bool begins_slowly() const { return range_.n_units() <= kFewUnits; }
  // Limits the copies in flight. Returns whether the lane may start its next copy, and then counts that copy
  // as begun. Sets `slowly` to false when the limit no longer applies, because queries have arrived or all
  // rings are full. All lanes must call this function.
  __device__ bool may_poll(bool& slowly) {
    while (ended_ < begun_ && barrier_test(rings_.full(warp_, ended_), 0)) ++ended_;
    const bool has_copy = live_ && begun_ < rings_.stages;
    const std::uint32_t due = __ballot_sync(~0U, has_copy);
    slowly = due != 0 && !__any_sync(~0U, load_shared(rings_.have_queries()) != 0);
    const int room = first_copies_ - static_cast<int>(__reduce_add_sync(~0U, begun_ - ended_));
    const bool may = has_copy && __popc(due & ((1U << warp_) - 1)) < room;
    if (may) ++begun_;
    return may;
  }

  // Starts the next copy of every ring that has a free slot, in the order of the rings. All lanes take part
  // in each copy.
  __device__ void poll_together() {
    const bool has_copy = live_ && has_room();
    PageCopy own{};
    if (has_copy) {
      note_unit();
      own = next_copy();
    }
    std::uint32_t due = __ballot_sync(~0U, has_copy);
    // Only one lane has seen that the slot is free, but all lanes write to the slot.
    if (due != 0) __syncwarp();
    for (; due != 0; due &= due - 1) copy_together(of_lane(own, __ffs(static_cast<int>(due)) - 1));
    if (has_copy) advance();
  }

 private:
  __device__ bool has_room() const { return barrier_test(rings_.empty(warp_, stage_), parity_ ^ 1); }

  // Stores the number of the unit that begins in the slot, for the consumer.
  __device__ void note_unit() const {
    if constexpr (KeysOnly)
      store_shared(value_ids_ + (warp_ * rings_.stages + stage_) * 4, static_cast<int>(value_id_));
    if (step_ == 0) store_shared(rings_.unit(warp_, stage_), number_);
  }

  __device__ PageCopy next_copy() const {
    const std::uint32_t slot = rings_.slot(warp_, stage_);
    const std::uint32_t full = rings_.full(warp_, stage_);
    if (tiles_ > 0) return {slot, full, kTileBytes, tile()};
    return {slot, full, args_.page_bytes(segment_.head, step_), sealed_page()};
  }

  __device__ void advance() {
    if (++stage_ == rings_.stages) {
      stage_ = 0;
      parity_ ^= 1;
    }
    if (++step_ < steps_) return;
    const int last = number_;
    live_ = find_unit(next_number());
    begin();
    if (!live_) store_shared(rings_.last_unit(warp_), last);
  }

  __device__ int next_number() const {
    return args_.reproducible != 0 ? number_ + rings_.n : add_shared(rings_.next_unit(), 1);
  }

  // Finds the ring's next unit that has tokens, starting with unit `number`. Returns false if there is none.
  __device__ bool find_unit(int number) {
    for (;; number = next_number()) {
      number_ = number;
      while (number >= segment_.before + segment_.last - segment_.first)
        if (!range_.next(segment_)) return false;
      const int unit = segment_.unit_of(number);
      step_ = tiles_ = 0;
      steps_ = KeysOnly ? 1 : 2;
      int page = unit;
      source_ = &args_.sealed.pages;
      if (unit >= segment_.n_sealed) {
        tiles_ = (plain_tokens(args_, segment_, unit) + 15) / 16;
        if (tiles_ == 0) continue;
        steps_ = 2 * tiles_;
        // Predecessors may still be writing the tail.
        if (args_.settled != 0) wait_for_predecessors();
        const bool is_protected = unit < segment_.n_sealed + segment_.n_protected;
        source_ = is_protected ? &args_.protected_pages : &args_.tail;
        page = unit - segment_.n_sealed - (is_protected ? 0 : segment_.n_protected);
      }
      entry_ =
          source_->table + segment_.seq * source_->seq_stride + segment_.head * source_->head_stride + page;
      return true;
    }
  }

  __device__ void look_up() {
    key_id_ = entry_[0];
    value_id_ = entry_[source_->side_stride];
  }

  // sealed_page() and tile() return the source of the current step's copy.
  __device__ const unsigned char* sealed_page() const {
    return args_.sealed.at(step_ == 0 ? key_id_ : value_id_, segment_.head, step_);
  }
  __device__ const unsigned char* tile() const {
    const int side = step_ % 2;
    return source_->at(side == 0 ? key_id_ : value_id_, segment_.head, side) + step_ / 2 * kTileBytes;
  }

  const DecodeArgs& args_;
  Rings rings_;
  WorkRange<ThreadPlace> range_;
  int warp_;
  std::uint32_t value_ids_;  // an address in shared memory
  int first_copies_;         // copies that may be in flight
  Segment segment_;
  const PageSource* source_;
  // Points to the unit's entry in the page table.
  const std::int32_t* entry_;
  // Units are numbered within the CTA's range.
  int number_;
  // step_ counts the copies of the unit, up to steps_. tiles_ is the number of an unquantized unit's tiles,
  // or 0.
  int step_, steps_, tiles_;
  long long key_id_, value_id_;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
  // Counts the copies that have begun and ended, among the ring's first `stages` copies.
  int begun_ = 0, ended_ = 0;
  bool live_;
};

}  // namespace kvant::cuda
