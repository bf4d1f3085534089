// vch<B>[m] and vtok<B>[m] are KVarN's formats (arXiv 2606.03458; huawei-csl/KVarN). A page is a tile whose
// rows and columns are scaled to equal standard deviations. Each row then has a uniform grid of 2^B values. B
// is 2, 3 or 4. KVarN stores K as vch and V as vtok, both after a Hadamard rotation of the whole head.
//   vch<B>   a row is a channel, and a column is a token
//   vtok<B>  a row is a token, and a column is a channel
//
// Bytes of a page, d channels, with r rows and c columns (r = d and c = kPageTokens for vch, the reverse for
// vtok):
//   codes    [kPageTokens][d]  B bits each, a little-endian bit stream
//                              (bit_packing.h): d * B / 8 bytes a token
//   steps    [r]               f16
//   offsets  [r]               f16
//   columns  [c]               f16
// Bits per value: B + 16 (2 r + c) / (kPageTokens d), so B + 0.25 + 16 / d for vch and B + 32 / d + 0.125 for
// vtok.
//
// value = (code * step of the row + offset of the row) * factor of the column
//
// Encoding begins with Y = X and the logarithms of all scales at 0. Eight rounds scale first the columns and
// then the rows: log += ln clamp(std of Y, 1e-3, 1e3), clamped to [-0.3, 10], and Y is X divided by both
// scales. std is the sample's (n - 1). The imbalance is the ratio of the largest to the smallest std of
// columns, plus the same ratio of rows. The scales with the lowest imbalance win, and in a tie the later
// scales. A row of Y then has the step s = max((max - min) / (2^B - 1), 1e-10). The code of y is
// (y - min) / s, with halves rounded to even. Steps and offsets of rows are stored times the row's scale.
//
// The mended variant (m) is kvant's. The lower limit e^-0.3 leaves tiles of small values unscaled, so X is
// first divided by its root mean square. Rows then have grids from m - k s to m + k s, with the mean m and
// the standard deviation s of the row, and the k that is best for normal values (Max 1960): 1.4936, 2.0510
// and 2.5140 for B = 2, 3 and 4. Codes saturate.
//
// Left-out tokens count in no standard deviation, range or mean. Their codes are clamped, and their column
// has the factor 1. Parameters saturate at 65504.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/float16.h"
#include "format/bit_packing.h"
#include "format/families.h"
#include "format/name_reader.h"

namespace kvant {
namespace {

constexpr int kRounds = 8;
constexpr double kLeastDeviation = 1e-3, kMostDeviation = 1e3;
constexpr double kLeastLog = -0.3, kMostLog = 10;
constexpr double kLeastRatio = 1e-8;  // smallest standard deviation in the denominator of an imbalance
constexpr double kVarnLeastStep = 1e-10;
constexpr int kLeastBits = 2, kMostBits = 4;
constexpr std::array<double, 3> kClips{1.4936, 2.0510, 2.5140};  // by bits, in standard deviations

struct VarnShape {
  int bits = 0;
  bool by_channel = false;  // whether a row is a channel (vch)
  bool mended = false;

  int rows(int d) const { return by_channel ? d : kPageTokens; }
  int columns(int d) const { return by_channel ? kPageTokens : d; }
};

constexpr std::size_t varn_page_bytes(int bits, int rows, int columns, int d) {
  return static_cast<std::size_t>(kPageTokens) * d * bits / 8 + 2 * (2 * rows + columns);
}
static_assert(varn_page_bytes(4, 128, 128, 128) == 8960 && varn_page_bytes(2, 128, 128, 128) == 4864);
static_assert(varn_page_bytes(4, 64, 128, 64) == 4608 && varn_page_bytes(2, 128, 64, 64) == 2688);

// VarnTile holds the counted values of a page as [rows][columns], in double precision, because squares of F32
// values may overflow.
struct VarnTile {
  int rows = 0, columns = 0;
  std::vector<double> x;

