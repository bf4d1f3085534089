// Compares appending to the tail and sealing with the formats' own encoders.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "device/cuda/common/limits.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "device/cuda/test/packed_entry.h"
#include "device/cuda/test/walsh_hadamard.h"
#include "kvant/kvant.h"

namespace kvant::cuda::encode_test {
namespace {

constexpr int kSeqs = 2;
constexpr int kKvHeads = 2;
constexpr int kPages = 2;  // pages of each sequence
constexpr int kSink = 4;

struct Case {
  const char* key;
  const char* value;
  // differing_bits is the largest allowed share of bits that differ. Bits differ where the order of rounding
  // or the search for paths differs.
  double differing_bits;
  // second_key and second_value name the formats of the second KV head; null means the formats of the first
  // KV head. If they are set, the pages of the two heads lie side by side.
  const char* second_key = nullptr;
  const char* second_value = nullptr;
};
// For trellis codes, the search may find other paths of equal error. Unrelated codes would differ in half of
// their bits.
constexpr double kOtherPaths = 0.45;
constexpr Case kCases[] = {{"ch4g128", "tok4g128", 0},
                           {"ch2g128", "tok2g128", 0},
                           {"prog4", "prog4", 0},
                           {"prog2", "prog2", 0},
                           {"ch4g128", "tok2g128", 0, "prog2", "prog4"},
                           {"lm4", "lm4", 1e-4},
                           {"lm3", "lm2", 1e-4},
                           {"vq-d4b8", "vq-d4b8", 1e-3},
                           {"vq-d2b8", "vq-d8b12", 1e-3},
                           {"fp8", "fp8", 0},
                           {"tok8g32s", "tok8g128", 0},
                           {"ch3g64", "tok3g64", 0},
                           {"ch1g32", "tok1g32s", 0},
                           {"ch5g128", "tok5g128s", 0},
                           {"ch8g32", "tok6g64", 0},
                           {"prog3", "prog5", 0},
                           {"prog4-paper", "prog2-paper", 0},
                           {"lm5", "lm5u", 1e-4},
                           {"lm3u", "tok4g32s", 1e-4},
                           {"nvq-d4b8", "nvq-d4b10", 1e-3},
                           {"nvq-d8b12", "nvq-d2b8", 1e-3},
                           {"tcq1", "tcq2", kOtherPaths},
                           {"tcq1", "tcq3", kOtherPaths, "tcq3", "tcq1"},
                           {"tcq3", "tcq4", kOtherPaths},
                           {"tcq4", "tcq6", kOtherPaths},
                           {"tcq5", "tcq3", kOtherPaths}};

// SealedCache is a cache into which rows for kPages pages of each sequence were appended in a shuffled order
// and then sealed. Each sequence, head and side has kPages tail pages and kPages sealed pages.
class SealedCache {
 public:
  SealedCache(const Case& formats, int d, bool hadamard, Values kind = Values::normal)
      : formats_{{formats.key, formats.key}, {formats.value, formats.value}},
        d_(d),
        codebooks_(formats.key, formats.value, d, kKvHeads, 8) {
    if (formats.second_key != nullptr) {
      formats_[0][1] = formats.second_key;
      formats_[1][1] = formats.second_value;
      std::vector<std::size_t> page_bytes;
      for (int head = 0; head < kKvHeads; ++head)
        for (const auto& names : formats_) page_bytes.push_back(kvant_page_bytes(names[head], d));
      packed_.emplace(page_bytes);
    }
    const int n_rows = kSeqs * kPages * kPageTokens;
    rows_[0].resize(static_cast<std::size_t>(n_rows) * kKvHeads * d);
    rows_[1].resize(rows_[0].size());
    std::vector<std::int32_t> seq, token;
    for (int i = 0; i < n_rows; ++i) {
      seq.push_back(i % kSeqs);
      token.push_back((i / kSeqs * 37) % (kPages * kPageTokens));
    }
    for (int side = 0; side < 2; ++side)
      for (int s = 0; s < kSeqs; ++s)
        for (int head = 0; head < kKvHeads; ++head) {
          std::vector<float> values;
          for (int page = 0; page < kPages; ++page) {
            const std::vector<float> more =
                page_values(static_cast<Side>(side), d, 50 + 100 * page + 10 * s + 3 * head + side, kind);
            values.insert(values.end(), more.begin(), more.end());
          }
          for (int i = s; i < n_rows; i += kSeqs)
            for (int c = 0; c < d; ++c)
              rows_[side][(i * kKvHeads + head) * d + c] = bf16_from_float(values[token[i] * d + c]);
        }
    order_ = token;
    run(seq, token, hadamard);
  }

