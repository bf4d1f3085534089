#include "format/code_order.h"

#include <algorithm>
#include <cmath>

#include "format/test_pages.h"
#include "format/trellis_code.h"

namespace kvant {
namespace {

using Bytes = std::vector<std::byte>;

// Calls check(format, ordered) for every format, head size and side that has a code order of its own.
// `ordered` is the format with this order.
template <class Check>
void for_each_order(const Check& check) {
  int n = 0;
  for (const std::string& name : format_names()) {
    for (const int d : kTestHeadDims) {
      const TestFormat format(name, d);
      for (const Side side : kSides) {
        const auto ordered = with_code_order(format.format(), side, d);
        if (ordered == nullptr) continue;
        ++n;
        check(format, *ordered);
      }
    }
  }
  EXPECT_GT(n, 100);
}

Bytes encode(const Format& ordered, const TestFormat& format, const std::vector<float>& values) {
  Bytes page(ordered.page_bytes(format.d()));
  ordered.encode(values.data(), {}, format.context(), page.data());
  return page;
}

TEST(CodeOrder, DecodesToWhatTheCanonicalOrderDecodesTo) {
  for_each_order([](const TestFormat& format, const Format& ordered) {
    const int d = format.d();
    const std::vector<float> values = key_like_values(d, 1);
    const Bytes rows = format.encode(values), page = encode(ordered, format, values);
    for (const int n : {1, 37, kPageTokens}) {
      std::vector<float> decoded(static_cast<std::size_t>(n) * d);
      ordered.decode(page.data(), n, format.context(), decoded.data());
      EXPECT_EQ(decoded, format.decode(rows, n)) << format.label() << ", " << n << " tokens";
    }
  });
}

TEST(CodeOrder, IsAPermutationOfTheCodes) {
  for_each_order([](const TestFormat& format, const Format& ordered) {
    const auto scheme = ordered.code_scheme(format.d());
    const std::vector<float> values = key_like_values(format.d(), 2);
    Bytes rows = format.encode(values), page = encode(ordered, format, values);
    const auto n_codes =
        static_cast<std::ptrdiff_t>(kPageTokens) * format.d() / scheme->group_channels * scheme->group_bytes;
    EXPECT_TRUE(std::equal(rows.begin() + n_codes, rows.end(), page.begin() + n_codes, page.end()))
        << format.label() << ": parameters stay in place";
    std::sort(rows.begin(), rows.begin() + n_codes);
    std::sort(page.begin(), page.begin() + n_codes);
    EXPECT_EQ(rows, page) << format.label();
  });
}

TEST(CodeOrder, IsUndoneForInterchange) {
  for_each_order([](const TestFormat& format, const Format& ordered) {
    const std::vector<float> values = key_like_values(format.d(), 4);
    const Bytes rows = format.encode(values), page = encode(ordered, format, values);
    Bytes canonical(rows.size()), back(rows.size());
    to_canonical_order(ordered, format.d(), page.data(), canonical.data());
    EXPECT_EQ(canonical, rows) << format.label();
    from_canonical_order(ordered, format.d(), rows.data(), back.data());
    EXPECT_EQ(back, page) << format.label();
    to_canonical_order(format.format(), format.d(), rows.data(), canonical.data());
    EXPECT_EQ(canonical, rows) << format.label() << ": is canonical already";
  });
}

// The expected bytes are worked out by hand for pages whose codes count up.
TEST(CodeOrder, PutsTokensSideBySide) {
  const TestFormat format("ch8g128", 64);  // 8 groups of 8 bytes a token
  std::vector<float> values(kPageTokens * 64);
  for (int t = 0; t < kPageTokens; ++t) {
    for (int c = 0; c < 64; ++c)
      values[t * 64 + c] = static_cast<float>(t == 0 ? 0 : t == 127 ? 255 : t + c / 8);
  }
  const auto byte = [](const Bytes& page, int i) { return std::to_integer<int>(page[i]); };
  const auto keys = with_code_order(format.format(), Side::key, 64);
  const Bytes k = encode(*keys, format, values);
  for (int group = 0; group < 4; ++group) {  // channel 0 of token 3, groups 0 .. 3
    EXPECT_EQ(byte(k, 3 * 4 + group), 3 + group);
    EXPECT_EQ(byte(k, (8 * 16 + 3) * 4 + group), 3 + 4 + group);   // channel 0 of token 3, groups 4 .. 7
    EXPECT_EQ(byte(k, (2 * 8 * 16 + 1) * 4 + group), 17 + group);  // channel 0 of token 17
  }
  const auto octets = with_code_order(format.format(), Side::value, 64);
  const Bytes v = encode(*octets, format, values);
  for (int t = 1; t < 8; ++t) {
    EXPECT_EQ(byte(v, t), t);                  // tokens 0 .. 7, group 0
    EXPECT_EQ(byte(v, 5 * 8 + t), t + 5);      // group 5
    EXPECT_EQ(byte(v, 8 * 8 * 8 + t), 8 + t);  // tokens 8 .. 15, group 0
  }
}

// Reads the number that a code stands for from the canonical codes, bit by bit.
int number_of(const CodeScheme& scheme, const CodeTable& table, const Bytes& rows, int d, int t, int c) {
  if (scheme.meaning == CodeMeaning::vector) {
    const int x = scheme.group_channels;
    const int code = std::to_integer<int>(rows[t * (d / x) + c / x]);
    return table.biased[c % x * 256 + code] - kTableBias;
  }
  const std::byte* row = rows.data() + static_cast<std::ptrdiff_t>(t) * d * scheme.bits / 8;
  if (scheme.meaning == CodeMeaning::state) {
    const int row_bits = d * scheme.bits;
    int state = 0;
    for (int bit = 0; bit < 8; ++bit) {
      const int at = ((c + 1) * scheme.bits - 8 + bit + row_bits) % row_bits;
      state |= code_from_stream(row, at, 1) << bit;
    }
    return state_level(kTrellisCodes[scheme.bits - 1], state);
  }
  const int code = code_from_stream(row, c, scheme.bits);
  return scheme.meaning == CodeMeaning::level ? table.biased[code] - kTableBias : code;
}

// Table entries are rounded to bytes, so they may be off by half a step of the table.
TEST(CodeScheme, ItsFormulaGivesTheDecodedValues) {
  for_each_order([](const TestFormat& format, const Format& ordered) {
    const int d = format.d();
    const CodeScheme scheme = *ordered.code_scheme(d);
    const Bytes rows = format.encode(key_like_values(d, 3));
    PageContext context = format.context();
    context.table = ordered.code_table(context);
    CodeParameters p;
    ordered.read_parameters(rows.data(), context, context.table, p);
    const std::vector<float> decoded = format.decode(rows);
    const bool rounded = scheme.meaning == CodeMeaning::level || scheme.meaning == CodeMeaning::vector;
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < d; ++c) {
        const int group = scheme.token_groups == 0 ? 0 : c / (d / scheme.token_groups);
        const int block = scheme.channel_blocks == 0 ? 0 : t / (kPageTokens / scheme.channel_blocks);
        const auto of_token = [&](const std::vector<float>& x, double otherwise) {
          return x.empty() ? otherwise : x[group * kPageTokens + t];
        };
        const auto of_channel = [&](const std::vector<float>& x, double otherwise) {
          return x.empty() ? otherwise : x[block * d + c];
        };
        const double unit = of_token(p.token_scale, 1) * of_channel(p.channel_scale, 1);
        const double value = unit * number_of(scheme, context.table, rows, d, t, c) +
                             of_token(p.token_offset, 0) + of_channel(p.channel_offset, 0);
        const double maximum = (rounded ? 0.5001 : 1e-4) * std::abs(unit) + 1e-5 * std::abs(value);
        ASSERT_NEAR(value, decoded[t * d + c], maximum)
            << format.label() << ", token " << t << ", channel " << c;
      }
    }
  });
}

TEST(CodeOrder, IsRefusedWhereGroupsOfChannelsDontFillALoad) {
  EXPECT_EQ(with_code_order(*find_format("ch4g128"), Side::key, 80), nullptr);  // 10 groups of 8
  EXPECT_EQ(with_code_order(*find_format("tok4g8"), Side::key, 64), nullptr);   // one scale per 8 channels
  // The groups have 128 and 64 channels.
  EXPECT_EQ(with_code_order(*find_format("tok4g128"), Side::key, 192), nullptr);
  EXPECT_EQ(with_code_order(*find_format("bf16"), Side::key, 64), nullptr);
  EXPECT_EQ(with_code_order(*find_format("vq-d4b12"), Side::key, 64), nullptr);
}

}  // namespace
}  // namespace kvant
