#include "calibrate/format_shares.h"

#include <cmath>

#include "recipe/bit_allocation.h"

namespace kvant {
namespace {

// LadderParts holds indices of the ladder's formats. Fine formats have at least as many bits as the probe
// format, and coarse formats have fewer bits.
struct LadderParts {
  std::vector<int> fine, coarse;
};

LadderParts parts_of(const Recipe& recipe, int head_dim) {
  const double least = probe_format(recipe, head_dim).bits(head_dim);
  LadderParts parts;
  for (int i = 0; i < static_cast<int>(recipe.ladder.size()); ++i)
    (find_format(recipe.ladder[i])->bits(head_dim) >= least ? parts.fine : parts.coarse).push_back(i);
  return parts;
}

// Returns the geometric mean of a place's shares of the sums. The mean is 0 if one share is 0, or if all sums
// are 0.
double mean_share(const std::vector<float>& costs, const std::vector<int>& formats,
                  const std::vector<double>& sums) {
  double logarithms = 0;
  int n = 0;
  for (const int f : formats) {
    if (sums[f] <= 0) continue;
    logarithms += std::log(costs[f] / sums[f]);
    ++n;
  }
  return n > 0 ? std::exp(logarithms / n) : 0;
}

class SideShares {
 public:
  SideShares(const Sensitivities& from, Sensitivities& to, int n_formats)
      : from_(from), to_(to), n_formats_(n_formats) {}

  // Returns the relative shares of the given places, whose sum need not be 1.
  std::vector<double> shares(const std::vector<int>& places, const std::vector<int>& formats) const {
    const std::vector<double> sums = sums_of(places);
    std::vector<double> shares;
    for (const int place : places) shares.push_back(mean_share(from_[place], formats, sums));
    return shares;
  }

  void share_out(const std::vector<int>& places, const std::vector<double>& shares,
                 const std::vector<int>& formats) {
    const std::vector<double> sums = sums_of(places);
    double all = 0;
    for (const double share : shares) all += share;
    for (std::size_t i = 0; all > 0 && i < places.size(); ++i)
      for (const int f : formats) to_[places[i]][f] = static_cast<float>(sums[f] * shares[i] / all);
  }

 private:
  std::vector<double> sums_of(const std::vector<int>& places) const {
    std::vector<double> sums(n_formats_, 0.0);
    for (const int place : places)
      for (int f = 0; f < n_formats_; ++f) sums[f] += from_[place][f];
    return sums;
  }

  const Sensitivities& from_;
  Sensitivities& to_;
  int n_formats_;
};

}  // namespace

Sensitivities shared_over_formats(const Sensitivities& sensitivities, const Geometry& geometry,
                                  const Recipe& recipe) {
  const LadderParts parts = parts_of(recipe, geometry.head_dim);
  Sensitivities result = sensitivities;
  SideShares side_shares(sensitivities, result, static_cast<int>(recipe.ladder.size()));
  for (const Side side : kSides) {
    std::vector<int> places;
    for (int layer = 0; layer < geometry.n_layers; ++layer)
      for (int head = 0; head < geometry.kv_heads(layer); ++head)
        places.push_back(place_of(geometry, layer, head, side));
    const std::vector<double> shares = side_shares.shares(places, parts.fine);
    side_shares.share_out(places, shares, parts.fine);
    auto first = shares.begin();
    for (int layer = 0; layer < geometry.n_layers; ++layer) {
      std::vector<int> of_layer;
      for (int head = 0; head < geometry.kv_heads(layer); ++head)
        of_layer.push_back(place_of(geometry, layer, head, side));
      const auto end = first + geometry.kv_heads(layer);
      side_shares.share_out(of_layer, {first, end}, parts.coarse);
      first = end;
    }
  }
  return result;
}

}  // namespace kvant