  // Returns the bf16 values [kPageTokens][d] that were appended.
  std::vector<float> appended(int side, int seq, int head, int page) const {
    std::vector<float> values(static_cast<std::size_t>(kPageTokens) * d_);
    for (int i = seq; i < kSeqs * kPages * kPageTokens; i += kSeqs)
      for (int c = 0; c < d_ && order_[i] / kPageTokens == page; ++c)
        values[order_[i] % kPageTokens * d_ + c] =
            float_from_bf16(rows_[side][(i * kKvHeads + head) * d_ + c]);
    return values;
  }
  // Returns the values of the tail page, token by token.
  std::vector<float> tail(int side, int seq, int head, int nth) const {
    const auto* page = tail_.data() + entry(side, seq, head, nth) * kPageTokens * d_;
    std::vector<float> values(static_cast<std::size_t>(kPageTokens) * d_);
    for (int token = 0; token < kPageTokens; ++token)
      for (int c = 0; c < d_; ++c)
        values[token * d_ + c] =
            float_from_bf16(page[plain_index(static_cast<PageSide>(side), d_, token, c)]);
    return values;
  }
  const std::byte* sealed(int side, int seq, int head, int page) const {
    if (packed_)
      return sealed_.data() + (seq * kPages + page) * packed_->bytes + packed_->offsets[2 * head + side];
    return sealed_.data() + entry(side, seq, head, page) * stride_;
  }

  // Returns the largest allowed ratio of a page's squared error to the error of the format's encoder. Kernels
  // choose other seams of a trellis than the format. With codes of one bit, whose paths take longest to
  // decide, errors differ by up to 1.5 %. If a gain is halfway between two codes, the last bit of a logarithm
  // decides between them and changes all codes of the row. In this way, the ratio of a page with 1 bit
  // reached 1.0203.
  double tolerance(int side, int head) const {
    const PageDescription page = find_format(formats_[side][head])->describe()->page;
    return page.kind == CodeKind::state && page.bits == 1 ? 1.025 : 1.01;
  }

  // Returns the page that the canonical encoder makes of `values`, in the device's order. `nth` is the page's
  // index in its sequence.
  std::vector<std::byte> expected(int side, int head, int nth, const std::vector<float>& values) const {
    TokenMask left_out;
    for (int token = 0; token < kSink && nth == 0; ++token) left_out.set(token);
    const Format& format = *find_format(formats_[side][head]);
    DeviceFormat device;
    find_device_format(formats_[side][head], device);
    std::vector<std::byte> canonical(format.page_bytes(d_));
    format.encode(values.data(), left_out, {d_, {&codebooks_.constants, 0, head, static_cast<Side>(side)}},
                  canonical.data());
    std::vector<std::byte> page(round_up_16(static_cast<int>(canonical.size())));
    page_to_device(device, static_cast<Side>(side), d_, canonical.size(), canonical.data(), page.data());
    return page;
  }

  // Returns the squared errors of the tokens of a device page, without the tokens that are left out.
  std::vector<double> token_errors(int side, int head, const std::vector<float>& values,
                                   const std::byte* page) const {
    const Format& format = *find_format(formats_[side][head]);
    DeviceFormat device;
    find_device_format(formats_[side][head], device);
    std::vector<std::byte> canonical(format.page_bytes(d_));
    page_from_device(device, static_cast<Side>(side), d_, canonical.size(), page, canonical.data());
    std::vector<float> decoded(values.size());
    PageContext context;
    context.head_dim = d_;
    context.constants = {&codebooks_.constants, 0, head, static_cast<Side>(side)};
    format.decode(canonical.data(), kPageTokens, context, decoded.data());
    std::vector<double> errors(kPageTokens);
    for (std::size_t i = 0; i < values.size(); ++i)
      errors[i / d_] += (double{values[i]} - decoded[i]) * (double{values[i]} - decoded[i]);
    return errors;
  }
  double squared_error(int side, int head, const std::vector<float>& values, const std::byte* page) const {
    const std::vector<double> errors = token_errors(side, head, values, page);
    return std::accumulate(errors.begin() + kSink, errors.end(), 0.0);
  }

 private:
  static std::size_t entry(int side, int seq, int head, int page) {
    return ((seq * kKvHeads + head) * 2 + side) * kPages + page;
  }

