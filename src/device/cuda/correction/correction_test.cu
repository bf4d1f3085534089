// Compares KVLinC's correction on the GPU, from appending to the output, with its equations in double
// precision. The equations use the values of the sealed pages.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "device/cuda/test/correction_reference.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "device/cuda/test/packed_entry.h"
#include "kvant/kvant.h"

namespace kvant::cuda::correction_test {
namespace {

// There must be more sequences than share one read of a query head's maps.
constexpr int kSeqs = 9;
constexpr int kKvHeads = 2;
constexpr int kSealedPages = 3;
constexpr int kTailTokens = 40;
constexpr int kSink = 4;
constexpr int kHalf = kMapColumns;
constexpr float kSoftmaxScale = 0.06F;

using Row = std::vector<double>;

// Holds the rows of a token.
struct Token {
  // sealed_key is empty for a token in the tail.
  Row key, sealed_key, value;
};

struct Settings {
  int d, group;
  float shift;  // number added to all scores
  bool absolute;
  // If true, the pages of different heads differ in size.
  bool unlike_heads = false;
  // If true, all pages are sealed together, and the sums after each page are kept.
  bool at_once = false;
};

class CorrectedCache {
 public:
  explicit CorrectedCache(const Settings& settings)
      : settings_(settings),
        query_maps_(normal_numbers(std::size_t{kKvHeads} * settings.group * 2 * settings.d * kHalf, 0.2F, 1)),
        key_maps_(normal_numbers(std::size_t{kKvHeads} * 2 * settings.d * kHalf, 1.5F, 2)),
        tokens_(static_cast<std::size_t>(kSeqs) * kKvHeads) {
    if (settings.unlike_heads) {
      formats_[0][1] = "ch4g128";
      formats_[1][1] = "tok4g128";
    }
    run();
  }

  // Returns the largest relative RMS error of S and z, over all sequences, heads and pages after which sums
  // are kept.
  double worst_state_error() const {
    double worst = 0;
    for (int n_pages = settings_.at_once ? 1 : kSealedPages; n_pages <= kSealedPages; ++n_pages)
      for (int seq = 0; seq < kSeqs; ++seq)
        for (int head = 0; head < kKvHeads; ++head) worst = std::max(worst, state_error(seq, head, n_pages));
    return worst;
  }

  // Returns the largest relative RMS error of a query head's output.
  double worst_output_error() const {
    double worst = 0;
    for (int seq = 0; seq < kSeqs; ++seq)
      for (int head = 0; head < kKvHeads * settings_.group; ++head)
        worst = std::max(worst, output_error(seq, head));
    return worst;
  }

 private:
  std::size_t state_numbers() const { return static_cast<std::size_t>(2 * kHalf) * (settings_.d + 1); }
  static int state_of(int seq) { return (seq + 2) % kSeqs; }
  // Returns the distance in numbers from the sums before any page to the sums after the first page.
  std::size_t page_stride() const {
    return settings_.at_once ? std::size_t{kSeqs} * kKvHeads * state_numbers() : 0;
  }

  // Returns the relative RMS error of S and z after the first n_pages pages.
  double state_error(int seq, int head, int n_pages) const {
    Row expected(state_numbers());
    for (int t = 0; t < n_pages * kPageTokens - kSink; ++t) {
      const Token& token = tokens_[seq * kKvHeads + head][t];
      Row error = token.key;
      for (int i = 0; i < settings_.d; ++i) error[i] -= token.sealed_key[i];
      const Row phi = features_of(key_maps_.data() + std::ptrdiff_t{2} * head * settings_.d * kHalf, error);
      for (int f = 0; f < 2 * kHalf; ++f) {
        for (int i = 0; i < settings_.d; ++i) expected[f * settings_.d + i] += phi[f] * token.value[i];
        expected[2 * kHalf * settings_.d + f] += phi[f];
      }
    }
    const float* state =
        states_.data() + n_pages * page_stride() + (state_of(seq) * kKvHeads + head) * state_numbers();
    double difference = 0;
    double energy = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      difference += (state[i] - expected[i]) * (state[i] - expected[i]);
      energy += expected[i] * expected[i];
    }
    return std::sqrt(difference / energy);
  }

