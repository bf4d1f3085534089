#include "attention/cuda/page_permutation.h"

#include <cstring>

namespace kvant::cuda {
namespace {

struct NamedFormat {
  const char* name;
  DeviceFormat format;
};

constexpr NamedFormat kFormats[] = {
    {"bf16", {{}, true}},
    {"ch4g128", {{CodeOrder::mask4, 4, 1}}},
    {"ch2g128", {{CodeOrder::mask2, 2, 1}}},
    {"tok4g128", {{CodeOrder::mask4, 4, 1}}},
    {"tok2g128", {{CodeOrder::mask2, 2, 1}}},
    {"prog4", {{CodeOrder::mask4, 4, 1}}},
    {"prog2", {{CodeOrder::mask2, 2, 1}}},
    {"lm2", {{CodeOrder::quads, 2, 1}}},
    {"lm3", {{CodeOrder::pairs, 3, 1}}},
    {"lm4", {{CodeOrder::pairs, 4, 1}}},
    {"vq-d2b8", {{CodeOrder::vectors, 8, 2}}},
    {"vq-d4b8", {{CodeOrder::vectors, 8, 4}}},
    {"vq-d4b10", {{CodeOrder::vectors, 10, 4}}},
    {"vq-d4b12", {{CodeOrder::vectors, 12, 4}}},
    {"vq-d8b8", {{CodeOrder::vectors, 8, 8}}},
    {"vq-d8b12", {{CodeOrder::vectors, 12, 8}}},
    {"tcq1", {{CodeOrder::trellis, 1, 1}}},
    {"tcq2", {{CodeOrder::trellis, 2, 1}}},
    {"tcq3", {{CodeOrder::trellis, 3, 1}}},
    {"tcq4", {{CodeOrder::trellis, 4, 1}}},
    {"tcq5", {{CodeOrder::trellis, 5, 1}}},
    {"tcq6", {{CodeOrder::trellis, 6, 1}}},
};

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
  for (int token = 0; token < kTokens; ++token) {
    for (int code = 0; code < codes; ++code) {
      for (int bit = 0; bit < layout.bits; ++bit)
        visit((token * codes + code) * layout.bits + bit,
              code_bit(layout, device_side(side), d, token, code * layout.channels, bit));
    }
  }
}

template <class Visit>
void for_each_plain_element(Side side, int d, const Visit& visit) {
  for (int token = 0; token < kTokens; ++token)
    for (int channel = 0; channel < d; ++channel)
      visit(token * d + channel, plain_index(device_side(side), d, token, channel));
}

}  // namespace

bool find_device_format(const std::string& name, DeviceFormat& format) {
  for (const NamedFormat& known : kFormats) {
    if (name != known.name) continue;
    format = known.format;
    return true;
  }
  return false;
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