  void run(const std::vector<std::int32_t>& seq, const std::vector<std::int32_t>& token, bool hadamard) {
    for (const auto& names : formats_)
      for (const char* name : names) stride_ = std::max(stride_, kvant_page_bytes(name, d_));
    const std::size_t entries = kSeqs * kKvHeads * 2 * kPages;
    std::vector<std::int32_t> ids(entries);
    for (std::size_t i = 0; i < entries; ++i) ids[i] = static_cast<std::int32_t>(i);
    const DeviceArray<std::int32_t> table(ids), device_seq(seq), device_token(token);
    const DeviceArray<std::int32_t> first_page(std::vector<std::int32_t>(kSeqs, 0));
    const DeviceArray<std::uint16_t> keys(rows_[0]), values(rows_[1]);
    const DeviceArray<std::uint16_t> tail(entries * kPageTokens * d_);
    const DeviceArray<std::byte> sealed(std::vector<std::byte>(entries * stride_, std::byte{0xff}));
    const DeviceArray<std::uint16_t> key_codebooks(codebooks_.packed[0]),
        value_codebooks(codebooks_.packed[1]);

    kvant_decode_shape shape{};
    shape.struct_size = sizeof shape;
    shape.n_seqs = kSeqs;
    shape.n_kv_heads = kKvHeads;
    shape.group = 1;
    shape.head_dim = d_;
    shape.head_key_formats = formats_[0];
    shape.head_value_formats = formats_[1];
    kvant_decode_layer layer{};
    layer.struct_size = sizeof layer;
    layer.sealed = layer.tail =
        kvant_pages{table.get(), kKvHeads * 2 * kPages, 0, 2 * kPages, kPages, nullptr, 0, 0, 0, 0};
    layer.tail.pool = tail.get();
    layer.tail.page_stride = kPageTokens * d_ * 2;
    layer.sealed.pool = sealed.get();
    layer.sealed.page_stride = static_cast<std::int64_t>(stride_);
    if (packed_) {
      layer.sealed.page_stride = packed_->bytes;
      layer.sealed.seq_stride = kPages;
      layer.sealed.head_stride = layer.sealed.side_stride = 0;
      layer.sealed_offsets = packed_->offsets.data();
    }
    layer.sink = kSink;
    layer.key_codebooks = key_codebooks.get();
    layer.value_codebooks = value_codebooks.get();
    layer.key_codebook_stride = codebooks_.size[0];
    layer.value_codebook_stride = codebooks_.size[1];
    kvant_new_rows rows{};
    rows.struct_size = sizeof rows;
    rows.n_rows = static_cast<std::int32_t>(seq.size());
    rows.seq = device_seq.get();
    rows.tail_token = device_token.get();
    rows.keys = keys.get();
    rows.values = values.get();
    rows.key_row_stride = rows.value_row_stride = kKvHeads * d_;
    rows.key_head_stride = rows.value_head_stride = d_;
    rows.key_hadamard = rows.value_hadamard = hadamard ? 1 : 0;
    EXPECT_EQ(kvant_append(&shape, &layer, &rows, nullptr), KVANT_OK);
    // One call seals the first page, and another call seals the other pages. Each sequence has fewer pages
    // than the maximum.
    EXPECT_EQ(kvant_seal(&shape, &layer, first_page.get(), first_page.get(), nullptr), KVANT_OK);
    const DeviceArray<std::int32_t> second_page(std::vector<std::int32_t>(kSeqs, 1)),
        others(std::vector<std::int32_t>(kSeqs, kPages - 1));
    const kvant_seal_range range{sizeof range, second_page.get(), second_page.get(), others.get(), kPages};
    EXPECT_EQ(kvant_seal_pages(&shape, &layer, &range, nullptr), KVANT_OK);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    tail_ = tail.read();
    sealed_ = sealed.read();
  }

