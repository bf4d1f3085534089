#include "format/trellis_branches.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvant {
namespace {

// kSquaredErrors[B] is the approximate squared error that B bits leave of a variance of 1.
constexpr double kSquaredErrors[] = {0, .287, .0777, .0211, .00585, .0018, .00058};
// kBinWidth is the width of a bin, in root mean squared errors. Bins add .5 % to the squared error.
constexpr double kBinWidth = 0.25;
// kBeyondLevels is the distance of the last bins from the largest level, in root mean squared errors.
constexpr double kBeyondLevels = 4;
constexpr double kCostUnit = 16;  // cost of a squared error of kSquaredErrors
constexpr int kMaxCost = 0xffff;

}  // namespace

TrellisBranches::TrellisBranches(const TrellisTable& table) : bits_(table.bits) {
  const double error = std::sqrt(kSquaredErrors[bits_]);
  const double width = kBinWidth * error;
  int largest = 0;
  for (const std::int8_t level : table.levels) largest = std::max(largest, std::abs(static_cast<int>(level)));
  const int half =
      static_cast<int>(std::ceil((largest * double{table.scale} + kBeyondLevels * error) / width));
  last_bin_ = 2 * half;
  bins_per_unit_ = static_cast<float>(1 / width);
  for (int bin = 0; bin <= last_bin_; ++bin) add_bin((bin - half) * width, table);
}

void TrellisBranches::add_bin(double value, const TrellisTable& table) {
  double errors[kTrellisStates];
  for (int state = 0; state < kTrellisStates; ++state) {
    const double difference = value - table.levels[state] * double{table.scale};
    errors[state] = difference * difference;
  }
  // The least error is common to all paths, so costs leave it out.
  const double least = *std::min_element(errors, errors + kTrellisStates);
  const std::size_t first = forward_.size();
  forward_.resize(first + static_cast<std::size_t>(nodes()) * parents());
  for (int to = 0; to < nodes(); ++to) {
    for (int k = 0; k < parents(); ++k) {
      // Several states may lead from parent k to node `to`. Only the state with the least error counts.
      int best = to << bits_ | k;
      for (int state = best; state < (to + 1) << bits_; state += parents())
        if (errors[state] < errors[best]) best = state;
      const double cost = std::nearbyint((errors[best] - least) * (kCostUnit / kSquaredErrors[bits_]));
      backward_.push_back(static_cast<std::uint16_t>(std::min<double>(cost, kMaxCost)));
      forward_[first + static_cast<std::size_t>(k) * nodes() + to] = backward_.back();
      if (bits_ > kTrellisBits / 2)
        symbols_.push_back(static_cast<std::uint8_t>(best >> (kTrellisBits - bits_)));
    }
  }
}

void TrellisBranches::find_bins(const float* values, int n, std::uint16_t* bins) const {
  const float maximum = static_cast<float>(last_bin_) / 2;
  for (int i = 0; i < n; ++i) {
    const float centred = std::clamp(values[i] * bins_per_unit_, -maximum, maximum);
    bins[i] = static_cast<std::uint16_t>(static_cast<int>(centred + (maximum + 0.5F)));
  }
}

void TrellisBranches::find_symbols(const std::uint16_t* bins, const std::uint8_t* nodes, int n,
                                   std::uint16_t* symbols) const {
  if (bits_ <= kTrellisBits / 2) {  // A symbol is part of the node to which it leads.
    for (int i = 0; i < n; ++i)
      symbols[i] = static_cast<std::uint16_t>(nodes[i + 1] >> (kTrellisBits - 2 * bits_));
  } else {
    for (int i = 0; i < n; ++i)
      symbols[i] =
          symbols_[(static_cast<std::size_t>(bins[i]) * this->nodes() + nodes[i + 1]) * parents() + nodes[i]];
  }
}

}  // namespace kvant
