// gtq<B>w<W> is the format of Block-GTQ's keys (arXiv 2606.24033). Block-GTQ gives more bits to channels with
// more energy. A block is a pair of channels that RoPE rotates together. Each block has its own width of 1 to
// W bits per value, and the mean over blocks is B. B is in 1 .. 4, and B <= W <= 8.
//
// The model constant kChannelEnergy [d] determines the blocks. Channels are sorted by descending magnitude of
// the constant, ties by channel. Two neighbours form a block, since both channels of a block have the same
// energy. The widths follow Algorithm 1. All blocks begin with 1 bit. Each further bit goes to the block
// whose loss falls most, until B d / 2 bits are spent; ties go to the earlier block. The loss of a block of b
// bits and energy s falls by 3/4 s 4^-b.
//
// The blocks of one width form a group. A group is coded as in TurboQuant: by its norm, and by its unit
// vector after a random rotation (unit_vector.h). Each coordinate of that vector is stored as the nearest of
// the levels for coordinates of random unit vectors.
//
// Bytes of a page, d channels:
//   codes   [kPageTokens][d]  in the order of the sorted channels; the codes of a token are one little-endian
//                             bit stream of d * B / 8 bytes
//   norms   [kPageTokens][W]  f16: the norm of the group of 1 bit, of 2 bits and so on; 0 for absent groups
// Bits per value: B + 16 W / d.
//
// values of a group = norm * (rotation^T levels[code]). Norms saturate at 65504. The format is row-wise
// (format.h), so left-out tokens are stored like all others.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "base/float16.h"
#include "format/channel_energy.h"
#include "format/families.h"
#include "format/name_reader.h"
#include "format/unit_vector.h"

