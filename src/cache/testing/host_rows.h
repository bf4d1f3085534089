// Tests only: how the host's library (host_library.h) finds pages and reads rows: by what kvant/kvant.h says,
// in plain code, sums in double precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/token_mask.h"
#include "format/format.h"
#include "kvant/kvant.h"

namespace kvant::testing::host {

std::byte* address(const kvant_pages& p, std::int64_t seq, int layer, int head, int side, int page);
// Of a sealed page.
std::byte* sealed_address(const kvant_decode_layer& layer, std::int64_t seq, int head, int side, int page);
const Format& format_of(const kvant_decode_shape& shape, int head, int side);

// With the codebook of a head's side, read from where the layer says.
class SideContext {
 public:
  SideContext(const kvant_decode_shape& shape, const kvant_decode_layer& layer, int head, int side);
  SideContext(const SideContext&) = delete;
  SideContext& operator=(const SideContext&) = delete;
  const PageContext& context() const { return context_; }

 private:
  Constants constants_;
  PageContext context_;
};

// Tokens of a sealed page that lie in protected pages.
TokenMask masked(const kvant_decode_layer& layer, int seq, int head, int page);

// Rows of a sequence's queries: the first, and the one behind the last.
std::pair<int, int> query_rows(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths, int seq);

// A row of a page of bf16.
void read_row(const std::byte* page, int d, int token, float* to);
// A row that begins with number `at`.
void read_numbers(const void* rows, kvant_type type, std::int64_t at, std::vector<float>& to);
// Of a head: its row of [n_heads][d] factors, or null.
void scale(std::vector<float>& row, const float* factors, int head);

double dot(const float* a, const float* b, int n);
// sums += factor row
void add_row(double factor, const float* row, int n, double* sums);

// From the definition: the entry of channels i and j is +-1, by the parity of the bits that both have.
void walsh_hadamard(std::vector<float>& row);

inline constexpr int kHalfFeatures = 128;  // of a correction
// phi(x) of kvant_correction. maps: [2][d][128].
std::vector<double> features(const float* maps, const float* x, int d);
float* state(const kvant_correction& c, int seq, int head);

}  // namespace kvant::testing::host