  double output_error(int seq, int head) const {
    const int d = settings_.d;
    const std::size_t row = static_cast<std::size_t>(seq) * kKvHeads * settings_.group + head;
    Row q(d);
    for (int i = 0; i < d; ++i) q[i] = float_from_bf16(q_[row * d + i]);
    const Row phi_q = features_of(query_maps_.data() + std::ptrdiff_t{2} * head * d * kHalf, q);
    const int kv_head = head / settings_.group;
    const std::vector<Token>& tokens = tokens_[seq * kKvHeads + kv_head];
    Row scores;
    for (const Token& token : tokens) {
      const Row& key = token.sealed_key.empty() ? token.key : token.sealed_key;
      scores.push_back(kSoftmaxScale * std::inner_product(q.begin(), q.end(), key.begin(), 0.0));
    }
    const double base = settings_.absolute ? 0 : *std::max_element(scores.begin(), scores.end());
    Row out(d);
    double sum = 0;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      double weight = std::exp(scores[t] - base);
      if (!tokens[t].sealed_key.empty()) {
        Row error = tokens[t].key;
        for (int i = 0; i < d; ++i) error[i] -= tokens[t].sealed_key[i];
        const Row phi = features_of(key_maps_.data() + std::ptrdiff_t{2} * kv_head * d * kHalf, error);
        weight += std::inner_product(phi.begin(), phi.end(), phi_q.begin(), 0.0);
      }
      sum += weight;
      for (int i = 0; i < d; ++i) out[i] += weight * tokens[t].value[i];
    }
    EXPECT_NEAR(lse_[row], base + std::log(sum), 5e-3);
    double difference = 0;
    double energy = 0;
    for (int i = 0; i < d; ++i) {
      const double expected = out[i] / sum;
      difference += (out_[row * d + i] - expected) * (out_[row * d + i] - expected);
      energy += expected * expected;
    }
    return std::sqrt(difference / energy);
  }

  // Returns rows of one page, [kPageTokens][kSeqs][kKvHeads][d]. Keys have `shift` in channel 3, where
  // queries are 1.
  std::vector<std::uint16_t> new_rows(Side side, int page) const {
    const int d = settings_.d;
    std::vector<std::uint16_t> rows(static_cast<std::size_t>(kPageTokens) * kSeqs * kKvHeads * d);
    for (int i = 0; i < kSeqs * kKvHeads; ++i) {
      std::vector<float> values = page_values(side, d, 1000 * page + 2 * i + static_cast<int>(side));
      for (int token = 0; token < kPageTokens; ++token) {
        if (side == Side::key) values[token * d + 3] = settings_.shift / kSoftmaxScale;
        for (int c = 0; c < d; ++c)
          rows[(static_cast<std::size_t>(token) * kSeqs * kKvHeads + i) * d + c] =
              bf16_from_float(values[token * d + c]);
      }
    }
    return rows;
  }

