// Tests that sealing gives a page the same bytes whether it reads new rows or rows that were first appended
// to the tail.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/common/limits.h"
#include "device/cuda/test/decode_test_cache.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "kvant/kvant.h"

namespace kvant::cuda::seal_rows_test {
namespace {

constexpr int kHeads = 2, kSeqs = 3, kRows = 540, kSink = 4;
constexpr int kPagesOfSeq = 2;  // largest number of due pages; also entries of each sequence in tables
// The first sequence has two due pages, and the other sequences have one. Pages of the second sequence are
// always in the tail.
constexpr int kFirstRow[kSeqs] = {5, 262, 400};
constexpr int kDuePages[kSeqs] = {2, 1, 1};
constexpr int kSealedPage[kSeqs] = {0, 1, 0};
constexpr int kInTail = 1;

struct RowKind {
  kvant_type type;
  int apart;  // unused numbers after each row and head
  bool rotated;
};

std::size_t bytes_of(kvant_type type) {
  return type == KVANT_F32 ? 4 : 2;
}

// Holds rows [row][side][head] of d - 16 channels. After each head and row there are `apart` unused numbers.
class Rows {
 public:
  Rows(const RowKind& kind, int d)
      : kind_(kind),
        channels_(d - 16),
        head_stride_(channels_ + kind.apart),
        memory_(packed(kind.type, kRows * 2 * kHeads * head_stride_)),
        factors_(random_numbers(2 * kHeads * d, 3)),
        d_(d) {}

  kvant_new_rows described() const {
    kvant_new_rows rows{};
    rows.struct_size = sizeof rows;
    rows.n_rows = kRows;
    rows.keys = memory_.get();
    rows.values = memory_.get() + kHeads * head_stride_ * bytes_of(kind_.type);
    rows.key_row_stride = rows.value_row_stride = 2 * kHeads * head_stride_;
    rows.key_head_stride = rows.value_head_stride = head_stride_;
    rows.type = kind_.type;
    rows.key_channels = rows.value_channels = channels_;
    rows.key_hadamard = rows.value_hadamard = kind_.rotated ? 1 : 0;
    if (kind_.rotated) rows.key_factors = factors_.get();
    if (kind_.rotated) rows.value_factors = factors_.get() + std::ptrdiff_t{kHeads} * d_;
    return rows;
  }

 private:
  static std::vector<float> random_numbers(std::size_t n, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.5F, 1.0F);
    std::vector<float> numbers(n);
    for (float& x : numbers) x = normal(random);
    return numbers;
  }
  static std::vector<std::byte> packed(kvant_type type, std::size_t n) {
    std::vector<std::byte> bytes(n * bytes_of(type));
    const std::vector<float> numbers = random_numbers(n, 7);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint16_t half = type == KVANT_F16 ? f16_from_float(numbers[i]) : bf16_from_float(numbers[i]);
      const void* from = type == KVANT_F32 ? static_cast<const void*>(&numbers[i]) : &half;
      std::memcpy(bytes.data() + i * bytes_of(type), from, bytes_of(type));
    }
    return bytes;
  }

  RowKind kind_;
  int channels_;
  std::int64_t head_stride_;
  DeviceArray<std::byte> memory_;
  DeviceArray<float> factors_;
  int d_;
};

// PagedCache is a cache of three sequences with tail and sealed pages, and protected pages for the sink.
class PagedCache {
 public:
  PagedCache(const char* format, int d)
      : d_(d),
        page_bytes_(static_cast<std::int64_t>(kvant_page_bytes(format, d))),
        format_(format),
        codebooks_(format, format, d, kHeads, 8),
        centroids_(codebooks_.packed[0]),
        table_(page_numbers()),
        tail_(std::vector<std::byte>(kPages * plain_bytes(), std::byte{0x7f})),
        sealed_(std::vector<std::byte>(kPages * page_bytes_)),
        protected_(std::vector<std::byte>(kPages * plain_bytes())) {}