  double at(int row, int column) const { return x[static_cast<std::size_t>(row) * columns + column]; }
};

double sample_deviation(double sum, double squares, int n) {
  if (n < 2) return 0;
  return std::sqrt(std::max(0.0, (squares - sum * sum / n) / (n - 1)));
}

struct Deviations {
  std::vector<double> rows, columns;
};

// Returns the standard deviations of the tile divided by the scales of its rows and columns.
Deviations deviations_of(const VarnTile& tile, const std::vector<double>& row_scale,
                         const std::vector<double>& column_scale) {
  Deviations found{std::vector<double>(tile.rows), std::vector<double>(tile.columns)};
  std::vector<double> sums(tile.columns), squares(tile.columns), inverse(tile.columns);
  for (int c = 0; c < tile.columns; ++c) inverse[c] = 1 / column_scale[c];
  for (int r = 0; r < tile.rows; ++r) {
    const double row_inverse = 1 / row_scale[r];
    double sum = 0, square = 0;
    for (int c = 0; c < tile.columns; ++c) {
      const double y = tile.at(r, c) * row_inverse * inverse[c];
      sum += y;
      square += y * y;
      sums[c] += y;
      squares[c] += y * y;
    }
    found.rows[r] = sample_deviation(sum, square, tile.columns);
  }
  for (int c = 0; c < tile.columns; ++c) found.columns[c] = sample_deviation(sums[c], squares[c], tile.rows);
  return found;
}

double imbalance(const Deviations& deviations) {
  const auto ratio = [](const std::vector<double>& of) {
    if (of.empty()) return 1.0;
    const auto [least, most] = std::minmax_element(of.begin(), of.end());
    return *most / std::max(*least, kLeastRatio);
  };
  return ratio(deviations.columns) + ratio(deviations.rows);
}

void grow(std::vector<double>& logs, const std::vector<double>& deviations, std::vector<double>& scales) {
  for (std::size_t i = 0; i < logs.size(); ++i) {
    const double more = std::log(std::clamp(deviations[i], kLeastDeviation, kMostDeviation));
    logs[i] = std::clamp(logs[i] + more, kLeastLog, kMostLog);
    scales[i] = std::exp(logs[i]);
  }
}

struct Scales {
  std::vector<double> rows, columns;
};

Scales balanced_scales(const VarnTile& tile) {
  Scales now{std::vector<double>(tile.rows, 1.0), std::vector<double>(tile.columns, 1.0)};
  Scales best = now;
  std::vector<double> row_logs(tile.rows), column_logs(tile.columns);
  Deviations deviations = deviations_of(tile, now.rows, now.columns);
  double least = imbalance(deviations);
  for (int round = 0; round < kRounds; ++round) {
    grow(column_logs, deviations.columns, now.columns);
    grow(row_logs, deviations_of(tile, now.rows, now.columns).rows, now.rows);
    deviations = deviations_of(tile, now.rows, now.columns);
    const double found = imbalance(deviations);
    if (found > least) continue;
    least = found;
    best = now;
  }
  return best;
}

// Represents the grid of a row of the scaled tile.
struct RowGrid {
  double low = 0, step = kVarnLeastStep;
};

RowGrid fit_row(const VarnTile& tile, const Scales& scales, int row, const VarnShape& shape) {
  double low = HUGE_VAL, high = -HUGE_VAL, sum = 0, squares = 0;
  for (int c = 0; c < tile.columns; ++c) {
    const double y = tile.at(row, c) / scales.rows[row] / scales.columns[c];
    low = std::min(low, y);
    high = std::max(high, y);
    sum += y;
    squares += y * y;
  }
  if (tile.columns == 0) return {};
  if (shape.mended) {
    const double mean = sum / tile.columns;
    const double reach =
        kClips[shape.bits - kLeastBits] * std::sqrt(std::max(0.0, squares / tile.columns - mean * mean));
    low = mean - reach;
    high = mean + reach;
  }
  return {low, std::max((high - low) / ((1 << shape.bits) - 1), kVarnLeastStep)};
}

double root_mean_square(const VarnTile& tile) {
  double squares = 0;
  for (const double x : tile.x) squares += x * x;
  return tile.x.empty() ? 0 : std::sqrt(squares / static_cast<double>(tile.x.size()));
}

class VarnFormat : public Format {
 public:
  VarnFormat(const std::string& name, const VarnShape& shape) : Format(name), shape_(shape) {}

  std::size_t page_bytes(int head_dim) const override {
    return varn_page_bytes(shape_.bits, shape_.rows(head_dim), shape_.columns(head_dim), head_dim);
  }

  void encode(const float* values, const TokenMask& left_out, const PageContext& context,
              std::byte* page) const override {
    const int d = context.head_dim;
    const std::vector<int> tokens = counted_tokens(left_out);
    VarnTile tile = tile_of(values, tokens, d);
    const double size = shape_.mended ? root_mean_square(tile) : 1;
    const double unit = size > 0 ? size : 1;
    for (double& x : tile.x) x /= unit;
    const Scales scales = balanced_scales(tile);
    std::vector<RowGrid> grids(tile.rows);
    for (int row = 0; row < tile.rows; ++row) grids[row] = fit_row(tile, scales, row, shape_);

    // Every row and column of the page gets parameters. A left-out token has the neutral ones.
    std::vector<double> row_scale(shape_.rows(d), 1.0), column_scale(shape_.columns(d), 1.0);
    std::vector<RowGrid> grid(shape_.rows(d));
    for (int row = 0; row < tile.rows; ++row) {
      const int at = shape_.by_channel ? row : tokens[row];
      row_scale[at] = scales.rows[row];
      grid[at] = grids[row];
    }
    for (int column = 0; column < tile.columns; ++column)
      column_scale[shape_.by_channel ? tokens[column] : column] = scales.columns[column];
    write_codes(values, d, unit, row_scale, column_scale, grid, page);
    write_parameters(d, unit, row_scale, column_scale, grid, page);
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim, rows = shape_.rows(d), columns = shape_.columns(d);
    std::array<float, kMaxSide> step, offset, factor;
    const std::byte* parameters = parameters_of(page, d);
    float_row_from_f16(parameters, step.data(), rows);
    float_row_from_f16(parameters + std::ptrdiff_t{2} * rows, offset.data(), rows);
    float_row_from_f16(parameters + std::ptrdiff_t{4} * rows, factor.data(), columns);
    std::array<std::uint16_t, kMaxHeadDim> codes;
    for (int token = 0; token < n_tokens; ++token) {
      unpack_codes(codes_of(page, token, d), d, shape_.bits, codes.data());
      float* out = values + static_cast<std::ptrdiff_t>(token) * d;
      for (int i = 0; i < d; ++i) {
        const int row = shape_.by_channel ? i : token, column = shape_.by_channel ? token : i;
        out[i] = (static_cast<float>(codes[i]) * step[row] + offset[row]) * factor[column];
      }
    }
  }

