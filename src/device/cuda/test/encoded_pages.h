// Encodes pages for tests and benchmarks of the kernels, with the encoders of src/format. An EncodedPage has
// the bytes in the order that the kernels read, and also the values that the bytes represent.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "device/cuda/page/page_permutation.h"
#include "format/format.h"

namespace kvant::cuda {

struct EncodedPage {
  std::vector<float> values;      // decoded values, [kPageTokens][d]
  std::vector<std::byte> device;  // bytes in GPU memory
};

// Holds random codebooks of vector formats as half-precision numbers, one codebook for each KV head and side.
struct Codebooks {
  Constants constants;
  std::vector<std::uint16_t> packed[2];  // [side][n_heads][size]
  std::int64_t size[2] = {0, 0};         // sizes of a codebook, [side]

  Codebooks(const std::string& key_format, const std::string& value_format, int d, int n_heads,
            std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (const Side side : kSides) {
      const Format& format = *find_format(side == Side::key ? key_format : value_format);
      size[static_cast<int>(side)] = static_cast<std::int64_t>(format.constant_size(d));
      for (int head = 0; head < n_heads; ++head) {
        for (const std::string& name : format.needed_constants()) {
          std::vector<float> numbers(format.constant_size(d));
          for (float& number : numbers) {
            const std::uint16_t half = f16_from_float(normal(random));
            packed[static_cast<int>(side)].push_back(half);
            number = float_from_f16(half);
          }
          constants.set(0, head, side, name, numbers);
        }
      }
    }
  }
};

// Selects the kind of values for keys and values in tests. `captured` values come from a model
// (captured_heads.h).
enum class Values { normal, outliers, captured };
// Returns the values of a page, [kPageTokens][d]. Keys have offsets and scales that differ by channel. The
// values of a channel have an offset that all tokens share, so outputs do not vanish.
inline std::vector<float> page_values(Side side, int d, std::uint32_t seed, Values kind = Values::normal) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> offset(d);
  std::vector<float> scale(d);
  std::mt19937 of_channels(side == Side::key ? 17 : 23);
  for (int i = 0; i < d; ++i) {
    offset[i] = normal(of_channels) * (side == Side::key ? 1.0F : 0.3F);
    scale[i] = side == Side::key ? std::exp(0.7F * normal(of_channels)) : 1;
  }
  std::vector<float> values(static_cast<std::size_t>(kPageTokens) * d);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = offset[i % d] + scale[i % d] * normal(random);
  if (kind == Values::outliers) {
    // The outliers resemble the outliers of models. One channel of keys is far larger than the other
    // channels, and some tokens have large or nearly vanishing values.
    for (int token = 0; token < kPageTokens; ++token) {
      float* row = values.data() + static_cast<std::ptrdiff_t>(token) * d;
      if (side == Side::key) row[5] = 40 + 3 * row[5];
      const float loudness = token % 41 == 7 ? 60.0F : token % 17 == 3 ? 1e-3F : 1.0F;
      for (int i = 0; side == Side::value && i < d; ++i) row[i] *= loudness;
    }
  }
  return values;
}

// Encodes a page of `values`, [kPageTokens][d]. Tokens in left_out do not influence the codes.
inline EncodedPage encode_page(const std::string& name, Side side, int d, const TokenMask& left_out,
                               const Codebooks& codebooks, int head, std::vector<float> values) {
  const Format& format = *find_format(name);
  DeviceFormat device;
  find_device_format(name, device);
  const PageContext context{d, {&codebooks.constants, 0, head, side}};
  std::vector<std::byte> canonical(format.page_bytes(d));
  EncodedPage page;
  page.values = std::move(values);
  format.encode(page.values.data(), left_out, context, canonical.data());
  format.decode(canonical.data(), kPageTokens, context, page.values.data());
  page.device.resize(round_up_16(static_cast<int>(canonical.size())));
  page_to_device(device, side, d, canonical.size(), canonical.data(), page.device.data());
  return page;
}

}  // namespace kvant::cuda
