#include "device/cuda/page/page_permutation.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "device/cuda/page/page_format.h"

namespace kvant::cuda {
namespace {

PageSide device_side(Side side) {
  return side == Side::key ? PageSide::key : PageSide::value;
}

// Describes a run of bits that are adjacent within one byte both in canonical order and on the device.
struct Move {
  std::uint32_t canonical, device;  // indexes of the first bit
  std::uint8_t n;

  bool goes_on(std::uint32_t to_canonical, std::uint32_t to_device) const {
    return to_canonical == canonical + n && to_device == device + n && to_canonical / 8 == canonical / 8 &&
           to_device / 8 == device / 8;
  }
};
using Moves = std::vector<Move>;

// Returns the moves of a page's codes.
Moves make_moves(const CodeLayout& layout, Side side, int d) {
  Moves moves;
  const int codes = d / layout.channels;  // codes of each token
  for (int token = 0; token < kPageTokens; ++token) {
    for (int code = 0; code < codes; ++code) {
      for (int bit = 0; bit < layout.bits; ++bit) {
        const auto canonical = static_cast<std::uint32_t>((token * codes + code) * layout.bits + bit);
        const auto device = static_cast<std::uint32_t>(
            code_bit(layout, device_side(side), d, token, code * layout.channels, bit));
        if (!moves.empty() && moves.back().goes_on(canonical, device)) {
          ++moves.back().n;
        } else {
          moves.push_back({canonical, device, 1});
        }
      }
    }
  }
  return moves;
}

// Returns the moves of a layout. The function makes each list of moves only once, because computing the place
// of a bit takes ten times as long as moving the bit.
const Moves& moves_of(const CodeLayout& layout, Side side, int d) {
  static std::mutex mutex;
  static std::map<std::tuple<CodeOrder, int, int, Side, int>, Moves> made;
  const std::scoped_lock lock(mutex);
  const auto [place, is_new] = made.try_emplace({layout.order, layout.bits, layout.channels, side, d});
  if (is_new) place->second = make_moves(layout, side, d);
  return place->second;
}

// Copies n bits from bit `from` of `source` to bit `to` of `target`, where the bits are still 0.
void move_bits(const std::byte* source, std::uint32_t from, std::byte* target, std::uint32_t to, int n) {
  const unsigned bits = std::to_integer<unsigned>(source[from / 8]) >> (from % 8) & ((1U << n) - 1);
  target[to / 8] |= static_cast<std::byte>(bits << (to % 8));
}

template <class Visit>
void for_each_plain_element(Side side, int d, const Visit& visit) {
  for (int token = 0; token < kPageTokens; ++token)
    for (int channel = 0; channel < d; ++channel)
      visit(token * d + channel, plain_index(device_side(side), d, token, channel));
}

}  // namespace

bool find_device_format(const std::string& name, DeviceFormat& format) {
  constexpr int kAnyHead = 128;
  PageFormat page;
  if (!find_page_format(name.c_str(), kAnyHead, page)) return false;
  format = {page.layout, page.plain()};
  return true;
}

void page_to_device(const DeviceFormat& format, Side side, int d, std::size_t page_bytes,
                    const std::byte* canonical, std::byte* device) {
  if (format.plain) {
    for_each_plain_element(side, d,
                           [&](int from, int to) { std::memcpy(device + 2 * to, canonical + 2 * from, 2); });
    return;
  }
  const std::size_t codes = code_bytes(format.layout, d);
  std::memset(device, 0, round_up_16(static_cast<int>(page_bytes)));
  std::memcpy(device + codes, canonical + codes, page_bytes - codes);
  for (const Move& move : moves_of(format.layout, side, d))
    move_bits(canonical, move.canonical, device, move.device, move.n);
}

void page_from_device(const DeviceFormat& format, Side side, int d, std::size_t page_bytes,
                      const std::byte* device, std::byte* canonical) {
  if (format.plain) {
    for_each_plain_element(side, d,
                           [&](int to, int from) { std::memcpy(canonical + 2 * to, device + 2 * from, 2); });
    return;
  }
  const std::size_t codes = code_bytes(format.layout, d);
  std::memset(canonical, 0, codes);
  std::memcpy(canonical + codes, device + codes, page_bytes - codes);
  for (const Move& move : moves_of(format.layout, side, d))
    move_bits(device, move.device, canonical, move.canonical, move.n);
}

}  // namespace kvant::cuda
