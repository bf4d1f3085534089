// What the encoding kernels share with the host code that launches them.
#pragma once

#include "device/cuda/common/arguments.h"
#include "device/cuda/page/any_page.h"
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

// Returns false for pages without codes.
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

// The device form of kvant_page_metrics.
struct PageMetrics {
  const float* directions;  // null: there are none
  const float2* turns;
  const float* basis;  // or null
  std::int64_t basis_head_stride;
  std::int64_t direction_layer_stride, turn_layer_stride;  // in elements
  const std::int32_t* first_pages;                         // null: use DueArgs::sealed_page
};

struct PageEncoding {
  Encoding encoding;
  PageFormat stored;
  CodeLayout layout;
  int page_bytes;                    // in GPU memory
  float levels[kMaxLevels];          // lloyd_max: for values with a variance of 1 / d
  float boundaries[kMaxLevels - 1];  // between the levels for values with a variance of 1
  const void* codebooks;
  std::int64_t codebook_stride;
  // trellis, for the errors of keys: metrics in the layout of kvant_decode_layer, or null, and metrics that
  // rotate with the page, which take precedence.
  const float* metrics;
  PageMetrics page_metrics;
  // Whether its kernel can make pages from rows. A search that reads values repeatedly cannot.
  bool takes_rows() const { return encoding != Encoding::trellis; }
  __host__ __device__ bool is_shaped() const {
    return metrics != nullptr || page_metrics.directions != nullptr;
  }
};

// The distance from a layer to the next one: entries of tables, and bytes of pools.
struct LayerDistance {
  std::int64_t entries, bytes;
};

// The pages to seal, and their layers.
struct DueArgs {
  const std::int32_t *tail_page, *sealed_page;
  const std::int32_t* n_pages;  // null: max_pages
  int max_pages;
  int n_layers;  // starting at the layer of the given pages
  LayerDistance sealed, tail;
  const std::int64_t* layer_offsets;  // [n_layers]: additional bytes per layer; or null
};

// Returns the pages of layer `nth`.
__device__ inline PageSource of_layer(PageSource pages, const LayerDistance& distance,
                                      const std::int64_t* offsets, int nth) {
  pages.table += nth * distance.entries;
  pages.pool += nth * distance.bytes + (offsets == nullptr ? 0 : offsets[nth]);
  return pages;
}

// Rows from which pages are made instead of from the tail.
struct SealedRows {
  const std::int32_t*
      // [n_seqs]: the row of the first due page; negative: in the tail. Null: all pages are in the tail.
      first;
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
  SealedRows rows;                    // for kernels that can use them
};

// Returns how many pages of a sequence are to be sealed, if any are.
__device__ inline int pages_of(const DueArgs& due, int seq) {
  return due.n_pages == nullptr ? due.max_pages : min(due.n_pages[seq], due.max_pages);
}
// Returns this number for pages in the tail.
__device__ inline int pages_due(const SealArgs& args, int seq) {
  return args.due.tail_page[seq] < 0 ? 0 : pages_of(args.due, seq);
}

// Returns the row of the first token of a sequence's first due page; a negative result means that its pages
// are in the tail.
__device__ inline std::int64_t first_due_row(const SealedRows& rows, int seq) {
  return rows.first == nullptr ? -1 : rows.first[seq];
}

struct AppendArgs {
  std::int64_t n_rows;
  int n_kv_heads, group;
  NumberType type;  // for all rows
  PageSource tail;
  const std::int32_t *seq, *tail_token;
  const std::int32_t* tail_tokens;   // for each sequence, whose last tokens are the rows; or null
  const std::int32_t* query_begins;  // [n_seqs + 1]: rows of each sequence; null: n_queries each
  int n_seqs, n_queries;
  AppendedRows sides[2];
  AppendedRows queries;  // transformed in place; rows may be null
};

}  // namespace kvant::cuda
