// Checks what format.h promises for every format that the registry lists. A new family needs no further tests
// for these promises.
#include <algorithm>
#include <functional>

#include "format/test_pages.h"

namespace kvant {
namespace {

constexpr float kCanary = 12345.0F;

void for_every_format(const std::function<void(const TestFormat&)>& body) {
  for (const std::string& name : format_names()) {
    for (const int d : kTestHeadDims) {
      // Every vector is compared with every centroid.
      const bool slow_to_encode = find_format(name)->constant_size(d) >= 16384;
      if (slow_to_encode && d > 80) continue;
      const TestFormat format(name, d);
      SCOPED_TRACE(format.label());
      body(format);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

std::vector<TokenMask> some_masks() {
  TokenMask few;
  for (const int token : {0, 1, 2, 3, 40, 127}) few.set(token);
  TokenMask all;
  TokenMask second_half;
  for (int token = 0; token < kPageTokens; ++token) {
    all.set(token);
    if (token >= kPageTokens / 2) second_half.set(token);
  }
  return {TokenMask{}, few, second_half, all};
}

TEST(EveryFormat, HasPagesOfItsSmallestHeads) {
  for (const std::string& name : format_names()) {
    const int least = find_format(name)->least_head_dim();
    for (const int d : {least, least + 8}) {
      const TestFormat test(name, d);
      const std::vector<float> values = key_like_values(d, 1);
      std::vector<std::byte> page(test.format().page_bytes(d));
      test.format().encode(values.data(), {}, test.context(), page.data());
      std::vector<float> decoded(values.size());
      test.format().decode(page.data(), kPageTokens, test.context(), decoded.data());
      EXPECT_TRUE(std::ranges::all_of(decoded, [](float x) { return std::isfinite(x); })) << test.label();
    }
  }
}

TEST(EveryFormat, EncodesEveryByteOfThePageAndNoOther) {
  constexpr std::size_t kGuard = 64;
  for_every_format([](const TestFormat& test) {
    const std::size_t size = test.format().page_bytes(test.d());
    const std::vector<float> values = key_like_values(test.d(), 1);
    std::vector<std::byte> buffers[2];
    for (const int fill : {0, 1}) {
      const std::byte canary{static_cast<unsigned char>(fill == 0 ? 0x00 : 0xff)};
      std::vector<std::byte>& buffer = buffers[fill];
      buffer.assign(size + 2 * kGuard + 1, canary);
      // With a fill of 1, the page is also not aligned.
      test.format().encode(values.data(), {}, test.context(), buffer.data() + kGuard + fill);
      EXPECT_TRUE(std::all_of(buffer.begin(), buffer.begin() + kGuard, [&](auto b) { return b == canary; }));
      EXPECT_TRUE(std::all_of(buffer.end() - kGuard, buffer.end(), [&](auto b) { return b == canary; }));
    }
    EXPECT_TRUE(std::equal(buffers[0].begin() + kGuard, buffers[0].begin() + kGuard + size,
                           buffers[1].begin() + kGuard + 1));
  });
}

TEST(EveryFormat, EncodesWithoutReadingBeyondOneRowOrWritingOthers) {
  for_every_format([](const TestFormat& test) {
    if (!test.format().row_wise()) return;
    const std::vector<float> values = key_like_values(test.d(), 2);
    const std::vector<std::byte> whole = test.encode(values);
    std::vector<std::byte> by_rows(whole.size(), std::byte{0x5a});
    for (int token = kPageTokens - 1; token >= 0; --token) {
      const std::vector<float> row(values.begin() + token * test.d(),
                                   values.begin() + (token + 1) * test.d());
      test.format().encode_rows(row.data(), token, 1, test.context(), by_rows.data());
    }
    EXPECT_TRUE(whole == by_rows);
  });
}

// A short page takes bytes in proportion to its tokens and decodes to the same values as the whole page.
TEST(EveryFormat, KeepsTheSameRowsInAShortPage) {
  static constexpr std::byte kGuard{0x5a};
  for_every_format([](const TestFormat& test) {
    if (!test.format().row_wise()) return;
    const std::vector<float> values = key_like_values(test.d(), 7);
    const std::vector<float> whole = test.decode(test.encode(values));
    const std::size_t whole_bytes = test.format().page_bytes(test.d());
    for (const int room : {1, 4, 16, 112, kPageTokens}) {
      PageContext context = test.context();
      context.page_tokens = room;
      const std::size_t size = test.format().short_page_bytes(test.d(), room);
      ASSERT_EQ(size * kPageTokens, whole_bytes * room);
      std::vector<std::byte> page(size + 1, kGuard);
      for (int token = room - 1; token >= 0; --token) {
        test.format().encode_rows(values.data() + static_cast<std::ptrdiff_t>(token) * test.d(), token, 1,
                                  context, page.data());
      }
      EXPECT_EQ(page[size], kGuard) << room;
      std::vector<float> decoded(static_cast<std::size_t>(room) * test.d());
      test.format().decode(page.data(), room, context, decoded.data());
      EXPECT_TRUE(std::equal(decoded.begin(), decoded.end(), whole.begin())) << room;
      if (test.format().number_type() == NumberType::none || test.format().plain()) continue;
      CodeParameters of_whole, of_short;
      const std::vector<std::byte> whole_page = test.encode(values);
      test.format().read_parameters(whole_page.data(), test.context(), {}, of_whole);
      test.format().read_parameters(page.data(), context, {}, of_short);
      EXPECT_TRUE(std::equal(of_whole.token_scale.begin(), of_whole.token_scale.begin() + room,
                             of_short.token_scale.begin()));
    }
  });
}

TEST(EveryFormat, DecodesAPrefixAsThePrefixOfThePage) {
  for_every_format([](const TestFormat& test) {
    const std::vector<std::byte> page = test.encode(key_like_values(test.d(), 3));
    const std::vector<float> whole = test.decode(page);
    for (const int n : {0, 1, 31, 64, 65, 127}) {
      std::vector<float> prefix(whole.size(), kCanary);
      test.format().decode(page.data(), n, test.context(), prefix.data());
      const std::ptrdiff_t written = static_cast<std::ptrdiff_t>(n) * test.d();
      EXPECT_TRUE(std::equal(prefix.begin(), prefix.begin() + written, whole.begin())) << n << " tokens";
      EXPECT_TRUE(std::all_of(prefix.begin() + written, prefix.end(), [](float x) { return x == kCanary; }));
    }
  });
}

TEST(EveryFormat, DecodesToFiniteValuesWhateverFiniteValuesItEncodes) {
  for_every_format([](const TestFormat& test) {
    const std::vector<TokenMask> masks = some_masks();
    std::size_t turn = 0;
    for (const std::vector<float>& values : extreme_pages(test.d())) {
      const TokenMask& left_out = masks[turn++ % masks.size()];
      EXPECT_TRUE(all_finite(test.decode(test.encode(values, left_out)))) << values[0] << ", " << values[1];
    }
  });
}

TEST(EveryFormat, LetsNoLeftOutTokenTouchTheOthers) {
  for_every_format([](const TestFormat& test) {
    const int d = test.d();
    std::vector<float> quiet = key_like_values(d, 4);
    for (const TokenMask& left_out : some_masks()) {
      std::vector<float> loud = quiet;
      for (int token = 0; token < kPageTokens; ++token) {
        for (int i = 0; i < d; ++i) {
          if (left_out.test(token)) loud[token * d + i] = i % 2 == 0 ? 1e6F : -1e6F;
        }
      }
      const std::vector<float> from_quiet = test.decode(test.encode(quiet, left_out));
      const std::vector<float> from_loud = test.decode(test.encode(loud, left_out));
      for (int token = 0; token < kPageTokens; ++token) {
        if (left_out.test(token)) continue;
        ASSERT_TRUE(std::equal(from_quiet.begin() + token * d, from_quiet.begin() + (token + 1) * d,
                               from_loud.begin() + token * d))
            << "token " << token;
      }
    }
  });
}

// TurboAttention computes q.K = scale * (q . integers) block by block, so values must equal integers times
// scales.
TEST(EveryFormat, DecodesToItsIntegersTimesTheirBlocksScales) {
  int integral = 0;
  for_every_format([&](const TestFormat& test) {
    if (!test.format().integral()) return;
    ++integral;
    const int d = test.d();
    std::vector<std::vector<float>> pages = extreme_pages(d);
    pages.push_back(key_like_values(d, 6));
    for (const std::vector<float>& values : pages) {
      const std::vector<std::byte> page = test.encode(values);
      const std::vector<float> decoded = test.decode(page);
      for (const int n : {1, 64, 65, kPageTokens}) {
        std::vector<float> integers(decoded.size(), kCanary);
        float scales[kPageTokens / kIntegerBlock];
        test.format().decode_integers(page.data(), n, test.context(), integers.data(), scales);
        for (int at = 0; at < n * d; ++at) {
          ASSERT_EQ(integers[at], std::nearbyint(integers[at]));
          ASSERT_LE(std::fabs(integers[at]), 127);
          ASSERT_EQ(decoded[at], integers[at] * scales[at / d / kIntegerBlock]);
        }
        ASSERT_TRUE(std::all_of(integers.begin() + static_cast<std::ptrdiff_t>(n) * d, integers.end(),
                                [](float x) { return x == kCanary; }));
      }
    }
  });
  EXPECT_GT(integral, 0);
}

// By Shannon's bound for Gaussian values, b bits per value leave a relative RMS error of at least 2^-b. A
// format with a smaller error would have to use bytes that its page_bytes() does not count.
TEST(EveryFormat, NeedsTheBytesThatItStates) {
  for_every_format([](const TestFormat& test) {
    const std::vector<float> values = gaussian_values(test.d(), 5);
    const double error = relative_rms_error(values, test.decode(test.encode(values)));
    EXPECT_GE(error, std::exp2(-test.format().bits(test.d())));
  });
}

}  // namespace
}  // namespace kvant