  // Records what the first n appended tokens of a page have become. `sealed` is the pool of sealed pages, or
  // null for a page in the tail.
  void remember(int page, int n, const std::vector<std::uint16_t> (&rows)[2], const std::byte* sealed,
                const PackedEntry& entry) {
    const int d = settings_.d;
    for (int i = 0; i < kSeqs * kKvHeads; ++i) {
      const int seq = i / kKvHeads, head = i % kKvHeads;
      std::vector<float> decoded[2];
      for (int side = 0; side < 2 && sealed != nullptr; ++side) {
        const Format& format = *find_format(formats_[side][head]);
        DeviceFormat device;
        find_device_format(formats_[side][head], device);
        std::vector<std::byte> canonical(format.page_bytes(d));
        page_from_device(device, static_cast<Side>(side), d, canonical.size(),
                         sealed + (seq * kSealedPages + page) * entry.bytes + entry.offsets[2 * head + side],
                         canonical.data());
        decoded[side].resize(static_cast<std::size_t>(kPageTokens) * d);
        PageContext context;
        context.head_dim = d;
        format.decode(canonical.data(), kPageTokens, context, decoded[side].data());
      }
      for (int token = sealed != nullptr && page == 0 ? kSink : 0; token < n; ++token) {
        Token result;
        for (int c = 0; c < d; ++c) {
          const std::size_t at = (static_cast<std::size_t>(token) * kSeqs * kKvHeads + i) * d + c;
          result.key.push_back(float_from_bf16(rows[0][at]));
          result.value.push_back(sealed != nullptr ? decoded[1][token * d + c]
                                                   : float_from_bf16(rows[1][at]));
          if (sealed != nullptr) result.sealed_key.push_back(decoded[0][token * d + c]);
        }
        tokens_[i].push_back(std::move(result));
      }
    }
  }

