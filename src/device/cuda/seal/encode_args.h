// What the encoding kernels share with the code that launches them.
#pragma once

#include "device/cuda/decode/decode_args.h"
#include "device/cuda/page/row_channels.cuh"

namespace kvant::cuda {

// How the values of a page become codes and parameters: the families of src/format.
enum class Encoding : std::uint8_t {
  channel_grid,
  token_grid,
  e4m3,
  progressive,
  lloyd_max,
  trellis,
  vectors
};

// False of pages without codes.
inline bool find_encoding_of(const PageFormat& format, Encoding* encoding) {
  switch (format.kind) {
    case CodeKind::number:
      *encoding = format.grid == GridAxis::of_tokens     ? Encoding::token_grid
                  : format.grid == GridAxis::of_channels ? Encoding::channel_grid
                                                         : Encoding::progressive;
      return true;
    case CodeKind::e4m3:
      *encoding = Encoding::e4m3;
      return true;
    case CodeKind::level:
      *encoding = Encoding::lloyd_max;
      return true;
    case CodeKind::state:
      *encoding = Encoding::trellis;
      return true;
    case CodeKind::vector:
      *encoding = Encoding::vectors;
      return true;
    default:
      return false;
  }
}

// kvant_page_metrics.
struct PageMetrics {
  const float* directions;  // or null: there are none
  const float2* turns;
  const float* basis;  // or null
  std::int64_t basis_head_stride;
  std::int64_t direction_layer_stride, turn_layer_stride;  // of elements
  const std::int32_t* first_pages;                         // or null: DueArgs::sealed_page
};

struct PageEncoding {
  Encoding encoding;
  PageFormat stored;
  CodeLayout layout;
  int page_bytes;                    // in GPU memory
  float levels[kMaxLevels];          // lloyd_max: of values with a variance of 1 / d
  float boundaries[kMaxLevels - 1];  // between those of values with a variance of 1
  const void* codebooks;
  std::int64_t codebook_stride;
  // trellis, of the errors of keys: as kvant_decode_layer has them, or null; and those that turn with the
  // page, which go before.
  const float* metrics;
  PageMetrics page_metrics;
  // Whether its kernel makes pages of rows: a search that reads them again and again does not.
  bool takes_rows() const { return encoding != Encoding::trellis; }
  __host__ __device__ bool is_shaped() const {
    return metrics != nullptr || page_metrics.directions != nullptr;
  }
};

// From a layer to the next one: entries of tables, and bytes of pools.
struct LayerDistance {
  std::int64_t entries, bytes;
};

// Which pages are sealed, of which layers.
struct DueArgs {
  const std::int32_t *tail_page, *sealed_page;
  const std::int32_t* n_pages;  // or null: max_pages
  int max_pages;
  int n_layers;  // from the one that pages are of
  LayerDistance sealed, tail;
  const std::int64_t* layer_offsets;  // [n_layers]: bytes more of each; or null
};

// Pages of the nth layer.
__device__ inline PageSource of_layer(PageSource pages, const LayerDistance& distance,
                                      const std::int64_t* offsets, int nth) {
  pages.table += nth * distance.entries;
  pages.pool += nth * distance.bytes + (offsets == nullptr ? 0 : offsets[nth]);
  return pages;
}

// Rows of keys, values or queries: head h of row i at i * row_stride + h * head_stride. Channels, those that
// rows have and zeros, are multiplied by the factors of the head's KV head (or null), then rotated if
// `hadamard`.
struct AppendedRows {
  void* rows;
  std::int64_t row_stride, head_stride;
  int channels;  // that rows have: a multiple of 8
  int is_wide;   // as in RowType
  const float* factors;
  int hadamard;
};

// Rows that pages are made of instead of the tail's.
struct SealedRows {
  const std::int32_t*
      first;  // [n_seqs]: of the first page that is due; negative: the tail's. Or null: all are
  NumberType type;
  AppendedRows sides[2];
};

struct SealArgs {
  int n_seqs;
  HeadList heads;
  SealedSource sealed;
  PageSource tail;
  DueArgs due;
  int sink;
  const uint4* masks;
  std::int64_t mask_seq_stride, mask_head_stride;
  PageEncoding sides[2];
  std::uint32_t* pages_out_of_range;  // or null
  SealedRows rows;                    // of kernels that take them
};

// How many pages of a sequence are to be sealed, if any are.
__device__ inline int pages_of(const DueArgs& due, int seq) {
  return due.n_pages == nullptr ? due.max_pages : min(due.n_pages[seq], due.max_pages);
}
// Of pages in the tail.
__device__ inline int pages_due(const SealArgs& args, int seq) {
  return args.due.tail_page[seq] < 0 ? 0 : pages_of(args.due, seq);
}

// The row of the first token of the first page of a sequence that is due; negative: its pages are in the
// tail.
__device__ inline std::int64_t first_due_row(const SealedRows& rows, int seq) {
  return rows.first == nullptr ? -1 : rows.first[seq];
}

struct AppendArgs {
  std::int64_t n_rows;
  int n_kv_heads, group;
  NumberType type;  // of all rows
  PageSource tail;
  const std::int32_t *seq, *tail_token;
  const std::int32_t* tail_tokens;   // of each sequence, whose last tokens the rows are; or null
  const std::int32_t* query_begins;  // [n_seqs + 1]: rows of each sequence; or null: n_queries of each
  int n_seqs, n_queries;
  AppendedRows sides[2];
  AppendedRows queries;  // transformed in place; rows: or null
};

}  // namespace kvant::cuda