  const char* formats_[2][kKvHeads];
  int d_;
  Codebooks codebooks_;
  std::vector<std::uint16_t> rows_[2];
  std::vector<std::int32_t> order_;
  std::size_t stride_ = 0;
  std::optional<PackedEntry> packed_;  // entry with the pages of all heads and sides
  std::vector<std::uint16_t> tail_;
  std::vector<std::byte> sealed_;
};

class Encoding : public ::testing::TestWithParam<std::tuple<Case, int>> {
 protected:
  void SetUp() override {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no GPU";
  }
  template <class Check>
  static void for_each_page(const Check& check) {
    for (int side = 0; side < 2; ++side)
      for (int seq = 0; seq < kSeqs; ++seq)
        for (int head = 0; head < kKvHeads; ++head)
          for (int page = 0; page < kPages; ++page) check(side, seq, head, page);
  }
};

TEST_P(Encoding, SealsWhatTheFormatEncodes) {
  const auto& [formats, d] = GetParam();
  const SealedCache cache(formats, d, false);
  std::size_t differing = 0;
  std::size_t bits = 0;
  for_each_page([&](int side, int seq, int head, int page) {
    const std::vector<float> values = cache.appended(side, seq, head, page);
    EXPECT_EQ(cache.tail(side, seq, head, page), values);
    const std::vector<std::byte> expected = cache.expected(side, head, page, values);
    for (std::size_t i = 0; i < expected.size(); ++i)
      differing +=
          std::popcount(std::to_integer<unsigned>(expected[i] ^ cache.sealed(side, seq, head, page)[i]));
    bits += 8 * expected.size();
  });
  EXPECT_LE(static_cast<double>(differing), formats.differing_bits * static_cast<double>(bits));
}

// The call has F32 rows and queries of two sequences, and leaves out the row and the query of the second
// sequence.
TEST(Appending, TakesF32RowsAndTransformsTheirQueries) {
  int n_devices = 0;
  if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) GTEST_SKIP() << "no GPU";
  constexpr int kGroup = 3, kToken = 130;
  for (const int d : kHeadDims) {
    std::mt19937 random(d);
    std::normal_distribution<float> normal;
    const auto numbers = [&](int n) {
      std::vector<float> x(n);
      for (float& value : x) value = normal(random);
      return x;
    };
    const int row = kKvHeads * d, query_row = row * kGroup;
    const std::vector<float> k = numbers(2 * row), v = numbers(2 * row), q = numbers(2 * query_row),
                             factors = numbers(row), query_factors = numbers(row);
    const DeviceArray<float> keys(k), values(v), queries(q), key_factors(factors), q_factors(query_factors);
    const DeviceArray<std::int32_t> seq(std::vector<std::int32_t>{0, 1}),
        token(std::vector<std::int32_t>{kToken, -1});
    std::vector<std::int32_t> ids(2 * 2);  // [seq][page], for all heads and sides
    std::iota(ids.begin(), ids.end(), 0);
    const DeviceArray<std::int32_t> table(ids);
    const std::int64_t page = kPageTokens * d;
    const DeviceArray<std::uint16_t> tail(ids.size() * kKvHeads * 2 * page);
    kvant_decode_shape shape{};
    shape.struct_size = sizeof shape;
    shape.n_seqs = 2;
    shape.n_kv_heads = kKvHeads;
    shape.group = kGroup;
    shape.head_dim = d;
    kvant_decode_layer layer{};
    layer.struct_size = sizeof layer;
    layer.tail = {table.get(), 2, 0, 0, 0, tail.get(), kKvHeads * 2 * page * 2, 0, 2 * page * 2, page * 2};
    kvant_new_rows rows{};
    rows.struct_size = sizeof rows;
    rows.n_rows = 2;
    rows.seq = seq.get();
    rows.tail_token = token.get();
    rows.type = KVANT_F32;
    rows.keys = keys.get();
    rows.values = values.get();
    rows.key_row_stride = rows.value_row_stride = row;
    rows.key_head_stride = rows.value_head_stride = d;
    rows.key_factors = key_factors.get();
    rows.key_hadamard = 1;
    rows.queries = queries.get();
    rows.query_row_stride = query_row;
    rows.query_head_stride = d;
    rows.query_factors = q_factors.get();
    ASSERT_EQ(kvant_append(&shape, &layer, &rows, nullptr), KVANT_OK);
    const std::vector<std::uint16_t> stored = tail.read();
    const std::vector<float> turned = queries.read();
    const auto expected = [&](const std::vector<float>& x, int at, const std::vector<float>& by, int head) {
      std::vector<float> scaled(x.begin() + at, x.begin() + at + d);
      for (int c = 0; c < d; ++c) scaled[c] *= by[head * d + c];
      return rotated(scaled, d);
    };
    for (int head = 0; head < kKvHeads; ++head) {
      const std::uint16_t* at = stored.data() + (kToken / kPageTokens * kKvHeads + head) * 2 * page;
      const std::vector<double> rotated_key = expected(k, head * d, factors, head);
      for (int c = 0; c < d; ++c) {
        const float key = float_from_bf16(at[plain_index(PageSide::key, d, kToken % kPageTokens, c)]);
        EXPECT_NEAR(key, rotated_key[c], 0.0045 * (std::fabs(rotated_key[c]) + 0.01)) << d;
        EXPECT_EQ(at[page + plain_index(PageSide::value, d, kToken % kPageTokens, c)],
                  bf16_from_float(v[head * d + c]));
      }
    }
    for (int head = 0; head < kKvHeads * kGroup; ++head) {
      const std::vector<double> query = expected(q, head * d, query_factors, head / kGroup);
      for (int c = 0; c < d; ++c) EXPECT_NEAR(turned[head * d + c], query[c], 1e-4) << d;
    }
    // The query of the second sequence is unchanged, because its row is left out.
    EXPECT_TRUE(std::equal(turned.begin() + query_row, turned.end(), q.begin() + query_row));
  }
}

TEST_P(Encoding, LosesNoMoreThanTheFormat) {
  const auto& [formats, d] = GetParam();
  const SealedCache cache(formats, d, false);
  for_each_page([&](int side, int seq, int head, int page) {
    const std::vector<float> values = cache.appended(side, seq, head, page);
    const double expected =
        cache.squared_error(side, head, values, cache.expected(side, head, page, values).data());
    EXPECT_LE(cache.squared_error(side, head, values, cache.sealed(side, seq, head, page)),
              cache.tolerance(side, head) * expected);
  });
}

TEST_P(Encoding, RotatesRowsBeforeTheyAreStored) {
  const auto& formats = std::get<0>(GetParam());
  const int d = std::get<1>(GetParam());
  const SealedCache cache(formats, d, true);
  for_each_page([&](int side, int seq, int head, int page) {
    const std::vector<double> expected = rotated(cache.appended(side, seq, head, page), d);
    const std::vector<float> stored = cache.tail(side, seq, head, page);
    double worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst, std::fabs(stored[i] - expected[i]) / (std::fabs(expected[i]) + 0.01));
    EXPECT_LT(worst, 0.0045);  // bf16 rounds by up to 2^-8
  });
}

