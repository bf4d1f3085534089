// Defines the parts from which the arguments of all kernels are made: pages as kernels find them, and rows of
// numbers. The parts are plain data that a launch copies to the GPU.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "device/cuda/common/limits.h"

namespace kvant::cuda {

// NumberType lists the types of numbers in rows outside of pages, which are queries, keys, values and
// outputs.
enum class NumberType : int { bf16, f32, f16 };  // the values are those of kvant_type

constexpr int bytes_of(NumberType type) {
  return type == NumberType::f32 ? 4 : 2;
}

// Lists KV heads that one launch serves.
struct HeadList {
  int n;
  std::uint8_t at[kMaxKvHeads];
};

// PageSource finds the pages of one layer. The members have the meaning of kvant_pages, with the layer's
// offset added to the pool.
struct PageSource {
  const std::int32_t* table;
  std::int64_t seq_stride, head_stride, side_stride;
  const unsigned char* pool;
  std::int64_t page_stride, head_offset, side_offset;

  // Returns the page with the number `id` of the table.
  KVANT_HOST_DEVICE const unsigned char* at(std::int64_t id, int head, int side) const {
    return pool + id * page_stride + head * head_offset + side * side_offset;
  }
  KVANT_HOST_DEVICE std::int32_t id_of(std::int64_t seq, int head, int side, int page) const {
    return table[seq * seq_stride + head * head_stride + side * side_stride + page];
  }
  // Returns the page with index `page` of sequence `seq`.
  KVANT_HOST_DEVICE const unsigned char* find(std::int64_t seq, int head, int side, int page) const {
    return at(id_of(seq, head, side, page), head, side);
  }
};

// SealedSource finds quantized pages. Each head and side may have a different offset within a page's storage.
struct SealedSource {
  static constexpr int kOffsetUnit = 16;  // bytes
  PageSource pages;
  std::uint32_t offsets[kMaxKvHeads][2];  // kvant_decode_layer::sealed_offsets, in units of kOffsetUnit

  KVANT_HOST_DEVICE std::int64_t offset_of(int head, int side) const {  // bytes
    return std::int64_t{offsets[head][side]} * kOffsetUnit;
  }
  KVANT_HOST_DEVICE const unsigned char* at(std::int64_t id, int head, int side) const {
    return pages.at(id, head, side) + offset_of(head, side);
  }
  KVANT_HOST_DEVICE const unsigned char* find(std::int64_t seq, int head, int side, int page) const {
    return at(pages.id_of(seq, head, side, page), head, side);
  }
};

// Describes rows of keys, values or queries. Head h of row i lies at i * row_stride + h * head_stride. The
// kernel pads the channels with zeros and multiplies them by the factors of the head's KV head, unless
// `factors` is null. If `hadamard` is not 0, the kernel then rotates the row.
struct AppendedRows {
  void* rows;
  std::int64_t row_stride, head_stride;
  int channels;  // number of channels in the rows, a multiple of 8
  int is_wide;   // RowType::is_wide
  const float* factors;
  int hadamard;
};

}  // namespace kvant::cuda