 private:
  static constexpr int kMaxSide = std::max(kMaxHeadDim, kPageTokens);

  template <class Byte>
  Byte* codes_of(Byte* page, int token, int d) const {
    return page + static_cast<std::ptrdiff_t>(token) * (d * shape_.bits / 8);
  }
  template <class Byte>
  Byte* parameters_of(Byte* page, int d) const {
    return codes_of(page, kPageTokens, d);
  }

  static std::vector<int> counted_tokens(const TokenMask& left_out) {
    std::vector<int> tokens;
    for (int token = 0; token < kPageTokens; ++token) {
      if (!left_out.test(token)) tokens.push_back(token);
    }
    return tokens;
  }

  VarnTile tile_of(const float* values, const std::vector<int>& tokens, int d) const {
    const int n = static_cast<int>(tokens.size());
    VarnTile tile{shape_.by_channel ? d : n, shape_.by_channel ? n : d,
                  std::vector<double>(tokens.size() * d)};
    for (int t = 0; t < n; ++t) {
      for (int i = 0; i < d; ++i) {
        const int at = shape_.by_channel ? i * n + t : t * d + i;
        tile.x[at] = values[static_cast<std::ptrdiff_t>(tokens[t]) * d + i];
      }
    }
    return tile;
  }

  void write_codes(const float* values, int d, double unit, const std::vector<double>& row_scale,
                   const std::vector<double>& column_scale, const std::vector<RowGrid>& grid,
                   std::byte* page) const {
    const double last = (1 << shape_.bits) - 1;
    std::array<std::uint16_t, kMaxHeadDim> codes;
    for (int token = 0; token < kPageTokens; ++token) {
      for (int i = 0; i < d; ++i) {
        const int row = shape_.by_channel ? i : token, column = shape_.by_channel ? token : i;
        const double y =
            values[static_cast<std::ptrdiff_t>(token) * d + i] / unit / row_scale[row] / column_scale[column];
        const double position = std::nearbyint((y - grid[row].low) / grid[row].step);
        codes[i] = static_cast<std::uint16_t>(std::clamp(position, 0.0, last));
      }
      pack_codes(codes.data(), d, shape_.bits, codes_of(page, token, d));
    }
  }

  void write_parameters(int d, double unit, const std::vector<double>& row_scale,
                        const std::vector<double>& column_scale, const std::vector<RowGrid>& grid,
                        std::byte* page) const {
    std::byte* to = parameters_of(page, d);
    const auto write = [&to](double number) {
      const double inside = std::clamp<double>(number, -kF16Max, kF16Max);
      const std::uint16_t half = f16_from_float_saturated(static_cast<float>(inside));
      std::memcpy(to, &half, sizeof half);
      to += sizeof half;
    };
    for (std::size_t row = 0; row < grid.size(); ++row) write(grid[row].step * row_scale[row] * unit);
    for (std::size_t row = 0; row < grid.size(); ++row) write(grid[row].low * row_scale[row] * unit);
    for (const double factor : column_scale) write(factor);
  }

  VarnShape shape_;
};

std::unique_ptr<Format> parse_varn(const std::string& name) {
  NameReader reader(name);
  const bool by_channel = reader.take("vch");
  if (!by_channel && !reader.take("vtok")) return nullptr;
  const int bits = reader.take_number();
  const bool mended = reader.take("m");
  if (!reader.at_end() || bits < kLeastBits || bits > kMostBits) return nullptr;
  return std::make_unique<VarnFormat>(name, VarnShape{bits, by_channel, mended});
}

std::vector<std::string> varn_members() {
  std::vector<std::string> members;
  for (const char* pattern : {"vch{}", "vtok{}", "vch{}m", "vtok{}m"}) {
    for (int bits = kLeastBits; bits <= kMostBits; ++bits)
      members.push_back(fmt::format(fmt::runtime(pattern), bits));
  }
  return members;
}

}  // namespace

const FormatFamily& varn_family() {
  static const FormatFamily family{"vch<B>[m]|vtok<B>[m]",
                                   "KVarN: B bits (2 to 4) by channel (vch) or token (vtok), after tokens "
                                   "and channels of the page are scaled "
                                   "to equal deviations; m: mended",
                                   varn_members(), parse_varn};
  return family;
}

}  // namespace kvant
