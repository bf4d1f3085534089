// Defines the layout of a page in GPU memory. The bytes equal the format's canonical page, except that the
// codes are permuted. Codes lie in the order in which the lanes of a warp hold the A operand of mma.m16n8k16,
// so kernels load operands without rearranging codes. Parameters (scales, zeros, gains, means) follow the
// codes in canonical order, and the page is padded to 16 bytes.
//
// A fragment is 16 rows by 16 contraction indices. Rows of keys are tokens, contracted over channels. Rows of
// values are channels, contracted over tokens. Lane g * 4 + t holds rows g and g + 8 and the contraction
// indices 2t, 2t + 1 (j = 0, 1) and 2t + 8, 2t + 9 (j = 2, 3). The layout may choose which token or channel a
// row or an index stands for. The choices keep neighbouring channels in one lane, for vector and trellis
// codes, and tokens that share a scale in one fragment:
//   keys    channel = t * d/4 + 4 * k_tile + j            values  channel = g * d/8 + 2 * m_tile + row
//   tokens  (sealed pages)  (tile / 2) * 32 + g * 4 + (tile % 2) * 2 + row, of the key tile; the values'
//           contraction index j of lane t is row j / 2 of g = 2t + j % 2 (a transposed 8 x 8 matrix).
// The codes of a lane form one bit stream, in the order in which the kernels consume the codes. Streams are
// interleaved in pieces of 16 bytes: word w of lane l is word (w / 4 * 32 + l) * 4 + w % 4 of the page.
//
// Trellis codes have a different order, for mma.m16n8k32 on bytes (trellis_place).
//
// With heads of 512 channels, codes lie in four consecutive blocks of 128 channels. Each block has the order
// of a page of such heads, so four warps can share a page (block_channel).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "base/page_size.h"

