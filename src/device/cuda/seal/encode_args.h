// Defines the arguments that the encoding kernels share with the host code that launches them. PageEncoding
// describes a side's pages, and SealArgs describes the pages that one launch seals. A launch seals the pages
// of several units, which are KV heads and sides of any layers whose pages have the same kernel and formats.
#pragma once

#include "device/cuda/common/arguments.h"
#include "device/cuda/page/any_page.h"
#include "device/cuda/page/row_channels.cuh"

namespace kvant::cuda {

// Encoding names the family of a format in src/format, which determines how a page's values become codes and
// parameters.
enum class Encoding : std::uint8_t {
  channel_grid,
  token_grid,
  e4m3,
  progressive,
  lloyd_max,
  trellis,
  vectors
};

// Sets *encoding to the family of a format. Returns false if pages of the format have no codes.
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

// PageMetrics has the members of kvant_page_metrics (kvant.h) that are the same for all units.
// kvant_page_metrics describes metrics that rotate from page to page.
struct PageMetrics {
  const float* basis;  // [heads][D][D], the rotation before encoding; null without one
  std::int64_t basis_head_stride;
  std::int64_t direction_layer_stride, turn_layer_stride;  // numbers from layer to layer
  // first_pages [n_seqs] holds the number of the first page to seal. Null means that DueArgs::sealed_page
  // holds the numbers.
  const std::int32_t* first_pages;
};

struct PageEncoding {
  Encoding encoding;
  PageFormat stored;
  CodeLayout layout;
  int page_bytes;                    // bytes in GPU memory
  float levels[kMaxLevels];          // levels of lloyd_max for values with a variance of 1 / d
  float boundaries[kMaxLevels - 1];  // boundaries of lloyd_max for a variance of 1
  // Returns whether the kernel of this encoding can make pages from rows. The search for trellis codes reads
  // values repeatedly and therefore requires tail pages.
  bool takes_rows() const { return encoding != Encoding::trellis; }
};

// Finds the pages of one KV head and side.
struct HeadPages {
  const std::int32_t* table;
  std::int64_t seq_stride;
  const unsigned char* pool;
  std::int64_t page_stride;

  KVANT_HOST_DEVICE const unsigned char* find(std::int64_t seq, int page) const {
    return pool + table[seq * seq_stride + page] * page_stride;
  }
};

inline HeadPages pages_of_head(const PageSource& pages, int head, int side) {
  return {pages.table + head * pages.head_stride + side * pages.side_stride, pages.seq_stride,
          pages.pool + head * pages.head_offset + side * pages.side_offset, pages.page_stride};
}

// LayerDistance is the distance from a layer to the next layer, in entries of page tables and in bytes of
// pools.
struct LayerDistance {
  std::int64_t entries, bytes;
};

// Describes the pages to seal and the layers to which these pages belong.
struct DueArgs {
  const std::int32_t *tail_page, *sealed_page;
  const std::int32_t* n_pages;  // [n_seqs]; null means that each sequence has max_pages
  int max_pages;
  int n_layers;  // number of layers from the layer of the given pages on
  LayerDistance sealed, tail;
  const std::int64_t* layer_offsets;  // [n_layers], additional bytes of each layer; may be null
};

// Returns the pages of the layer that comes `nth` layers after the layer of `pages`.
template <class Pages>
__device__ inline Pages of_layer(Pages pages, const LayerDistance& distance, const std::int64_t* offsets,
                                 int nth) {
  pages.table += nth * distance.entries;
  pages.pool += nth * distance.bytes + (offsets == nullptr ? 0 : offsets[nth]);
  return pages;
}

// Holds the rows from which pages are made if the tokens are not in the tail.
struct SealedRows {
  // `first` [n_seqs] holds the first row of each sequence's first due page. A negative row means that the
  // page is in the tail. A null pointer means that all pages are in the tail.
  const std::int32_t* first;
  NumberType type;
  AppendedRows sides[2];
};

// SealUnit describes the pages of a KV head and side.
struct SealUnit {
  HeadPages sealed, tail;
  const void* codebook;  // of vector formats
  // The metric weighs the errors of keys in trellis pages; null means that errors have equal weights. If
  // `turns` [D] is null, `metric` has the layout of kvant_decode_layer.key_metrics. Otherwise `metric`
  // contains the directions [D][kMetricRank], and `turns` contains the ChannelFrame of each channel.
  const float* metric;
  const float2* turns;
  std::uint32_t* pages_out_of_range;  // may be null
  std::uint8_t head, side, sink;
};

// All GPUs accept kernel arguments of 4096 bytes.
inline constexpr int kMaxSealUnits = 28;

struct SealArgs {
  int n_seqs;
  int admits_next;  // if not 0, the next launch of the same call may start before this launch ends
  DueArgs due;
  const uint4* masks;
  std::int64_t mask_seq_stride, mask_head_stride;
  PageEncoding sides[2];
  PageMetrics page_metrics;
  SealedRows rows;  // only for encodings for which takes_rows() is true
  int n_units;
  SealUnit units[kMaxSealUnits];
};
static_assert(sizeof(SealArgs) <= 4096);

// Returns the number of due pages of a sequence, if the sequence has due pages.
__device__ inline int pages_of(const DueArgs& due, int seq) {
  return due.n_pages == nullptr ? due.max_pages : min(due.n_pages[seq], due.max_pages);
}
// Returns the number of due pages of a sequence in the tail, or 0 if the sequence has none.
__device__ inline int pages_due(const DueArgs& due, int seq) {
  return due.tail_page[seq] < 0 ? 0 : pages_of(due, seq);
}

// Returns the row of the first token of a sequence's first due page. A negative result means that the
// sequence's pages are in the tail.
__device__ inline std::int64_t first_due_row(const SealedRows& rows, int seq) {
  return rows.first == nullptr ? -1 : rows.first[seq];
}

struct AppendArgs {
  std::int64_t n_rows;
  int n_kv_heads, group;
  NumberType type;  // type of all rows
  PageSource tail;
  const std::int32_t *seq, *tail_token;
  // If tail_tokens [n_seqs] is not null, the rows are the last tokens of each sequence, and tail_tokens
  // counts the tokens in the tail.
  const std::int32_t* tail_tokens;
  // query_begins [n_seqs + 1] holds the first row of each sequence. Null means that each sequence has
  // n_queries rows.
  const std::int32_t* query_begins;
  int n_seqs, n_queries;
  AppendedRows sides[2];
  AppendedRows queries;  // transformed in place; the pointer to the rows may be null
};

}  // namespace kvant::cuda
