#include "compact/symbol_coder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "compact/adaptive_integer.h"

namespace kvant {
namespace {

struct Symbol {
  std::uint32_t first, size;
};

// Returns intervals of very different sizes, including the whole interval.
std::vector<Symbol> some_symbols(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Symbol> symbols;
  for (int i = 0; i < n; ++i) {
    const auto drawn = static_cast<std::uint32_t>(random() % kWholeInterval) >> (random() % 16);
    const std::uint32_t size = i % 50 == 0 ? kWholeInterval : std::max(1U, drawn);
    const std::uint32_t first = static_cast<std::uint32_t>(random()) % (kWholeInterval - size + 1);
    symbols.push_back({first, size});
  }
  return symbols;
}

TEST(SymbolCoder, GivesBackWhatWasPut) {
  for (const int n : {0, 1, 2, 1000}) {
    SymbolWriter writer;
    const auto symbols = some_symbols(n, 1);
    for (const Symbol& s : symbols) writer.put(s.first, s.size);
    const auto bytes = writer.take();
    SymbolReader reader(bytes);
    for (const Symbol& s : symbols) {
      if (s.size == kWholeInterval) continue;
      ASSERT_GE(reader.point(), s.first);
      ASSERT_LT(reader.point(), s.first + s.size);
      reader.pass(s.first, s.size);
    }
    EXPECT_TRUE(reader.at_end()) << n;
  }
}

TEST(SymbolCoder, TakesTheBitsOfItsProbabilities) {
  SymbolWriter writer;
  double bits = 0;
  for (const Symbol& s : some_symbols(100000, 2)) {
    writer.put(s.first, s.size);
    bits += std::log2(static_cast<double>(kWholeInterval) / s.size);
  }
  const auto bytes = static_cast<double>(writer.take().size());
  EXPECT_GE(8 * bytes, bits);
  EXPECT_LT(8 * bytes, 1.0005 * bits + 64);
}

TEST(SymbolCoder, NoticesBytesThatAreMissingOrTooMany) {
  SymbolWriter writer;
  const auto symbols = some_symbols(500, 3);
  for (const Symbol& s : symbols) writer.put(s.first, s.size);
  const auto bytes = writer.take();
  const auto reads = [&](std::span<const std::byte> from) {
    SymbolReader reader(from);
    for (const Symbol& s : symbols)
      if (s.size < kWholeInterval) reader.pass(s.first, s.size);
    return reader.at_end();
  };
  EXPECT_TRUE(reads(bytes));
  for (std::size_t n = 0; n < bytes.size(); n += 3) EXPECT_FALSE(reads(std::span(bytes).first(n))) << n;
  auto longer = bytes;
  longer.resize(bytes.size() + 4);
  EXPECT_FALSE(reads(longer));
}

TEST(AdaptiveInteger, GivesBackWhatWasWrittenAndLearns) {
  std::mt19937 random(4);
  std::normal_distribution<double> normal(0, 3);
  std::vector<int> small(20000);
  for (int& x : small) x = static_cast<int>(std::lround(normal(random)));
  const std::vector<int> large = {0, 1, -1, 32767, -32768, 32768, 1000, -12345};
  SymbolWriter writer;
  {
    WriteStream stream(writer);
    AdaptiveNumber<8> numbers;
    AdaptiveDifference differences;
    for (const int x : small) numbers.code(stream, static_cast<std::uint32_t>(x + 128) & 255);
    for (const int x : large) differences.code(stream, x);
  }
  const auto bytes = writer.take();
  SymbolReader reader(bytes);
  ReadStream stream(reader);
  AdaptiveNumber<8> numbers;
  AdaptiveDifference differences;
  for (const int x : small) ASSERT_EQ(numbers.code(stream, 0), static_cast<std::uint32_t>(x + 128) & 255);
  for (const int x : large) ASSERT_EQ(differences.code(stream, 0), x);
  EXPECT_TRUE(reader.at_end());
  // A rounded normal variable of deviation 3 has an entropy of 3.63 bits.
  EXPECT_LT(8.0 * static_cast<double>(bytes.size()) / static_cast<double>(small.size()), 3.63 * 1.06);
}

}  // namespace
}  // namespace kvant