namespace kvant::cuda {

using kvant::kPageTokens;
inline constexpr int kLanes = 32;  // lanes of a warp
inline constexpr int kTokenTiles = kPageTokens / 16;

enum class PageSide : std::uint8_t { key, value };

// block_dim() returns the number of channels whose codes lie together. code_blocks() returns the number of
// such blocks.
KVANT_HOST_DEVICE constexpr int block_dim(int d) {
  return d > 256 ? 128 : d;
}
KVANT_HOST_DEVICE constexpr int code_blocks(int d) {
  return d / block_dim(d);
}

// BlockChannel holds the block of a channel and the index of the channel within the block. Each lane has
// equally many channels of every block.
struct BlockChannel {
  int block, channel;
};
KVANT_HOST_DEVICE constexpr BlockChannel block_channel(PageSide side, int d, int channel) {
  if (code_blocks(d) == 1) return {0, channel};
  const int lanes = side == PageSide::key ? 4 : 8;  // lanes that share a row's channels
  const int of_lane = d / lanes, of_block = block_dim(d) / lanes;
  const int within = channel % of_lane;
  return {within / of_block, channel / of_lane * of_block + within % of_block};
}
// Returns the channel that lies at `at`. The function is the inverse of block_channel().
KVANT_HOST_DEVICE constexpr int channel_of_block(PageSide side, int d, const BlockChannel& at) {
  if (code_blocks(d) == 1) return at.channel;
  const int lanes = side == PageSide::key ? 4 : 8;
  const int of_lane = d / lanes, of_block = block_dim(d) / lanes;
  return at.channel / of_block * of_lane + at.block * of_block + at.channel % of_block;
}

// CodeOrder is the order of codes within the fragments.
enum class CodeOrder : std::uint8_t {
  planes,   // 1- to 6-bit numbers that masks extract from words (plane_bit)
  pairs,    // 3- to 5-bit codes looked up in pairs (j, j + 1) of a row, and 8-bit numbers
  quads,    // 2-bit codes looked up four at a time (j = 0 .. 3 of a row)
  vectors,  // codes of 2, 4 or 8 channels
  trellis,  // 1- to 6-bit codes of a token's neighbouring channels (trellis_place)
};

struct CodeLayout {
  CodeOrder order;
  int bits;      // bits per code
  int channels;  // channels per code, which is 1 except for vectors
};

// Place gives the position of an element of a page: the MMA fragment, the lane and the register.
struct Place {
  int lane, k_tile, m_tile, row, j;
  // Returns the index of the element's register among the four of the A operand.
  KVANT_HOST_DEVICE constexpr int reg() const { return row + 2 * (j >> 1); }
};

KVANT_HOST_DEVICE constexpr Place sealed_place(PageSide side, int d, int token, int channel) {
  const int tile = token / 32 * 2 + token % 4 / 2;
  const int g = token % 32 / 4;
  const int row = token % 2;
  if (side == PageSide::key) {
    const int within = channel % (d / 4);
    return {g * 4 + channel / (d / 4), within / 4, tile, row, within % 4};
  }
  const int within = channel % (d / 8);
  return {channel / (d / 8) * 4 + g / 2, tile, within / 2, within % 2, g % 2 + 2 * row};
}

// Returns the index of a vector code among the codes of its lane. For keys, a code of 2 channels covers a
// register of a fragment. A code of 4 channels covers a row of a fragment, and a code of 8 channels a row of
// two fragments. For values, the codes of neighbouring channels follow each other for each of the lane's four
// tokens.
KVANT_HOST_DEVICE constexpr int vector_index(int channels, PageSide side, int m_tiles, const Place& p) {
  if (side == PageSide::value) {
    const int span = channels / 2;  // m tiles per code
    return (p.k_tile * (m_tiles / span) + p.m_tile / span) * 4 + p.j;
  }
  if (channels == 2) return (p.k_tile * m_tiles + p.m_tile) * 4 + p.reg();
  return (p.k_tile / (channels / 4) * m_tiles + p.m_tile) * 2 + p.row;
}

// kRun is the number of consecutive fragments in a run. Codes of `bits` bits in a run fill 2 * bits whole
// words of a lane.
inline constexpr int kRun = 8;

// Returns the bit of a lane's stream at which bit `bit` of a number lies. The bits of a number are split into
// planes of 4, 2 and 1 bits, with the lowest bits in the widest plane. In each run the planes are
// consecutive. A word of a plane has the codes of 1, 2 or 4 neighbouring fragments. The bits of j and j + 1
// are 16 bits apart, so one mask makes both the low bits of half-precision numbers.
KVANT_HOST_DEVICE constexpr int plane_bit(int bits, int m_tiles, const Place& p, int bit) {
  const int fragment = p.k_tile * m_tiles + p.m_tile;
  int at = fragment / kRun * (8 * kRun * bits);
  for (int width = 4; width > 0; width /= 2) {
    if ((bits & width) == 0) continue;
    if (bit < width) {
      const int per_word = 4 / width;
      const int row = fragment % per_word * 2 + p.row;
      return at + fragment % kRun / per_word * 32 + (p.j & 1) * 16 + (p.j >> 1) * 8 + row * width + bit;
    }
    bit -= width;
    at += 8 * kRun * width;
  }
  return 0;
}

// Returns the first bit of a code in its lane's stream, given the place of the code's first channel. Except
// in planes, the other bits of the code follow.
KVANT_HOST_DEVICE constexpr int stream_bit(const CodeLayout& layout, PageSide side, int d, const Place& p) {
  const int m_tiles = side == PageSide::key ? kTokenTiles : d / 16;
  const int fragment = p.k_tile * m_tiles + p.m_tile;
  switch (layout.order) {
    case CodeOrder::pairs:
      return (fragment * 4 + p.reg()) * 2 * layout.bits + (p.j & 1) * layout.bits;
    case CodeOrder::quads:
      return fragment / 2 * 32 + ((p.m_tile & 1) * 2 + p.row) * 8 + p.j * 2;
    case CodeOrder::vectors:
      return vector_index(layout.channels, side, m_tiles, p) * layout.bits;
    case CodeOrder::planes:
      return plane_bit(layout.bits, m_tiles, p, 0);
    case CodeOrder::trellis:
      break;
  }
  return 0;
}

// Returns the position in the page of bit `bit` of lane `lane`'s stream.
KVANT_HOST_DEVICE constexpr int page_bit(int lane, int bit) {
  const int word = bit / 32;
  return ((word / 4 * kLanes + lane) * 4 + word % 4) * 32 + bit % 32;
}

// Holds the place of a trellis code. The bits of a few consecutive values (a column) fill one of the four
// bytes in successive words of a lane. Shifts then give the states of four values at a time, in the bytes of
// an A register of mma.m16n8k32.
//   keys    columns of 8 values; lane g * 4 + t has channels [t * d/4, (t + 1) * d/4) of the tokens 4g ..
//           4g + 3 of each 32, in order
//   values  columns of d/8 values; lane g * 4 + t has channels [g * d/8, (g + 1) * d/8) of the tokens 4t ..
//           4t + 3, a column each, then 4t + 16 .. 4t + 19 of each 32
struct TrellisPlace {
  int lane, group, column, value;  // `group` is an index of four columns
};
KVANT_HOST_DEVICE constexpr int trellis_column_values(PageSide side, int d) {
  return side == PageSide::key ? 8 : d / 8;
}
KVANT_HOST_DEVICE constexpr TrellisPlace trellis_place(PageSide side, int d, int token, int channel) {
  const int part = token / 32;
  const int four = token % 32 / 4;
  if (side == PageSide::key) {
    const int column = (part * 4 + token % 4) * (d / 32) + channel % (d / 4) / 8;
    return {four * 4 + channel / (d / 4), column / 4, column % 4, channel % 8};
  }
  return {channel / (d / 8) * 4 + four % 4, part * 2 + four / 4, token % 4, channel % (d / 8)};
}

// Returns the bit of a block at which bit `bit` of the code of (token, channel) lies. `channel` is the first
// channel of the code.
KVANT_HOST_DEVICE constexpr int bit_of_block(const CodeLayout& layout, PageSide side, int d, int token,
                                             int channel, int bit) {
  if (layout.order == CodeOrder::trellis) {
    const TrellisPlace place = trellis_place(side, d, token, channel);
    const int rows = layout.bits * trellis_column_values(side, d) / 8;
    const int of_column = place.value * layout.bits + bit;
    return page_bit(place.lane, (place.group * rows + of_column / 8) * 32 + place.column * 8 + of_column % 8);
  }
  const Place place = sealed_place(side, d, token, channel);
  if (layout.order == CodeOrder::planes) {
    const int m_tiles = side == PageSide::key ? kTokenTiles : d / 16;
    return page_bit(place.lane, plane_bit(layout.bits, m_tiles, place, bit));
  }
  return page_bit(place.lane, stream_bit(layout, side, d, place) + bit);
}

KVANT_HOST_DEVICE constexpr int code_bytes(const CodeLayout& layout, int d) {
  return kPageTokens * (d / layout.channels) * layout.bits / 8;
}

// Returns the bit of the page at which bit `bit` of the code of (token, channel) lies.
KVANT_HOST_DEVICE constexpr int code_bit(const CodeLayout& layout, PageSide side, int d, int token,
                                         int channel, int bit) {
  const BlockChannel at = block_channel(side, d, channel);
  return at.block * (8 * code_bytes(layout, block_dim(d))) +
         bit_of_block(layout, side, block_dim(d), token, at.channel, bit);
}

// Returns how many bits of a code are adjacent from bit `bit` on, given that bit `bit` lies at bit `at` of
// the page.
KVANT_HOST_DEVICE constexpr int bits_side_by_side(const CodeLayout& layout, int bit, int at) {
  const int left = layout.bits - bit;
  if (layout.order == CodeOrder::planes) {
    for (int width = 4; width > 0; width /= 2) {
      if ((layout.bits & width) == 0) continue;
      if (bit < width) return width - bit;
      bit -= width;
    }
  }
  // Trellis codes are permuted in bytes, all other codes in words.
  const int unit = layout.order == CodeOrder::trellis ? 8 : 32;
  return left < unit - at % unit ? left : unit - at % unit;
}

// Returns the index of the 16-bit number (token, channel) in an unquantized page (tail, sink, protected
// tokens). Token tiles are contiguous and in order, so a page of few tokens needs only its first tiles.
KVANT_HOST_DEVICE constexpr int plain_index(PageSide side, int d, int token, int channel) {
  const int tile = token / 16;
  const int row = token / 8 % 2;
  const int g = token % 8;
  if (side == PageSide::key) {
    const int within = channel % (d / 4);
    const int lane = g * 4 + channel / (d / 4);
    return ((tile * (d / 16) + within / 4) * kLanes + lane) * 8 + (row + within % 4 / 2 * 2) * 2 + within % 2;
  }
  const int within = channel % (d / 8);
  const int lane = channel / (d / 8) * 4 + g / 2;
  return ((tile * (d / 16) + within / 2) * kLanes + lane) * 8 + (within % 2 + row * 2) * 2 + g % 2;
}

KVANT_HOST_DEVICE constexpr int round_up_16(int bytes) {
  return (bytes + 15) / 16 * 16;
}

}  // namespace kvant::cuda
