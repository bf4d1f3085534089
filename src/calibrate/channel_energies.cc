#include "calibrate/channel_energies.h"

namespace kvant {
namespace {

void add_mean_squares(MatrixView<const float> rows, std::vector<double>& sums) {
  std::vector<double> squares(rows.cols);
  for (int r = 0; r < rows.rows; ++r)
    for (int c = 0; c < rows.cols; ++c) squares[c] += double{rows.row(r)[c]} * rows.row(r)[c];
  for (int c = 0; c < rows.cols; ++c) sums[c] += squares[c] / rows.rows;
}

}  // namespace

std::vector<float> channel_energies(MatrixView<const float> keys, MatrixView<const float> queries,
                                    std::span<const ChannelTurn> turns) {
  std::vector<double> energies(keys.cols);
  add_mean_squares(keys, energies);
  add_mean_squares(queries, energies);
  for (const ChannelTurn& turn : turns)
    energies[turn.first] = energies[turn.second] = energies[turn.first] + energies[turn.second];
  for (double& energy : energies) energy /= 2;
  return {energies.begin(), energies.end()};
}

}  // namespace kvant