// Kernels first compute distances in half precision. The computation in half precision must also work for
// small values next to large values.
class VectorEncoding : public Encoding {};
TEST_P(VectorEncoding, LosesNoMoreOfAnyTokenAmongOutliers) {
  const auto& [formats, d] = GetParam();
  const SealedCache cache(formats, d, false, Values::outliers);
  for_each_page([&](int side, int seq, int head, int page) {
    const std::vector<float> values = cache.appended(side, seq, head, page);
    const std::vector<double> expected =
        cache.token_errors(side, head, values, cache.expected(side, head, page, values).data());
    const std::vector<double> errors =
        cache.token_errors(side, head, values, cache.sealed(side, seq, head, page));
    for (int token = 0; token < kPageTokens; ++token)
      EXPECT_LE(errors[token], 1.01 * expected[token]) << token;
  });
}

TEST(SealingApi, RefusesOffsetsThatAreNone) {
  alignas(16) static std::int32_t some[4]{};
  kvant_decode_shape shape{sizeof shape, 1, 2, 1, 128, 1.0F, "ch4g128", "tok4g128"};
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.sealed.table = layer.tail.table = some;
  layer.sealed.pool = layer.tail.pool = some;
  for (const std::int64_t wrong : {std::int64_t{-16}, std::int64_t{8}, std::int64_t{1} << 36}) {
    const std::int64_t offsets[] = {0, 16, 32, wrong};
    layer.sealed_offsets = offsets;
    EXPECT_EQ(kvant_seal(&shape, &layer, some, some, nullptr), KVANT_INVALID_ARGUMENT) << wrong;
    EXPECT_NE(std::string(kvant_last_error()).find("layer.sealed_offsets"), std::string::npos) << wrong;
  }
}

std::string name_of(const Case& formats, int d) {
  std::string name = std::string(formats.key) + "_" + formats.value + "_d" + std::to_string(d);
  if (formats.second_key != nullptr) name += "_mixed";
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Formats, Encoding,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::ValuesIn(kHeadDims)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param), std::get<1>(info.param));
                         });

INSTANTIATE_TEST_SUITE_P(
    Vectors, VectorEncoding,
    ::testing::Combine(::testing::Values(Case{"vq-d2b8", "vq-d2b8", 1e-3}, Case{"vq-d4b8", "vq-d4b12", 1e-3},
                                         Case{"vq-d8b12", "vq-d8b12", 1e-3}),
                       ::testing::ValuesIn(kHeadDims)),
    [](const auto& info) { return name_of(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace kvant::cuda::encode_test
