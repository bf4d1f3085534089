// Finds pages and reads rows by the rules of kvant/kvant.h, for all calls of the CPU library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/token_mask.h"
#include "device/cpu/kernels/finished_rows.h"
#include "format/format.h"
#include "format/page_view.h"
#include "kvant/kvant.h"

namespace kvant::device::cpu {

std::byte* page_address(const kvant_pages& p, std::int64_t seq, int layer, int head, int side, int page);
std::byte* sealed_address(const kvant_decode_layer& layer, std::int64_t seq, int head, int side, int page);
const char* format_name(const kvant_decode_shape& shape, int head, int side);

// StoredFormat says how the library keeps pages of one side. Codes are in the order that kernels read, if
// the format has such an order (format/code_order.h).
struct StoredFormat {
  const Format* format = nullptr;
  PageContext context;  // The context of formats without a codebook.
};
// Requires a format of this name. The reference stays valid for ever.
const StoredFormat& stored_format(const char* name, int side, int head_dim);

// SideContext has the format of a head's sealed pages of one side, and their context with the layer's
// codebook.
class SideContext {
 public:
  SideContext(const kvant_decode_shape& shape, const kvant_decode_layer& layer, int head, int side);
  SideContext(const SideContext&) = delete;
  SideContext& operator=(const SideContext&) = delete;
  // Requires that there is a format. Callers have checked this if there are sealed pages.
  const Format& format() const { return *stored_->format; }
  const PageContext& context() const {
    return with_codebook_.head_dim > 0 ? with_codebook_ : stored_->context;
  }
  // Writes rows [kPageTokens][head_dim].
  void decode(const std::byte* page, float* rows) const {
    format().decode(page, kPageTokens, context(), rows);
  }

 private:
  const StoredFormat* stored_ = nullptr;
  Constants constants_;
  PageContext with_codebook_;
};

// Returns the tokens of a sealed page that lie in protected pages.
TokenMask masked_tokens(const kvant_decode_layer& layer, std::int64_t seq, int head, int page);

// Returns a head's sealed page as attention reads it. `key` and `value` outlive the view.
PageView sealed_page(const kvant_decode_layer& layer, std::int64_t seq, int head, int page,
                     const SideContext& key, const SideContext& value);

// Returns the first row of a sequence's queries, and the row after the last one.
std::pair<int, int> query_rows(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths, int seq);

// Estimates the multiplications of a call of kvant_decode_attention.
std::int64_t attention_work(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths);
// Appends one head of the rows that come with the call.
void append_new_rows(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                     const kvant_decode_layer& layer, int seq, int head);
// Reads a query, [head_dim], and transforms it to match keys if new rows come with queries.
void read_query(const kvant_decode_shape& shape, const kvant_decode_layer& layer, std::int64_t row,
                int query_head, float* q);
// Writes the output and the LSE of a query. The call overwrites `out`.
void write_output(const kvant_decode_shape& shape, const kvant_decode_layer& layer, std::int64_t row,
                  int query_head, float* out, float lse);

inline constexpr std::size_t number_bytes(kvant_type type) {
  return type == KVANT_F32 ? 4 : 2;
}
// Reads or writes n numbers that begin with number `at`.
void read_numbers(const void* rows, kvant_type type, std::int64_t at, int n, float* to);
void write_numbers(const float* from, int n, kvant_type type, std::int64_t at, void* rows);

// Reads or writes a row of a BF16 page.
void read_row(const std::byte* page, int d, int token, float* to);
void write_row(const float* from, int d, int token, std::byte* page);

// Multiplies a row by factors [d]. Null leaves the row unchanged.
void scale_row(float* row, int d, const float* factors);
// Multiplies a row by the orthonormal Walsh-Hadamard matrix.
void rotate_row(float* row, int d);

// Returns the sums of a correction for a sequence and KV head: S [kCorrectionFeatures][head_dim], then z.
float* correction_state(const kvant_correction& c, std::int64_t seq, int head);
// Returns what finishes the rows of a KV head. `correction` and `sink_logits` may be null. `sums` has the
// correction's sums for each query.
RowEnds row_ends(const kvant_correction* correction, std::span<const float* const> sums,
                 const float* sink_logits, int head, int group, int head_dim, float softmax_scale);

}  // namespace kvant::device::cpu
