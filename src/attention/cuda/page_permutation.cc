#include "attention/cuda/page_permutation.h"

#include <cstring>

#include "attention/cuda/page_format.h"

namespace kvant::cuda {
namespace {

PageSide device_side(Side side) {
  return side == Side::key ? PageSide::key : PageSide::value;
}

bool bit_at(const std::byte* bytes, int bit) {
  return (std::to_integer<int>(bytes[bit / 8]) >> (bit % 8)) & 1;
}

void set_bit(std::byte* bytes, int bit) {
  bytes[bit / 8] |= std::byte{1} << (bit % 8);
}

// Calls visit(canonical bit, device bit) for every bit of the codes.
template <class Visit>
void for_each_code_bit(const CodeLayout& layout, Side side, int d, const Visit& visit) {
  const int codes = d / layout.channels;  // of a token
  for (int token = 0; token < kPageTokens; ++token) {
    for (int code = 0; code < codes; ++code) {
      for (int bit = 0; bit < layout.bits; ++bit)
        visit((token * codes + code) * layout.bits + bit,
              code_bit(layout, device_side(side), d, token, code * layout.channels, bit));
    }
  }
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
  if (!find_page_format(name, kAnyHead, page)) return false;
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
  for_each_code_bit(format.layout, side, d, [&](int from, int to) {
    if (bit_at(canonical, from)) set_bit(device, to);
  });
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
  for_each_code_bit(format.layout, side, d, [&](int to, int from) {
    if (bit_at(device, from)) set_bit(canonical, to);
  });
}

}  // namespace kvant::cuda
