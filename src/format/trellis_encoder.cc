#include "format/trellis_encoder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "format/affine_row.h"

namespace kvant {
namespace {

// kRunIn values before the seam choose the seam's node. Values further away have hardly any effect.
constexpr int kRunIn = 12;
// find_circles() makes at most kAttempts passes to find a path that ends where the path begins. After that,
// find_path_from() prescribes the seam.
constexpr int kAttempts = 3;
constexpr std::uint16_t kForbidden = 0xffff;
constexpr int kRows = 4;  // rows that are searched side by side

// Searches for the paths of up to kRows rows of n values.
class Search {
 public:
  Search(const TrellisBranches& branches, const ViterbiKernel& kernel, int n)
      : branches_(branches),
        kernel_(kernel),
        n_(n),
        stride_(kViterbiStride[branches.bits()]),
        least_(static_cast<std::size_t>(kRows) * (kRunIn + n + 1) * stride_) {}

  void encode(const float* values, int n_rows, std::uint16_t* symbols) {
    for (int row = 0; row < n_rows; ++row) {
      std::uint16_t* bins = bins_[row].data();
      branches_.find_bins(values + static_cast<std::ptrdiff_t>(row) * n_, n_, bins + kRunIn);
      std::copy_n(bins + n_, kRunIn, bins);
    }
    find_circles(n_rows);
    for (int row = 0; row < n_rows; ++row) {
      if (!is_circle(row)) find_path_from(nodes_[row][0], row);
      branches_.find_symbols(bins_[row].data() + kRunIn, nodes_[row].data(), n_,
                             symbols + static_cast<std::ptrdiff_t>(row) * n_);
    }
  }

 private:
  bool is_circle(int row) const { return nodes_[row][0] == nodes_[row][n_]; }

  // Finds paths that end where they begin. Some rows may remain without such a path.
  void find_circles(int n_rows) {
    ViterbiRow rows[kRows];
    for (int row = 0; row < n_rows; ++row) {
      rows[row] = {bins_[row].data(), least_of(row), nodes_[row].data()};
      std::fill_n(rows[row].least, stride_, std::uint16_t{0});
    }
    kernel_.forward(branches_.costs(), kRunIn + n_, rows, n_rows);
    for (int row = 0; row < n_rows; ++row) {
      const std::uint16_t* last = rows[row].least + static_cast<std::ptrdiff_t>(kRunIn + n_) * stride_;
      nodes_[row].fill(kNoNode);
      nodes_[row][n_] = static_cast<std::uint8_t>(std::min_element(last, last + branches_.nodes()) - last);
      rows[row].bins += kRunIn;
      rows[row].least += static_cast<std::ptrdiff_t>(kRunIn) * stride_;
    }
    kernel_.trace(branches_.costs(), n_, rows, n_rows);
    for (int attempt = 1; attempt < kAttempts; ++attempt) {
      for (int row = 0; row < n_rows; ++row) nodes_[row][n_] = nodes_[row][0];
      kernel_.trace(branches_.costs(), n_, rows, n_rows);
    }
  }

  void find_path_from(std::uint8_t seam, int row) {
    const ViterbiRow only = {bins_[row].data() + kRunIn, least_of(row), nodes_[row].data()};
    std::fill_n(only.least, stride_, kForbidden);
    only.least[seam] = 0;
    kernel_.forward(branches_.costs(), n_, &only, 1);
    nodes_[row].fill(kNoNode);
    nodes_[row][n_] = seam;
    kernel_.trace(branches_.costs(), n_, &only, 1);
  }

  std::uint16_t* least_of(int row) {
    return least_.data() + static_cast<std::ptrdiff_t>(row) * (kRunIn + n_ + 1) * stride_;
  }

  const TrellisBranches& branches_;
  const ViterbiKernel& kernel_;
  int n_;
  int stride_;
  std::vector<std::uint16_t> least_;  // [kRows][kRunIn + n + 1][stride]
  // The bins of the last kRunIn values come first, then the bins of all values.
  std::array<std::uint16_t, kRunIn + kMaxHeadDim> bins_[kRows];
  std::array<std::uint8_t, kMaxHeadDim + 1> nodes_[kRows];  // nodes_[row][i]: the node before value i
};

}  // namespace

void TrellisEncoder::find_seams(const float* values, int n_rows, int n, std::uint8_t* seams) const {
  const int stride = kViterbiStride[branches_.bits()];
  std::vector<std::uint16_t> least(static_cast<std::size_t>(kRows) * (2 * kRunIn + 1) * stride);
  std::array<std::uint16_t, 2 * kRunIn> bins[kRows];
  std::array<std::uint8_t, 2 * kRunIn + 1> nodes[kRows];
  for (int first = 0; first < n_rows; first += kRows) {
    const int n_together = std::min(kRows, n_rows - first);
    ViterbiRow rows[kRows];
    for (int row = 0; row < n_together; ++row) {
      const float* x = values + static_cast<std::ptrdiff_t>(first + row) * n;
      branches_.find_bins(x + n - kRunIn, kRunIn, bins[row].data());
      branches_.find_bins(x, kRunIn, bins[row].data() + kRunIn);
      rows[row] = {bins[row].data(),
                   least.data() + static_cast<std::ptrdiff_t>(row) * (2 * kRunIn + 1) * stride,
                   nodes[row].data()};
      std::fill_n(rows[row].least, stride, std::uint16_t{0});
      nodes[row].fill(kNoNode);
    }
    kernel_.forward(branches_.costs(), 2 * kRunIn, rows, n_together);
    for (int row = 0; row < n_together; ++row) {
      const std::uint16_t* last = rows[row].least + static_cast<std::ptrdiff_t>(2 * kRunIn) * stride;
      nodes[row].back() = static_cast<std::uint8_t>(std::min_element(last, last + branches_.nodes()) - last);
    }
    kernel_.trace(branches_.costs(), 2 * kRunIn, rows, n_together);
    for (int row = 0; row < n_together; ++row) seams[first + row] = nodes[row][kRunIn];
  }
}

void TrellisEncoder::encode(const float* values, int n_rows, int n, std::uint16_t* symbols) const {
  KVANT_CHECK(n % 8 == 0 && n >= kLeastTrellisRow && n <= kMaxHeadDim, "a trellis row has 16 to 512 values");
  Search search(branches_, kernel_, n);
  for (int row = 0; row < n_rows; row += kRows) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * n;
    search.encode(values + first, std::min(kRows, n_rows - row), symbols + first);
  }
}

}  // namespace kvant