namespace kvant {
namespace {

constexpr int kMaxWidth = 8;

constexpr std::size_t gtq_page_bytes(int bits, int widths, int d) {
  return static_cast<std::size_t>(kPageTokens) * (d * bits / 8 + 2 * widths);
}
static_assert(gtq_page_bytes(2, 4, 128) == 5120 && gtq_page_bytes(3, 6, 64) == 4608);

// Makes rotations and levels when they are first needed, because each head size and width needs only a few.
class Tables {
 public:
  const std::vector<float>& rotation(int n) {
    const std::lock_guard lock(mutex_);
    std::vector<float>& found = rotations_[n];
    if (found.empty()) found = random_rotation(n, static_cast<std::uint64_t>(n));
    return found;
  }
  const std::vector<float>& levels(int n, int bits) {
    const std::lock_guard lock(mutex_);
    std::vector<float>& found = levels_[{n, bits}];
    if (found.empty()) {
      const std::vector<double> exact = unit_vector_levels(n, bits);
      found.assign(exact.begin(), exact.end());
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<float>> rotations_;
  std::map<std::pair<int, int>, std::vector<float>> levels_;
};

Tables& tables() {
  static Tables tables;
  return tables;
}

// Holds the channels [first, first + n) in the order of energies, which are all `width` bits wide.
struct Group {
  int width, first, n;
  const std::vector<float>* rotation;  // [n, n]
  const std::vector<float>* levels;    // [2^width]
};

struct Blocks {
  std::vector<int> order;     // [d], channels by descending energy
  std::vector<Group> groups;  // [at most kMaxWidth], by descending width, as energies descend
};

// Returns the bits of each block, [energies.size()]. The energies must descend. `mean` is B, and `largest` is
// W.
std::vector<int> widths_of(const std::vector<float>& energies, int mean, int largest) {
  std::vector<int> widths(energies.size(), 1);
  std::vector<float> gains(energies);
  for (std::size_t spare = (mean - 1) * energies.size(); spare > 0; --spare) {
    const auto best = std::max_element(gains.begin(), gains.end()) - gains.begin();
    gains[best] = ++widths[best] < largest ? gains[best] / 4 : -1;
  }
  return widths;
}

Blocks blocks_of(std::span<const float> energies, int mean, int largest) {
  const auto size = [&](int channel) { return std::min(std::abs(energies[channel]), 1e30F); };
  Blocks blocks;
  blocks.order.resize(energies.size());
  std::iota(blocks.order.begin(), blocks.order.end(), 0);
  std::ranges::stable_sort(blocks.order, [&](int a, int b) { return size(a) > size(b); });
  std::vector<float> of_block;
  for (std::size_t i = 0; i < energies.size(); i += 2) of_block.push_back(size(blocks.order[i]));
  const std::vector<int> widths = widths_of(of_block, mean, largest);
  for (int i = 0; i < static_cast<int>(widths.size()); ++i) {
    if (blocks.groups.empty() || blocks.groups.back().width != widths[i])
      blocks.groups.push_back({widths[i], 2 * i, 0, nullptr, nullptr});
    blocks.groups.back().n += 2;
  }
  for (Group& group : blocks.groups) {
    group.rotation = &tables().rotation(group.n);
    group.levels = &tables().levels(group.n, group.width);
  }
  return blocks;
}

class CodeWriter {
 public:
  explicit CodeWriter(std::byte* stream) : stream_(stream) {}
  void write(unsigned code, int width) {
    for (int bit = 0; bit < width; ++bit, ++at_) {
      if (at_ % 8 == 0) stream_[at_ / 8] = std::byte{0};
      stream_[at_ / 8] |= static_cast<std::byte>(((code >> bit) & 1U) << (at_ % 8));
    }
  }

 private:
  std::byte* stream_;
  std::size_t at_ = 0;
};

class CodeReader {
 public:
  explicit CodeReader(const std::byte* stream) : stream_(stream) {}
  unsigned read(int width) {
    unsigned code = 0;
    for (int bit = 0; bit < width; ++bit, ++at_)
      code |= ((std::to_integer<unsigned>(stream_[at_ / 8]) >> (at_ % 8)) & 1U) << bit;
    return code;
  }

 private:
  const std::byte* stream_;
  std::size_t at_ = 0;
};

class GtqFormat : public RowWiseFormat {
 public:
  GtqFormat(const std::string& name, int bits, int widths)
      : RowWiseFormat(name), bits_(bits), widths_(widths) {}

  std::size_t page_bytes(int head_dim) const override { return gtq_page_bytes(bits_, widths_, head_dim); }
  std::vector<std::string> needed_constants() const override { return {kChannelEnergy}; }
  std::size_t constant_size(int head_dim) const override { return head_dim; }
  RowParts row_parts(int head_dim) const override { return {token_bytes(head_dim), norm_bytes()}; }

  void encode_rows(const float* values, int first, int n, const PageContext& context,
                   std::byte* page) const override {
    const int d = context.head_dim;
    const Blocks blocks = blocks_of(context.constants.find(kChannelEnergy), bits_, widths_);
    for (int token = first; token < first + n; ++token) {
      const float* row = values + static_cast<std::ptrdiff_t>(token - first) * d;
      CodeWriter codes(page + token_bytes(d) * token);
      std::array<std::uint16_t, kMaxWidth> norms{};
      for (const Group& group : blocks.groups)
        norms[group.width - 1] = encode_group(row, blocks.order.data() + group.first, group, codes);
      std::memcpy(norms_of(page, token, context), norms.data(), norm_bytes());
    }
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim;
    const Blocks blocks = blocks_of(context.constants.find(kChannelEnergy), bits_, widths_);
    for (int token = 0; token < n_tokens; ++token) {
      CodeReader codes(page + token_bytes(d) * token);
      std::array<std::uint16_t, kMaxWidth> norms{};
      std::memcpy(norms.data(), norms_of(page, token, context), norm_bytes());
      for (const Group& group : blocks.groups)
        decode_group(codes, group, float_from_f16(norms[group.width - 1]), blocks.order.data() + group.first,
                     values + static_cast<std::ptrdiff_t>(token) * d);
    }
  }

 private:
  // Writes the codes of a group's channels of one token and returns the norm of these channels.
  static std::uint16_t encode_group(const float* row, const int* channels, const Group& group,
                                    CodeWriter& codes) {
    const std::vector<float>& rotation = *group.rotation;
    const std::vector<float>& levels = *group.levels;
    double square = 0;
    for (int i = 0; i < group.n; ++i) square += double{row[channels[i]]} * row[channels[i]];
    const double norm = std::sqrt(square);
    for (int r = 0; r < group.n; ++r) {
      double x = 0;
      for (int i = 0; i < group.n; ++i) x += double{rotation[r * group.n + i]} * row[channels[i]];
      codes.write(nearest(levels, norm > 0 ? static_cast<float>(x / norm) : 0), group.width);
    }
    return f16_from_float_saturated(static_cast<float>(std::min(norm, double{kF16Max})));
  }

  static void decode_group(CodeReader& codes, const Group& group, float norm, const int* channels,
                           float* row) {
    const std::vector<float>& rotation = *group.rotation;
    const std::vector<float>& levels = *group.levels;
    std::array<float, kMaxHeadDim> sums{};
    for (int r = 0; r < group.n; ++r) {
      const float level = levels[codes.read(group.width)];
      for (int i = 0; i < group.n; ++i) sums[i] += level * rotation[r * group.n + i];
    }
    for (int i = 0; i < group.n; ++i) row[channels[i]] = norm * sums[i];
  }

  // Returns the index of the nearest level. At a tie, the lower level wins.
  static unsigned nearest(const std::vector<float>& levels, float x) {
    const auto above = std::lower_bound(levels.begin(), levels.end(), x);
    if (above == levels.begin()) return 0;
    const auto i = static_cast<unsigned>(above - levels.begin());
    return above == levels.end() || x - *(above - 1) <= *above - x ? i - 1 : i;
  }

  std::size_t token_bytes(int d) const { return static_cast<std::size_t>(d) * bits_ / 8; }
  std::size_t norm_bytes() const { return std::size_t{2} * widths_; }
  template <class Byte>
  Byte* norms_of(Byte* page, int token, const PageContext& context) const {
    return page + token_bytes(context.head_dim) * context.page_tokens + norm_bytes() * token;
  }

  int bits_, widths_;
};

std::unique_ptr<Format> parse_gtq(const std::string& name) {
  NameReader reader(name);
  if (!reader.take("gtq")) return nullptr;
  const int bits = reader.take_number();
  if (!reader.take("w")) return nullptr;
  const int widths = reader.take_number();
  if (!reader.at_end() || bits < 1 || bits > 4 || widths < bits || widths > kMaxWidth) return nullptr;
  return std::make_unique<GtqFormat>(name, bits, widths);
}

}  // namespace

const FormatFamily& gtq_family() {
  static const FormatFamily family{
      "gtq<B>w<W>",
      "Block-GTQ: B bits on average, 1 to W for each pair of channels according to its energy",
      {"gtq2w5", "gtq3w6", "gtq4w8"},
      parse_gtq};
  return family;
}

}  // namespace kvant