  kvant_decode_shape shape() const {
    return {sizeof(kvant_decode_shape), kSeqs, kHeads, 1, d_, 1.0F, format_, format_};
  }
  kvant_decode_layer layer() const {
    kvant_decode_layer layer{};
    layer.struct_size = sizeof layer;
    layer.tail = pages(tail_, plain_bytes());
    layer.sealed = pages(sealed_, page_bytes_);
    layer.protected_pages = pages(protected_, plain_bytes());
    layer.sink = kSink;
    layer.key_codebooks = layer.value_codebooks = centroids_.get();
    layer.key_codebook_stride = layer.value_codebook_stride = codebooks_.size[0];
    return layer;
  }
  // Appends the rows of all sequences. If `only` is not negative, appends only the rows of that sequence.
  void append(kvant_new_rows rows, int only = -1) const {
    std::vector<std::int32_t> seq(kRows, 0), token(kRows, -1);
    for (int i = 0; i < kSeqs; ++i) {
      for (int t = 0; t < kDuePages[i] * kPageTokens && (only < 0 || only == i); ++t) {
        seq[kFirstRow[i] + t] = i;
        token[kFirstRow[i] + t] = t;
      }
    }
    const DeviceArray<std::int32_t> seqs(seq), tokens(token);
    rows.seq = seqs.get();
    rows.tail_token = tokens.get();
    const kvant_decode_shape of = shape();
    const kvant_decode_layer at = layer();
    ASSERT_EQ(kvant_append(&of, &at, &rows, nullptr), KVANT_OK) << kvant_last_error();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  // Seals the due pages. If `rows` is null, all pages are in the tail.
  void seal(const kvant_new_rows* rows) const {
    std::vector<std::int32_t> first(kFirstRow, kFirstRow + kSeqs);
    first[kInTail] = -1;
    const DeviceArray<std::int32_t> first_rows(first), tail_page(std::vector<std::int32_t>(kSeqs, 0)),
        sealed_page({kSealedPage[0], kSealedPage[1], kSealedPage[2]}),
        n_pages({kDuePages[0], kDuePages[1], kDuePages[2]});
    kvant_seal_range range{};
    range.struct_size = sizeof range;
    range.tail_page = tail_page.get();
    range.sealed_page = sealed_page.get();
    range.n_pages = n_pages.get();
    range.max_pages = kPagesOfSeq;
    range.keep_sink = 1;
    range.rows = rows;
    range.first_rows = rows == nullptr ? nullptr : first_rows.get();
    const kvant_decode_shape of = shape();
    const kvant_decode_layer at = layer();
    ASSERT_EQ(kvant_seal_pages(&of, &at, &range, nullptr), KVANT_OK) << kvant_last_error();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
  }
  std::vector<std::byte> sealed() const { return sealed_.read(); }
  std::vector<std::byte> sinks() const { return protected_.read(); }

 private:
  // Each sequence, head and side has kPagesOfSeq adjacent pages.
  static constexpr int kPages = kSeqs * kHeads * 2 * kPagesOfSeq;

  std::int64_t plain_bytes() const { return std::int64_t{kPageTokens} * d_ * 2; }
  static std::vector<std::int32_t> page_numbers() {
    std::vector<std::int32_t> numbers;
    for (int i = 0; i < kPages; ++i) numbers.push_back(i);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(4));
    return numbers;
  }
  kvant_pages pages(const DeviceArray<std::byte>& pool, std::int64_t stride) const {
    return {
        table_.get(), kHeads * 2 * kPagesOfSeq, 0, 2 * kPagesOfSeq, kPagesOfSeq, pool.get(), stride, 0, 0, 0};
  }

  int d_;
  std::int64_t page_bytes_;
  const char* format_;
  Codebooks codebooks_;
  DeviceArray<std::uint16_t> centroids_;
  DeviceArray<std::int32_t> table_;
  DeviceArray<std::byte> tail_, sealed_, protected_;
};

