#include "compact/entry_coder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "compact/adaptive_integer.h"
#include "format/bit_packing.h"

namespace kvant {
namespace {

constexpr std::byte kStored{0}, kCoded{1};

// The deviations of a page are 2^((scale - usual) / 4) times the usual deviations.
constexpr int kScales = 16, kUsualScale = 8;
constexpr int kScaleRows = 4;          // Only one row in this many is inspected to find the scale.
constexpr double kMeanOfNormal = 0.8;  // the mean of |x|, in standard deviations

constexpr int kLogBits = 6;
// Returns log2(x) in 1 / 2^kLogBits, rounded down, and 0 for x = 0.
int log2_of(std::uint64_t x) {
  if (x == 0) return 0;
  const int whole = std::bit_width(x) - 1;
  std::uint64_t rest = x << (63 - whole) >> 32;  // 1 is represented by 2^31.
  int log = whole;
  for (int i = 0; i < kLogBits; ++i) {
    rest = rest * rest >> 31;
    log = log << 1 | static_cast<int>(rest >> 32);
    rest >>= rest >> 32;
  }
  return log;
}

// Returns 2^(-(scale - kUsualScale) / 4), multiplied by the square root of the ratio of gains, in 1 / 2^16.
std::int64_t narrowing(int scale, std::int32_t usual_gain, std::int32_t gain) {
  constexpr double kQuarters[] = {65536, 55109, 46341, 38968};
  const int quarters = scale - kUsualScale + kScales;  // >= 0
  const double factor = std::ldexp(kQuarters[quarters % 4], kScales / 4 - quarters / 4);
  const double ratio = static_cast<double>(usual_gain) / static_cast<double>(std::max(1, gain));
  const double product = std::sqrt(ratio) * factor;
  return product > 0x1p24 ? 1 << 24 : std::max<std::int64_t>(1, static_cast<std::int64_t>(product));
}

}  // namespace

struct EntryCoder::Models {
  struct OfSide {
    AdaptiveDifference means;
    AdaptiveNumber<8> gains;
    AdaptiveBit uncoded_rows;
  };
  OfSide sides[2];
  OfSide& of(Side side) { return sides[static_cast<int>(side)]; }
};

EntryCoder::EntryCoder(const Plan& plan, const Predictor& predictor, std::vector<int> layers)
    : plan_(plan),
      predictor_(predictor),
      layers_(std::move(layers)),
      layout_(plan, layers_),
      prediction_(plan, predictor) {}

template <class Visit>
void EntryCoder::for_each_page(const Visit& visit) {
  int first = 0, before = -1;
  for (const int layer : layers_) {
    prediction_.begin_layer(before, layer);
    const int n_heads = plan_.geometry.kv_heads(layer);
    for (const Side side : kSides) {
      for (int h = 0; h < n_heads; ++h)
        visit(PagePlace{layer, h, first + h, side}, plan_.head(layer, h).side(side),
              plan_.geometry.dim(layer));
    }
    first += n_heads;
    before = layer;
  }
}

std::vector<std::byte> EntryCoder::encode(int page, std::span<const std::byte> entry) {
  std::vector<std::byte> coded = {kCoded};
  Writers symbols;
  Models models;
  prediction_.begin(page);
  for_each_page([&](const PagePlace& at, const SidePlan& side, int d) {
    const std::byte* bytes = entry.data() + layout_.offset(at.index, at.side);
    if (is_predicted(side, d)) {
      shape_ = {trellis_bits(*side.sealed, d), d};
      write_page(symbols, at, models, bytes);
    } else {
      coded.insert(coded.end(), bytes, bytes + side.sealed->page_bytes(d));
    }
  });
  std::array<std::vector<std::byte>, kRowLanes> streams;
  for (int lane = 0; lane < kRowLanes; ++lane) {
    streams[lane] = symbols[lane].take();
    const auto size = static_cast<std::uint32_t>(streams[lane].size());
    const auto* bytes = reinterpret_cast<const std::byte*>(&size);
    if (lane + 1 < kRowLanes) coded.insert(coded.end(), bytes, bytes + sizeof size);
  }
  for (const auto& stream : streams) coded.insert(coded.end(), stream.begin(), stream.end());
  if (coded.size() <= entry.size()) return coded;
  coded.assign(1, kStored);
  coded.insert(coded.end(), entry.begin(), entry.end());
  return coded;
}

bool EntryCoder::decode(int page, std::span<const std::byte> coded, std::byte* entry) {
  if (coded.empty() || coded.front() > kCoded) return false;
  const bool is_stored = coded.front() == kStored;
  coded = coded.subspan(1);
  if (is_stored) {
    if (coded.size() != entry_bytes()) return false;
    std::memcpy(entry, coded.data(), coded.size());
    return true;
  }
  std::size_t n_stored = 0;
  for (const int layer : layers_) {
    const int d = plan_.geometry.dim(layer);
    for (int h = 0; h < plan_.geometry.kv_heads(layer); ++h) {
      for (const Side s : kSides) {
        const SidePlan& side = plan_.head(layer, h).side(s);
        if (!is_predicted(side, d)) n_stored += side.sealed->page_bytes(d);
      }
    }
  }
  constexpr std::size_t kSizes = sizeof(std::uint32_t) * (kRowLanes - 1);
  if (coded.size() < n_stored + kSizes) return false;
  Readers symbols;
  const std::byte* sizes = coded.data() + n_stored;
  std::span<const std::byte> streams = coded.subspan(n_stored + kSizes);
  for (int lane = 0; lane < kRowLanes; ++lane) {
    auto size = static_cast<std::uint32_t>(streams.size());
    if (lane + 1 < kRowLanes) std::memcpy(&size, sizes + sizeof size * lane, sizeof size);
    if (size > streams.size()) return false;
    symbols[lane] = SymbolReader(streams.first(size));
    streams = streams.subspan(size);
  }
  Models models;
  prediction_.begin(page);
  const std::byte* stored = coded.data();
  for_each_page([&](const PagePlace& at, const SidePlan& side, int d) {
    std::byte* bytes = entry + layout_.offset(at.index, at.side);
    if (is_predicted(side, d)) {
      shape_ = {trellis_bits(*side.sealed, d), d};
      read_page(symbols, at, models, bytes);
    } else {
      std::memcpy(bytes, stored, side.sealed->page_bytes(d));
      stored += side.sealed->page_bytes(d);
    }
  });
  return std::ranges::all_of(symbols, &SymbolReader::at_end);
}

// Predicts the page and subtracts the averages over the tokens, because the page's own means are known
// exactly.
void EntryCoder::prepare_page(const PagePlace& at) {
  const int d = shape_.d;
  expected_.resize(static_cast<std::size_t>(kPageTokens) * d);
  values_.resize(expected_.size());
  prediction_.predict(at.kv_head, at.side, expected_.data());
  std::vector<std::int64_t> sums(d, 0);
  for (int t = 0; t < kPageTokens; ++t)
    for (int c = 0; c < d; ++c) sums[c] += expected_[static_cast<std::size_t>(t) * d + c];
  averages_.resize(d);
  for (int c = 0; c < d; ++c) averages_[c] = static_cast<std::int32_t>(sums[c] / kPageTokens);
  for (int t = 0; t < kPageTokens; ++t)
    for (int c = 0; c < d; ++c) expected_[static_cast<std::size_t>(t) * d + c] -= averages_[c];
  steps_.resize(d);
  for (int c = 0; c < d; ++c)  // in units of 2^32 / 2^kGainBits
    steps_[c] = static_cast<std::int32_t>(std::min<std::int64_t>(
        (std::int64_t{kStepsOfDeviation} << (32 - kGainBits)) / head(at).deviations[c], 1 << kStepBits));
}

// Codes means relative to the averages, and gains relative to the norm of the prediction.
template <class Stream>
void EntryCoder::code_parameters(Stream& stream, const PagePlace& at, Models& models,
                                 TrellisParameters& parameters) {
  const int d = shape_.d, e = exponent(at);
  Models::OfSide& model = models.of(at.side);
  parameters.step = static_cast<std::uint16_t>(stream.bits(16, parameters.step));
  for (int c = 0; c < d; ++c) {
    const int guess = mean_of_units(averages_[c], parameters.step, e);
    parameters.means[c] =
        static_cast<std::int8_t>(guess + model.means.code(stream, parameters.means[c] - guess));
  }
  const std::uint32_t high = stream.bits(16, parameters.loudest >> 16);
  parameters.loudest = high << 16 | stream.bits(16, parameters.loudest & 0xffff);
  gains_ = gain_units(shape_.bits, parameters.loudest, e);
  means_.resize(d);
  for (int c = 0; c < d; ++c) means_[c] = units_of_mean(parameters.means[c], parameters.step, e);
  std::uint64_t variance = 0;
  for (int c = 0; c < d; ++c) {
    const auto deviation = static_cast<std::uint64_t>(std::min(head(at).deviations[c], kLargestUnits));
    variance += deviation * deviation;
  }
  const int loudest =
      2 * log2_of(static_cast<std::uint64_t>(gains_.units[0])) + log2_of(static_cast<std::uint64_t>(d));
  int bias = 0;  // The running mean of the error, in 1 / 16 of a code.
  for (int t = 0; t < kPageTokens; ++t) {
    std::uint64_t squares = variance;
    for (int c = 0; c < d; ++c) {
      const std::int64_t x = expected_[static_cast<std::size_t>(t) * d + c];
      squares += static_cast<std::uint64_t>(x * x);
    }
    constexpr int kCodesOfSquares = 16;  // codes per octave
    const int guess = std::clamp(((loudest - log2_of(squares)) * kCodesOfSquares >> kLogBits) + (bias >> 4),
                                 0, kGainCodes - 1);
    const std::uint32_t coded = model.gains.code(
        stream, static_cast<std::uint32_t>(parameters.gains[t] - guess + kGainCodes / 2) & (kGainCodes - 1));
    const int missed = static_cast<int>(coded) - kGainCodes / 2;
    parameters.gains[t] = static_cast<std::uint8_t>(guess + missed);
    bias += std::clamp(missed, -16, 16);
  }
}

ExpectedRow EntryCoder::expected_row(const PagePlace& at, int token, int gain_code, int scale, int lane) {
  const int d = shape_.d;
  rows_.resize(static_cast<std::size_t>(kRowLanes) * d);
  row_steps_.resize(rows_.size());
  std::int32_t *row = &rows_[static_cast<std::size_t>(lane) * d],
               *steps = &row_steps_[static_cast<std::size_t>(lane) * d];
  const std::int64_t factor = narrowing(scale, head(at).usual_gain, gains_.units[gain_code]);
  const std::int32_t* expected = expected_.data() + static_cast<std::ptrdiff_t>(token) * d;
  for (int c = 0; c < d; ++c) {
    row[c] = std::clamp(expected[c], -kLargestUnits, kLargestUnits) * (1 << kGainBits);
    steps[c] =
        static_cast<std::int32_t>(std::clamp<std::int64_t>(steps_[c] * factor >> 16, 1, 1 << kStepBits));
  }
  return {row, steps, head(at).follow.data(), gains_.levels[gain_code]};
}

// Estimates the scale from the prediction errors of some rows. Only the writer chooses it, and any scale
// would decode.
int EntryCoder::find_scale(const PagePlace& at, const TrellisParameters& parameters, const std::byte* page) {
  std::array<std::uint16_t, kMaxHeadDim> symbols;
  double sum = 0;
  int n = 0;
  for (int t = kScaleRows - 1; t < kPageTokens; t += kScaleRows) {
    unpack_codes(page + static_cast<std::ptrdiff_t>(t) * shape_.row_bytes(), shape_.d, shape_.bits,
                 symbols.data());
    const ExpectedRow row = expected_row(at, t, parameters.gains[t], kUsualScale, /*lane=*/0);
    sum += static_cast<double>(row_surprise(shape_.bits, shape_.d, symbols.data(), row));
    n += shape_.d;
  }
  const double ratio = sum / (n * kMeanOfNormal * kStepsOfDeviation);
  const double scale = kUsualScale + 4 * std::log2(std::max(ratio, 0.01));
  return std::clamp(static_cast<int>(std::lround(scale)), 0, kScales - 1);
}

void EntryCoder::write_page(Writers& to, const PagePlace& at, Models& models, const std::byte* page) {
  TrellisParameters parameters = read_parameters(shape_, page);
  WriteStream stream(to[0]);
  prepare_page(at);
  code_parameters(stream, at, models, parameters);
  const int scale = code_scale(stream, find_scale(at, parameters, page));
  const int bits = shape_.bits, d = shape_.d;
  written_.resize(kPageTokens);
  for (int t = 0; t < kPageTokens; ++t) {
    WrittenRow& row = written_[t];
    unpack_codes(page + static_cast<std::ptrdiff_t>(t) * shape_.row_bytes(), d, bits, row.symbols.data());
    const int gain = parameters.gains[t];
    row.uncoded = gains_.levels[gain] == 0;
    if (!row.uncoded) {
      const ExpectedRow expected = expected_row(at, t, gain, scale, /*lane=*/0);
      const std::int64_t cost = write_row(trellis_cells(bits), bits, d, row.symbols.data(), expected,
                                          row.firsts.data(), row.sizes.data());
      row.uncoded = cost > std::int64_t{d} * (bits + 1);
    }
    stream.bit(models.of(at.side).uncoded_rows, row.uncoded);
  }
  for (int t = 0; t < kPageTokens; ++t) {
    const WrittenRow& row = written_[t];
    SymbolWriter& lane = to[t % kRowLanes];
    if (row.uncoded) {
      for (int i = 0; i < d; ++i) lane.put_bits(row.symbols[i], bits);
    } else {
      lane.put_bits(static_cast<std::uint32_t>(bits_before(bits, d, row.symbols.data())),
                    kTrellisBits - bits);
      for (int i = 0; i < d; ++i) lane.put(row.firsts[i], row.sizes[i]);
    }
  }
  tell(at, parameters, page);
}

void EntryCoder::read_page(Readers& from, const PagePlace& at, Models& models, std::byte* page) {
  TrellisParameters parameters{};
  ReadStream stream(from[0]);
  prepare_page(at);
  code_parameters(stream, at, models, parameters);
  const int scale = code_scale(stream, 0);
  const int bits = shape_.bits, d = shape_.d;
  std::array<bool, kPageTokens> uncoded;
  for (bool& row : uncoded) row = stream.bit(models.of(at.side).uncoded_rows, false);
  std::array<std::uint16_t, kRowLanes * kMaxHeadDim> symbols;
  for (int first = 0; first < kPageTokens; first += kRowLanes) {
    std::array<ExpectedRow, kRowLanes> rows;
    bool together = true;
    for (int lane = 0; lane < kRowLanes; ++lane) {
      together = together && !uncoded[first + lane];
      rows[lane] = expected_row(at, first + lane, parameters.gains[first + lane], scale, lane);
    }
    if (together)
      read_rows(trellis_cells(bits), bits, d, kRowLanes, rows.data(), from.data(), symbols.data());
    for (int lane = 0; lane < kRowLanes; ++lane) {
      std::uint16_t* row = symbols.data() + lane * kMaxHeadDim;
      if (uncoded[first + lane]) {
        for (int i = 0; i < d; ++i) row[i] = static_cast<std::uint16_t>(from[lane].bits(bits));
      } else if (!together) {
        read_rows(trellis_cells(bits), bits, d, 1, &rows[lane], &from[lane], row);
      }
      pack_codes(row, d, bits, page + static_cast<std::ptrdiff_t>(first + lane) * shape_.row_bytes());
    }
  }
  write_parameters(shape_, parameters, page);
  tell(at, parameters, page);
}

void EntryCoder::tell(const PagePlace& at, const TrellisParameters& parameters, const std::byte* page) {
  page_units(shape_, parameters, gains_, means_.data(), page, values_.data());
  prediction_.tell(at.kv_head, at.side, values_.data());
}

}  // namespace kvant