  void run() {
    const int d = settings_.d;
    const int n_heads = kKvHeads * settings_.group;
    std::vector<std::size_t> page_bytes;
    for (int head = 0; head < kKvHeads; ++head)
      for (const auto& names : formats_) page_bytes.push_back(kvant_page_bytes(names[head], d));
    PackedEntry entry(page_bytes);  // [seq][page]
    // Pages lie next to each other, in the order of the heads.
    if (!settings_.unlike_heads) {
      entry.offsets = {0};
      for (std::size_t i = 1; i < page_bytes.size(); ++i)
        entry.offsets.push_back(entry.offsets.back() + static_cast<std::int64_t>(page_bytes[i - 1]));
    }
    const int n_tail = settings_.at_once ? kSealedPages + 1 : 1;  // pages of a tail
    std::vector<std::int32_t> tail_ids(kSeqs * kKvHeads * 2 * n_tail), sealed_ids(kSeqs * kSealedPages);
    std::iota(tail_ids.begin(), tail_ids.end(), 0);
    std::iota(sealed_ids.begin(), sealed_ids.end(), 0);
    const DeviceArray<std::int32_t> tail_table(tail_ids), sealed_table(sealed_ids);
    const DeviceArray<std::byte> sealed(sealed_ids.size() * entry.bytes);
    const DeviceArray<std::uint16_t> tail(tail_ids.size() * kPageTokens * d);
    const DeviceArray<float> query_maps(query_maps_), key_maps(key_maps_);
    // The states before any page are zeros.
    std::vector<float> first_states(kSeqs * kKvHeads * state_numbers());
    first_states.resize(first_states.size() + kSealedPages * page_stride(), NAN);
    const DeviceArray<float> states(first_states);
    std::vector<std::int32_t> state_of_seq;
    for (int seq = 0; seq < kSeqs; ++seq) state_of_seq.push_back(state_of(seq));
    const DeviceArray<std::int32_t> device_state_of_seq(state_of_seq);
    kvant_correction correction{};
    correction.struct_size = sizeof correction;
    correction.query_maps = query_maps.get();
    correction.key_maps = key_maps.get();
    correction.states = states.get();
    correction.state_head_stride = static_cast<std::int64_t>(state_numbers());
    correction.state_seq_stride = kKvHeads * correction.state_head_stride;
    correction.state_of_seq = device_state_of_seq.get();
    correction.absolute = settings_.absolute ? 1 : 0;

    kvant_decode_shape shape{sizeof shape,   kSeqs,          kKvHeads, settings_.group, d, kSoftmaxScale,
                             formats_[0][0], formats_[1][0], 1};
    if (settings_.unlike_heads) {
      shape.head_key_formats = formats_[0];
      shape.head_value_formats = formats_[1];
    }
    kvant_decode_layer layer{};
    layer.struct_size = sizeof layer;
    layer.sealed.table = sealed_table.get();
    layer.sealed.seq_stride = kSealedPages;
    layer.sealed.pool = sealed.get();
    layer.sealed.page_stride = entry.bytes;
    if (settings_.unlike_heads) {
      layer.sealed_offsets = entry.offsets.data();
    } else {
      layer.sealed.side_offset = entry.offsets[1];
      layer.sealed.head_offset = entry.offsets[2];
    }
    layer.tail = {tail_table.get(),
                  kKvHeads * 2 * n_tail,
                  0,
                  2 * n_tail,
                  n_tail,
                  tail.get(),
                  std::int64_t{2} * kPageTokens * d,
                  0,
                  0,
                  0};
    layer.sink = kSink;
    layer.correction = &correction;

    const DeviceArray<std::int32_t> first(std::vector<std::int32_t>(kSeqs, 0));
    std::vector<std::uint16_t> rows[kSealedPages + 1][2];
    for (int page = 0; page <= kSealedPages; ++page) {
      for (const Side side : {Side::key, Side::value})
        rows[page][static_cast<int>(side)] = new_rows(side, page);
      append(shape, layer, rows[page], settings_.at_once ? page * kPageTokens : 0);
      if (settings_.at_once || page == kSealedPages) continue;
      const DeviceArray<std::int32_t> target(std::vector<std::int32_t>(kSeqs, page));
      EXPECT_EQ(kvant_seal(&shape, &layer, first.get(), target.get(), nullptr), KVANT_OK);
    }
    if (settings_.at_once) {
      correction.state_page_stride = static_cast<std::int64_t>(page_stride());
      kvant_seal_range range{};
      range.struct_size = sizeof range;
      range.tail_page = range.sealed_page = first.get();
      range.max_pages = kSealedPages;
      EXPECT_EQ(kvant_seal_pages(&shape, &layer, &range, nullptr), KVANT_OK);
      correction.states += kSealedPages * page_stride();
      layer.tail.table += kSealedPages;
    }
    const std::vector<std::byte> pages_sealed = sealed.read();
    for (int page = 0; page < kSealedPages; ++page)
      remember(page, kPageTokens, rows[page], pages_sealed.data(), entry);
    remember(kSealedPages, kTailTokens, rows[kSealedPages], nullptr, entry);
    states_ = states.read();

    for (float x : normal_numbers(static_cast<std::size_t>(kSeqs) * n_heads * d, 1, 7))
      q_.push_back(bf16_from_float(x));
    for (std::size_t i = 3; i < q_.size(); i += d) q_[i] = bf16_from_float(1);
    const DeviceArray<std::uint16_t> q(q_);
    const DeviceArray<float> out(std::vector<float>(q_.size(), NAN));
    const DeviceArray<float> lse(std::vector<float>(q_.size() / d, NAN));
    layer.q = q.get();
    layer.q_seq_stride = layer.out_seq_stride = n_heads * d;
    layer.q_head_stride = layer.out_head_stride = d;
    layer.out = out.get();
    layer.out_type = KVANT_F32;
    layer.lse = lse.get();
    const DeviceArray<std::int32_t> pages(std::vector<std::int32_t>(kSeqs, kSealedPages));
    const DeviceArray<std::int32_t> tail_tokens(std::vector<std::int32_t>(kSeqs, kTailTokens));
    kvant_decode_lengths lengths{};
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = pages.get();
    lengths.tail_tokens = tail_tokens.get();
    std::size_t bytes = 0;
    EXPECT_EQ(kvant_decode_workspace(&shape, &bytes), KVANT_OK);
    const DeviceArray<std::uint8_t> workspace(std::vector<std::uint8_t>(bytes, 0xff));
    EXPECT_EQ(kvant_decode_schedule(&shape, &lengths, workspace.get(), bytes, nullptr), KVANT_OK);
    for (int run = 0; run < 2; ++run)
      EXPECT_EQ(kvant_decode_attention(&shape, &lengths, &layer, workspace.get(), bytes, nullptr), KVANT_OK);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    out_ = out.read();
    lse_ = lse.read();
  }

