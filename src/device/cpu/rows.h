// How the CPU library finds pages and reads rows, by what kvant/kvant.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/token_mask.h"
#include "format/format.h"
#include "kvant/kvant.h"

namespace kvant::device::cpu {

std::byte* page_address(const kvant_pages& p, std::int64_t seq, int layer, int head, int side, int page);
std::byte* sealed_address(const kvant_decode_layer& layer, std::int64_t seq, int head, int side, int page);
const char* format_name(const kvant_decode_shape& shape, int head, int side);

// The format of a head's sealed pages of one side, and their context with the codebook that the layer has.
class SideContext {
 public:
  SideContext(const kvant_decode_shape& shape, const kvant_decode_layer& layer, int head, int side);
  SideContext(const SideContext&) = delete;
  SideContext& operator=(const SideContext&) = delete;
  // Requires that there is a format, which callers have checked where anything is sealed.
  const Format& format() const { return *format_; }
  const PageContext& context() const { return context_; }
  // Writes rows [kPageTokens][head_dim].
  void decode(const std::byte* page, float* rows) const {
    format_->decode(page, kPageTokens, context_, rows);
  }

 private:
  const Format* format_ = nullptr;
  Constants constants_;
  PageContext context_;
};

// The tokens of a sealed page that lie in protected pages.
TokenMask masked_tokens(const kvant_decode_layer& layer, std::int64_t seq, int head, int page);

// The first row of a sequence's queries, and the row behind the last one.
std::pair<int, int> query_rows(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths, int seq);

inline constexpr std::size_t number_bytes(kvant_type type) {
  return type == KVANT_F32 ? 4 : 2;
}
// Reads or writes n numbers that begin with number `at`.
void read_numbers(const void* rows, kvant_type type, std::int64_t at, int n, float* to);
void write_numbers(const float* from, int n, kvant_type type, std::int64_t at, void* rows);

// Reads or writes a row of a BF16 page.
void read_row(const std::byte* page, int d, int token, float* to);
void write_row(const float* from, int d, int token, std::byte* page);

// Multiplies a row by factors [d]; null leaves it as it is.
void scale_row(float* row, int d, const float* factors);
// Multiplies a row by the orthonormal Walsh-Hadamard matrix.
void rotate_row(float* row, int d);

double dot(const float* a, const float* b, int n);
// sums += factor row
void add_row(double factor, const float* row, int n, double* sums);

inline constexpr int kHalfFeatures = 128;  // of a correction
// phi(x) of kvant_correction. maps: [2][d][128].
std::vector<double> features(const float* maps, const float* x, int d);
float* correction_state(const kvant_correction& c, std::int64_t seq, int head);

}  // namespace kvant::device::cpu