class SealingOfRows : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(SealingOfRows, GivesTheBytesOfRowsThatWereAppended) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const auto& [format, d] = GetParam();
  ASSERT_EQ(kvant_can_seal_rows(format), 1);
  for (const RowKind& kind :
       {RowKind{KVANT_BF16, 0, false}, RowKind{KVANT_BF16, 3, true}, RowKind{KVANT_F16, 8, true},
        RowKind{KVANT_F16, 0, false}, RowKind{KVANT_F32, 4, true}, RowKind{KVANT_F32, 1, false}}) {
    const Rows rows(kind, d);
    const kvant_new_rows described = rows.described();
    const PagedCache appended(format, d), straight(format, d);
    appended.append(described);
    appended.seal(nullptr);
    straight.append(described, kInTail);
    straight.seal(&described);
    EXPECT_EQ(appended.sealed(), straight.sealed()) << "type " << kind.type;
    EXPECT_EQ(appended.sinks(), straight.sinks()) << "type " << kind.type;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SealingOfRows,
                         ::testing::Combine(::testing::Values("ch4g128", "ch2g32", "tok4g128", "tok8g32s",
                                                              "fp8", "prog4", "lm3", "lm4u", "vq-d2b8",
                                                              "nvq-d8b12"),
                                            ::testing::ValuesIn(kHeadDims)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_d" + std::to_string(std::get<1>(info.param));
                         });

TEST(SealingOfRowsApi, KnowsWhichFormatsTakeThem) {
  EXPECT_EQ(kvant_can_seal_rows("ch4g128"), 1);
  EXPECT_EQ(kvant_can_seal_rows("tcq4"), 0);
  EXPECT_EQ(kvant_can_seal_rows("bf16"), 0);
  EXPECT_EQ(kvant_can_seal_rows("no such format"), 0);
  EXPECT_EQ(kvant_can_seal_rows(nullptr), 0);
}

TEST(SealingOfRowsApi, RefusesWhatItCannotDo) {
  alignas(16) static std::int32_t some[64]{};
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.sealed = {some, 0, 0, 0, 0, some, 16, 0, 0, 0};
  kvant_new_rows rows{};
  rows.struct_size = sizeof rows;
  rows.keys = rows.values = some;
  kvant_seal_range range{};
  range.struct_size = sizeof range;
  range.sealed_page = range.first_rows = some;
  range.max_pages = 1;
  range.rows = &rows;
  const auto expect_refused = [&](kvant_status status, const char* named, const char* format) {
    const kvant_decode_shape shape{sizeof shape, 1, 1, 1, 128, 1.0F, format, "tok4g128"};
    EXPECT_EQ(kvant_seal_pages(&shape, &layer, &range, nullptr), status) << named;
    EXPECT_NE(std::string(kvant_last_error()).find(named), std::string::npos) << kvant_last_error();
  };
  expect_refused(KVANT_UNSUPPORTED, "trellis formats", "tcq4");
  range.first_rows = nullptr;
  expect_refused(KVANT_INVALID_ARGUMENT, "range.first_rows", "ch4g128");
  range.first_rows = some;
  range.n_layers = 2;
  expect_refused(KVANT_INVALID_ARGUMENT, "one layer", "ch4g128");
  range.n_layers = 1;
  rows.values = nullptr;
  expect_refused(KVANT_INVALID_ARGUMENT, "keys or values", "ch4g128");
  rows.values = some;
  rows.key_channels = 12;
  expect_refused(KVANT_INVALID_ARGUMENT, "key_channels", "ch4g128");
  rows.key_channels = 0;
  range.tail_page = some;  // the layer has no pages of the tail
  expect_refused(KVANT_INVALID_ARGUMENT, "layer.tail", "ch4g128");
}

}  // namespace
}  // namespace kvant::cuda::seal_rows_test