  void append(const kvant_decode_shape& shape, const kvant_decode_layer& layer,
              const std::vector<std::uint16_t> (&values)[2], int first_token) const {
    std::vector<std::int32_t> seq, token;
    for (int i = 0; i < kPageTokens * kSeqs; ++i) {
      token.push_back(first_token + i / kSeqs);
      seq.push_back(i % kSeqs);
    }
    const DeviceArray<std::int32_t> device_seq(seq), device_token(token);
    const DeviceArray<std::uint16_t> keys(values[0]), device_values(values[1]);
    kvant_new_rows rows{};
    rows.struct_size = sizeof rows;
    rows.n_rows = kPageTokens * kSeqs;
    rows.seq = device_seq.get();
    rows.tail_token = device_token.get();
    rows.keys = keys.get();
    rows.values = device_values.get();
    rows.key_row_stride = rows.value_row_stride = kKvHeads * settings_.d;
    rows.key_head_stride = rows.value_head_stride = settings_.d;
    EXPECT_EQ(kvant_append(&shape, &layer, &rows, nullptr), KVANT_OK);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  Settings settings_;
  const char* formats_[2][kKvHeads] = {{"ch2g128", "ch2g128"}, {"tok2g128", "tok2g128"}};
  std::vector<float> query_maps_, key_maps_;
  std::vector<std::vector<Token>> tokens_;  // [seq][head]
  std::vector<std::uint16_t> q_;
  std::vector<float> states_, out_, lse_;
};

class Correction : public ::testing::TestWithParam<Settings> {};

INSTANTIATE_TEST_SUITE_P(
    Cases, Correction,
    ::testing::Values(Settings{128, 4, 0, false}, Settings{128, 8, -9, false}, Settings{128, 4, 0, true},
                      Settings{128, 3, 4, true}, Settings{64, 3, -9, true}, Settings{64, 1, 5, false},
                      Settings{128, 4, 0, false, /*unlike_heads=*/true},
                      Settings{64, 3, 0, false, /*unlike_heads=*/false, /*at_once=*/true},
                      Settings{128, 4, -9, true, /*unlike_heads=*/true, /*at_once=*/true}));

TEST_P(Correction, SumsAndOutputsFollowTheEquations) {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no GPU";
  const CorrectedCache cache(GetParam());
  std::printf("  states: relative error %.6f, outputs: %.6f\n", cache.worst_state_error(),
              cache.worst_output_error());
  EXPECT_LE(cache.worst_state_error(), 1e-4);
  EXPECT_LE(cache.worst_output_error(), 0.005);
}

TEST(CorrectionApi, RefusesALayerWithACorrectionWhereTheShapeHasNone) {
  const kvant_decode_shape shape{sizeof shape, 1, 1, 1, 128, 1, "ch2g128", "tok2g128", 0};
  kvant_decode_shape corrected = shape;
  corrected.corrected = 1;
  std::size_t bytes = 0;
  std::size_t corrected_bytes = 0;
  if (kvant_decode_workspace(&shape, &bytes) != KVANT_OK) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(kvant_decode_workspace(&corrected, &corrected_bytes), KVANT_OK);
  EXPECT_GT(corrected_bytes, bytes);
  alignas(256) static unsigned char not_touched[8 << 20];
  ASSERT_LE(bytes, sizeof not_touched);
  const kvant_correction correction{sizeof correction};
  kvant_decode_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.q = layer.out = not_touched;
  layer.correction = &correction;
  EXPECT_EQ(kvant_decode_attention(&shape, &lengths, &layer, not_touched, bytes, nullptr),
            KVANT_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvant::cuda::correction_test
