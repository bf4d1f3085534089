// CorrectionState holds the sums of KVLinC's linear correction over the sealed pages of one (sequence, layer,
// KV head). The sums are S = sum phi_k(e)^T v and P = sum phi_k(e), where e = K - K_q is the key's rounding
// error (KVLinC section 3, eq. 5, 6).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/linear_correction.h"
#include "base/matrix_view.h"
#include "base/token_mask.h"

namespace kvant {

// Returns the bytes of S and P for a head size.
std::int64_t correction_bytes(int head_dim);

class CorrectionState {
 public:
  bool empty() const { return sums_.empty(); }
  // Allocates S and P as zeros.
  void reserve(int head_dim);

  // Adds the K errors and quantized V, [n, d], of a page, except for the tokens in left_out. `adapter` holds
  // the weights of phi_k.
  void add(std::span<const float> adapter, MatrixView<const float> errors, MatrixView<const float> values,
           const TokenMask& left_out);

  // Returns S and P as [D][d + 1], with P in the last column. The list is empty if nothing has been summed
  // up.
  const std::vector<float>& sums() const { return sums_; }
  CorrectionSums<const float> sums_by_feature() const {
    return {sums_.data(), head_dim_ + 1, sums_.data() + head_dim_, head_dim_ + 1};
  }
  // Takes sums in the form of sums(), for heads of this size.
  void take(std::vector<float> sums, int head_dim) {
    sums_ = std::move(sums);
    head_dim_ = head_dim;
  }
  std::int64_t bytes() const { return empty() ? 0 : correction_bytes(head_dim_); }

 private:
  int head_dim_ = 0;
  std::vector<float> sums_;
};

}  // namespace kvant
