// Makes caches for the tests of the decode kernels. A TestCache has pages of any formats in GPU memory and
// the values that these pages represent. The kernels' attention over the pages is compared with
// double-precision attention over the values (attention_oracle.h).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cache/page_counts.h"
#include "device/cuda/decode/short_attention.h"
#include "device/cuda/page/page_format.h"
#include "device/cuda/test/attention_oracle.h"
#include "device/cuda/test/captured_heads.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "device/cuda/test/packed_entry.h"
#include "device/cuda/test/row_numbers.h"
#include "device/cuda/test/walsh_hadamard.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

inline constexpr int kKvHeads = 3;
inline constexpr int kUniquePages = 6;

struct SequenceLengths {
  int sealed, tail, n_protected;  // pages, tokens and tokens
};

inline bool have_gpu() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}

// Selects how page tables refer to pages. With `own`, every head and side has table entries of its own. With
// `shared`, one entry serves all heads and sides, whose pages are at equal distances. With `packed`, one
// entry serves all heads and sides, and sealed pages are packed by size (packed_entry.h).
enum class Tables { own, shared, packed };

// Names the formats of keys and of values.
struct FormatPair {
  const char* key;
  const char* value;
};
// Returns whether neither side is quantized. All tokens are then in the tail.
inline bool is_unquantized(const FormatPair& pair) {
  return pair.key == std::string("bf16") && pair.value == std::string("bf16");
}

// Holds a cache of several sequences, with pages in random places of the pools and the values that the pages
// represent. KV heads take the pairs of formats in turn. Values are `loudness` times as large as
// page_values() makes them.
class TestCache {
 public:
  TestCache(const std::vector<FormatPair>& pairs, int d, const std::vector<SequenceLengths>& lengths,
            int sink, bool masks, Tables tables, Values values, std::uint32_t seed, float loudness = 1)
      : d_(d),
        lengths_(lengths),
        sink_(sink),
        tables_(tables),
        values_(values),
        loudness_(loudness),
        random_(seed),
        codebooks_(pairs[0].key, pairs[0].value, d, kKvHeads, seed) {
    for (int head = 0; head < kKvHeads; ++head) {
      formats_[0].push_back(pairs[head % pairs.size()].key);
      formats_[1].push_back(pairs[head % pairs.size()].value);
    }
    is_mixed_ = pairs.size() > 1;
    for (const SequenceLengths& l : lengths_) max_pages_ = std::max(max_pages_, l.sealed);
    mask_.resize(static_cast<std::size_t>(lengths_.size()) * kKvHeads * std::max(1, max_pages_) * 4);
    if (masks)
      for (std::uint32_t& word : mask_) word = random_() % 5 == 0 ? random_() & random_() & random_() : 0;
    use_masks_ = masks;
    tokens_.resize(lengths_.size() * kKvHeads);
    if (has_sealed()) add_sealed();
    for (const auto& tokens : tokens_) tail_begins_.push_back(tokens.size());
    add_plain(tail_, [](const SequenceLengths& l) { return l.tail; });
    add_plain(protected_, [](const SequenceLengths& l) { return l.n_protected; });
  }

  // Sets kvant_decode_shape::skip_threshold.
  void skip_below(float threshold) { skip_threshold_ = threshold; }
  // Returns how many pages the last worst_error() has read, and for how many of the pages values were
  // skipped.
  std::vector<std::uint64_t> skip_counts() const { return skip_counts_; }

  // Makes calls replace each score by cap * tanh(score / cap).
  void cap_scores(float cap) { softcap_ = cap; }
  // Adds a logit for each query head to the softmax denominators. Some logits are far above all scores.
  void add_sink_logits() { has_sink_logits_ = true; }
  // Masks out the first tokens[i] tokens of sequence i by first_tokens of kvant_decode_lengths. The sequences
  // must have no other masked tokens.
  void hide(std::vector<std::int32_t> tokens) { hidden_ = std::move(tokens); }

  // Passes queries as numbers of `type` that BF16 cannot represent.
  void use_queries(kvant_type type) { q_type_ = type; }
  // Limits rows of queries and outputs to the first n channels. Other channels of queries are zeros.
  void keep_channels(int n) { channels_ = n; }
  // Makes calls rotate outputs, and multiply output channels by factors that depend on the KV head.
  void rotate_outputs() { rotates_ = true; }

  // Makes calls pass the numbers of tail tokens and sealed pages, so kernels for short sequences may serve
  // them. Sequences without sealed pages then have no protected tokens.
  void say_lengths() { says_lengths_ = true; }
  // Returns whether a kernel for short sequences has served the last call.
  bool was_short() const { return was_short_; }
  // After this, no call sets kvant_decode_layer::settled. Otherwise, the calls whose results count set it.
  void leave_unsettled() { settles_ = false; }
  // Makes the last tokens of each tail come with the call, as F32 or BF16 rows. If `rotated` is true, the
  // call multiplies rows and queries by factors and a Hadamard matrix.
  void append_last(kvant_type type, bool rotated) {
    appends_ = true;
    row_type_ = type;
    rotates_rows_ = rotated;
  }

  // Gives each sequence up to max_queries queries, and the last query attends to all tokens. `counts` has the
  // number of queries of each sequence, or is empty if all sequences have max_queries.
  void ask(int max_queries, std::vector<int> counts = {}) {
    max_queries_ = max_queries;
    query_counts_ = std::move(counts);
  }

  // Multiplies all scores by `factor`.
  void sharpen(float factor) { sharpness_ = factor; }

  // Returns the largest relative RMS error of a query's outputs. The kernels use `softmax`, and the expected
  // outputs use `expected`.
  double worst_error(int group, kvant_type out_type, Softmax softmax = Softmax::exact,
                     Softmax expected = Softmax::exact) {
    softmax_ = softmax;
    expected_ = expected;
    const int n_seqs = static_cast<int>(lengths_.size());
    const int n_heads = kKvHeads * group;
    const std::vector<std::int32_t> begins = query_begins();
    const int n_rows = begins[n_seqs];
    const std::vector<float> q = queries(n_rows * n_heads);
    std::vector<std::int32_t> sealed, tail, n_protected;
    for (const SequenceLengths& l : lengths_) {
      sealed.push_back(l.sealed);
      tail.push_back(l.tail);
      n_protected.push_back(l.n_protected);
    }
    const DeviceArray<std::int32_t> device_sealed(sealed), device_tail(tail), device_protected(n_protected);
    const std::int64_t row_channels = channels();
    const DeviceArray<std::uint8_t> device_q(as_bytes(first_channels(q, d_, channels()), q_type_));
    const std::size_t out_bytes =
        static_cast<std::size_t>(n_rows) * n_heads * row_channels * (out_type == KVANT_F32 ? 4 : 2);
    // Bytes 0xff are NaN, so an output that is not written fails the test.
    const DeviceArray<std::uint8_t> out(std::vector<std::uint8_t>(out_bytes, 0xff));
    const DeviceArray<std::uint32_t> device_mask(mask_);
    const Uploaded sealed_pages = upload(sealed_), tail_pages = upload(appends_ ? without_last() : tail_),
                   protected_pages = upload(protected_);
    const DeviceArray<std::uint16_t> key_codebooks(codebooks_.packed[0]),
        value_codebooks(codebooks_.packed[1]);

    kvant_decode_shape shape{};
    shape.struct_size = sizeof shape;
    shape.n_seqs = n_seqs;
    shape.n_kv_heads = kKvHeads;
    shape.group = group;
    shape.head_dim = d_;
    shape.softmax_scale = softmax_scale();
    shape.sas = softmax == Softmax::sas ? 1 : 0;
    shape.skip_threshold = skip_threshold_;
    if (is_mixed_) {
      shape.head_key_formats = formats_[0].data();
      shape.head_value_formats = formats_[1].data();
    } else {
      shape.key_format = formats_[0][0];
      shape.value_format = formats_[1][0];
    }
    shape.score_softcap = softcap_;
    shape.max_queries = max_queries_;
    const DeviceArray<std::int32_t> hidden(hidden_.empty() ? std::vector<std::int32_t>(n_seqs) : hidden_);
    std::vector<float> logits;
    for (int head = 0; head < n_heads; ++head) logits.push_back(AttentionOracle::sink_logit(head));
    const DeviceArray<float> sink_logits(logits);
    kvant_decode_lengths lengths{};
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = has_sealed() ? device_sealed.get() : nullptr;
    lengths.tail_tokens = device_tail.get();
    lengths.protected_tokens = device_protected.get();
    lengths.protected_seq_stride = 1;
    if (says_lengths_) {
      if (max_pages_ == 0) lengths.sealed_pages = lengths.protected_tokens = nullptr;
      lengths.max_tail_tokens = *std::max_element(tail.begin(), tail.end());
      lengths.max_sealed_pages = max_pages_;
    }
    was_short_ = takes_short_kernel(shape, lengths, gpu_or_h100(), share_short_pages());
    lengths.first_tokens = hidden_.empty() ? nullptr : hidden.get();
    const DeviceArray<std::int32_t> device_begins(begins);
    lengths.query_begins = query_counts_.empty() ? nullptr : device_begins.get();
    kvant_decode_layer layer{};
    layer.sink_logits = has_sink_logits_ ? sink_logits.get() : nullptr;
    layer.struct_size = sizeof layer;
    layer.sealed = sealed_pages.pages;
    if (sealed_.is_packed) layer.sealed_offsets = sealed_.offsets.data();
    layer.tail = tail_pages.pages;
    layer.protected_pages = protected_pages.pages;
    layer.sink = sink_;
    layer.masks = use_masks_ ? device_mask.get() : nullptr;
    layer.mask_seq_stride = kKvHeads * std::max(1, max_pages_);
    layer.mask_head_stride = std::max(1, max_pages_);
    layer.key_codebooks = key_codebooks.get();
    layer.value_codebooks = value_codebooks.get();
    layer.key_codebook_stride = codebooks_.size[0];
    layer.value_codebook_stride = codebooks_.size[1];
    layer.q = device_q.get();
    layer.q_type = q_type_;
    std::vector<float> factors(static_cast<std::size_t>(kKvHeads) * d_);
    for (std::size_t i = 0; i < factors.size(); ++i) factors[i] = out_factor(i);
    const DeviceArray<float> out_factors(factors);
    layer.out_hadamard = rotates_ ? 1 : 0;
    layer.out_factors = rotates_ ? out_factors.get() : nullptr;
    layer.q_seq_stride = layer.out_seq_stride = n_heads * row_channels;
    layer.q_head_stride = layer.out_head_stride = row_channels;
    layer.q_channels = layer.out_channels = channels_;
    layer.out = out.get();
    layer.out_type = out_type;
    const DeviceArray<float> lse(std::vector<float>(static_cast<std::size_t>(n_rows) * n_heads, NAN));
    layer.lse = lse.get();
    const DeviceArray<std::uint64_t> counts(std::vector<std::uint64_t>(2, 0));
    layer.skip_counts = counts.get();
    const LastRows last(*this, q, group);
    if (appends_) {
      layer.q = last.queries.get();
      layer.q_type = row_type_;
      layer.new_rows = &last.rows;
    }

    std::size_t bytes = 0;
    EXPECT_EQ(kvant_decode_workspace(&shape, &bytes), KVANT_OK);
    const DeviceArray<std::uint8_t> workspace(std::vector<std::uint8_t>(bytes, 0xa5));
    // Shapes with different formats may share a schedule.
    kvant_decode_shape of_schedule = shape;
    if (is_mixed_) {
      of_schedule.head_key_formats = of_schedule.head_value_formats = nullptr;
      of_schedule.key_format = formats_[0][0];
      of_schedule.value_format = formats_[1][0];
    }
    EXPECT_EQ(kvant_decode_schedule(&of_schedule, &lengths, workspace.get(), bytes, nullptr), KVANT_OK);
    const auto start = [&] {
      if (appends_) last.restore();
      EXPECT_EQ(kvant_decode_attention(&shape, &lengths, &layer, workspace.get(), bytes, nullptr), KVANT_OK)
          << kvant_last_error();
    };
    const auto attend = [&] {
      start();
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
      if (appends_) expect_rows(tail_pages.pool->read(), tail_.bytes);
      return out.read();
    };
    // Each run gets the workspace as the previous run has left it.
    for (int run = 0; run < 3; ++run) {
      layer.settled = settles_ && run == 2 ? 1 : 0;
      start();
    }
    const double error = compare(q, attend(), lse.read(), group, out_type);
    layer.reproducible = 1;
    const std::vector<std::uint8_t> first = attend();
    EXPECT_EQ(first, attend());
    skip_counts_ = counts.read();
    return std::max(error, compare(q, first, lse.read(), group, out_type));
  }

 private:
  struct Pool {
    std::vector<std::byte> bytes;
    // The table is [seq][head][side][page], or [seq][page] if an entry serves all heads and sides.
    std::vector<std::int32_t> table;
    int pages = 0;  // length of the table's last dimension
    std::size_t entry_bytes = 0;
    // Holds the offsets of the pages of an entry that serves all heads and sides, [head][side].
    std::vector<std::int64_t> offsets;
    bool is_packed = false;
  };
  struct Uploaded {
    std::unique_ptr<DeviceArray<std::byte>> pool;
    std::unique_ptr<DeviceArray<std::int32_t>> table;
    kvant_pages pages{};
  };
  using Token = AttentionOracle::Token;

  // Expects that the tail's pages are `expected` after rows were appended. If a number is a small difference
  // of large numbers, its rounding may differ by one step.
  static void expect_rows(const std::vector<std::byte>& found, const std::vector<std::byte>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    const auto number = [](const std::vector<std::byte>& bytes, std::size_t at) {
      std::uint16_t bits;
      std::memcpy(&bits, &bytes[at], sizeof bits);
      return float_from_bf16(bits);
    };
    for (std::size_t at = 0; at < found.size(); at += 2) {
      if (found[at] == expected[at] && found[at + 1] == expected[at + 1]) continue;
      EXPECT_NEAR(number(found, at), number(expected, at), 1e-5) << "byte " << at;
    }
  }
  // Holds rows and queries that come with a call. The test makes them by the inverse transformation, so the
  // transformation in the call restores the rows of the cache.
  struct LastRows {
    kvant_new_rows rows{};
    std::vector<std::uint8_t> source[3];  // [keys, values, queries]
    DeviceArray<std::uint8_t> keys, values, queries;
    DeviceArray<float> factors, inverses;

    LastRows(const TestCache& cache, const std::vector<float>& q, int group)
        : source{cache.last_rows(0), cache.last_rows(1),
                 cache.before_rotation(q, group, /*of_queries=*/true)},
          keys(source[0]),
          values(source[1]),
          queries(source[2]),
          factors(cache.row_factors(false)),
          inverses(cache.row_factors(true)) {
      const std::int64_t d = cache.d_;
      rows.struct_size = sizeof rows;
      rows.n_rows = cache.query_begins().back();
      rows.keys = keys.get();
      rows.values = values.get();
      rows.key_row_stride = rows.value_row_stride = kKvHeads * d;
      rows.key_head_stride = rows.value_head_stride = d;
      rows.type = cache.row_type_;
      if (!cache.rotates_rows_) return;
      rows.key_hadamard = rows.value_hadamard = 1;
      rows.key_factors = rows.value_factors = factors.get();
      rows.queries = queries.get();
      rows.query_row_stride = std::int64_t{kKvHeads} * group * d;
      rows.query_head_stride = d;
      rows.query_factors = inverses.get();
    }
    // Restores the queries, because a call may overwrite them.
    void restore() const { const_cast<DeviceArray<std::uint8_t>&>(queries).write(source[2]); }
  };

  // Returns the factors of rows, or the inverses of these factors, [kKvHeads][d].
  std::vector<float> row_factors(bool inverse) const {
    std::vector<float> factors(static_cast<std::size_t>(kKvHeads) * d_);
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const float factor = std::ldexp(1.0F, static_cast<int>(i % 3) - 1);
      factors[i] = inverse ? 1 / factor : factor;
    }
    return factors;
  }
  // Returns the rows, as bytes, that the call transforms into `rows`. Before and after the transformation,
  // rows are [..][kKvHeads * group][d].
  std::vector<std::uint8_t> before_rotation(const std::vector<float>& rows, int group,
                                            bool of_queries) const {
    if (!rotates_rows_) return as_bytes(rows, row_type_);
    const std::vector<float> factors = row_factors(of_queries);
    const std::vector<double> turned = cuda::rotated(rows, d_);  // the matrix is its own inverse
    std::vector<float> before(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t kv_head = i / d_ / group % kKvHeads;
      before[i] = static_cast<float>(turned[i] / factors[kv_head * d_ + i % d_]);
    }
    return as_bytes(before, row_type_);
  }
  int n_queries(std::size_t seq) const {
    return query_counts_.empty() ? std::max(1, max_queries_) : query_counts_[seq];
  }
  std::vector<std::int32_t> query_begins() const {
    std::vector<std::int32_t> begins = {0};
    for (std::size_t seq = 0; seq < lengths_.size(); ++seq) begins.push_back(begins.back() + n_queries(seq));
    return begins;
  }

  // Returns the rows of each sequence's last tokens. There are as many of them as the sequence has queries.
  // Rows of tokens before the tail are zeros.
  std::vector<std::uint8_t> last_rows(int side) const {
    std::vector<float> rows;
    for (std::size_t seq = 0; seq < lengths_.size(); ++seq) {
      for (int token = lengths_[seq].tail - n_queries(seq); token < lengths_[seq].tail; ++token) {
        for (int head = 0; head < kKvHeads; ++head) {
          const std::vector<float> none(d_);
          const float* row = none.data();
          if (token >= 0) {
            const std::size_t of_head = seq * kKvHeads + head;
            const Token& of_tail = tokens_[of_head][tail_begins_[of_head] + token];
            row = side == 0 ? of_tail.key : of_tail.value;
          }
          rows.insert(rows.end(), row, row + d_);
        }
      }
    }
    return before_rotation(rows, /*group=*/1, /*of_queries=*/false);
  }
  // Returns the tails with NaN in place of the last tokens, so the call must append these tokens.
  Pool without_last() const {
    Pool before = tail_;
    for (std::size_t seq = 0; seq < lengths_.size(); ++seq) {
      for (int token = std::max(0, lengths_[seq].tail - n_queries(seq)); token < lengths_[seq].tail;
           ++token) {
        for (int i = 0; i < 2 * kKvHeads; ++i) {
          const int side = i % 2;
          auto* page = reinterpret_cast<std::uint16_t*>(
              page_of(before, static_cast<int>(seq), i / 2, side, token / kPageTokens));
          for (int channel = 0; channel < d_; ++channel)
            page[plain_index(static_cast<PageSide>(side), d_, token % kPageTokens, channel)] = 0xffff;
        }
      }
    }
    return before;
  }

  bool has_sealed() const { return !is_unquantized({formats_[0][0], formats_[1][0]}); }
  // Returns whether several warps of kernels for short sequences share each page of all formats.
  bool share_short_pages() const {
    for (std::size_t head = 0; head < formats_[0].size(); ++head)
      if (find_decode_kernel(gpu_or_h100(), formats_[0][head], formats_[1][head], d_, 1, false, softcap_ > 0)
              ->for_short.page_warps < 2)
        return false;
    return true;
  }

  float loudness_of(Side side) const {
    constexpr float kKeysAreLouder = 10;
    return loudness_ == 1 || side == Side::value ? loudness_ : loudness_ / kKeysAreLouder;
  }
  // Returns a softmax scale that compensates the loudness of keys.
  float softmax_scale() const {
    return sharpness_ / std::sqrt(static_cast<float>(d_)) * 0.7F / loudness_of(Side::key);
  }

  // Returns the values of a random page, [kPageTokens][d].
  std::vector<float> values(Side side, std::uint32_t seed) const {
    std::vector<float> values =
        values_ == Values::captured ? captured_page(side, d_, seed) : page_values(side, d_, seed, values_);
    for (float& x : values) x *= loudness_of(side);
    return values;
  }

  // Returns n queries, [n][d].
  std::vector<float> queries(int n) {
    std::vector<float> q;
    std::normal_distribution<float> normal;
    if (values_ == Values::captured) {
      for (int i = 0; i < n; ++i)
        for (int c = 0; c < d_; ++c) q.push_back(float_from_bf16(captured_query(i)[c]));
      return q;
    }
    for (int i = 0; i < n * d_; ++i) q.push_back(rounded_to(q_type_, normal(random_)));
    for (std::size_t i = 0; i < q.size(); ++i)
      if (static_cast<int>(i % d_) >= channels()) q[i] = 0;
    return q;
  }
  // Returns the number of channels in rows of queries and outputs.
  int channels() const { return channels_ == 0 ? d_ : channels_; }

  // Returns the factor of output channel i. Channels are counted over all KV heads.
  static float out_factor(std::size_t i) { return 0.5F + static_cast<float>(i % 7); }
  std::vector<double> rotated(const std::vector<double>& x, int kv_head) const {
    std::vector<double> y = cuda::rotated(x, d_);
    for (int i = 0; i < d_; ++i) y[i] *= out_factor(static_cast<std::size_t>(kv_head) * d_ + i);
    return y;
  }

  // Returns how many pages a table entry covers.
  int pages_of_entry() const { return tables_ == Tables::own ? 1 : kKvHeads * 2; }

  // Makes a pool with entries in random order. page_bytes has shape [head][side].
  Pool make_pool(int pages, const std::vector<std::size_t>& page_bytes, bool is_packed) {
    Pool pool;
    pool.pages = std::max(pages, 1);
    const std::size_t largest = *std::max_element(page_bytes.begin(), page_bytes.end());
    pool.entry_bytes = largest * pages_of_entry();
    for (std::size_t i = 0; i < page_bytes.size(); ++i)
      pool.offsets.push_back(static_cast<std::int64_t>(i * largest));
    pool.is_packed = is_packed;
    if (is_packed) {
      PackedEntry packed(page_bytes);
      pool.entry_bytes = static_cast<std::size_t>(packed.bytes);
      pool.offsets = std::move(packed.offsets);
    }
    pool.table.resize(lengths_.size() * kKvHeads * 2 * pool.pages / pages_of_entry());
    std::iota(pool.table.begin(), pool.table.end(), 0);
    std::shuffle(pool.table.begin(), pool.table.end(), random_);
    pool.bytes.assign(pool.table.size() * pool.entry_bytes, std::byte{0xff});
    return pool;
  }
  std::byte* page_of(Pool& pool, int seq, int head, int side, int page) const {
    if (tables_ == Tables::own)
      return pool.bytes.data() +
             pool.table[((seq * kKvHeads + head) * 2 + side) * pool.pages + page] * pool.entry_bytes;
    return pool.bytes.data() + pool.table[seq * pool.pages + page] * pool.entry_bytes +
           pool.offsets[head * 2 + side];
  }
  Uploaded upload(const Pool& pool) const {
    Uploaded result;
    result.pool = std::make_unique<DeviceArray<std::byte>>(pool.bytes);
    result.table = std::make_unique<DeviceArray<std::int32_t>>(pool.table);
    result.pages.table = result.table->get();
    result.pages.pool = result.pool->get();
    result.pages.page_stride = static_cast<std::int64_t>(pool.entry_bytes);
    if (tables_ == Tables::own) {
      result.pages.seq_stride = kKvHeads * 2 * pool.pages;
      result.pages.head_stride = 2 * pool.pages;
      result.pages.side_stride = pool.pages;
    } else {
      result.pages.seq_stride = pool.pages;
      if (pool.is_packed) return result;
      result.pages.side_offset = static_cast<std::int64_t>(pool.entry_bytes / pages_of_entry());
      result.pages.head_offset = 2 * result.pages.side_offset;
    }
    return result;
  }

  void add_sealed() {
    std::vector<std::size_t> page_bytes;
    for (int head = 0; head < kKvHeads; ++head)
      for (const auto& names : formats_) page_bytes.push_back(kvant_page_bytes(names[head], d_));
    sealed_ = make_pool(max_pages_, page_bytes, tables_ == Tables::packed);
    if (max_pages_ == 0) return;
    TokenMask none;
    for (int side = 0; side < 2; ++side)
      for (int head = 0; head < kKvHeads; ++head)
        for (int i = 0; i < kUniquePages; ++i)
          unique_[side].push_back(encode_page(formats_[side][head], static_cast<Side>(side), d_, none,
                                              codebooks_, head,
                                              values(static_cast<Side>(side), 100 * side + 10 * head + i)));
    for (std::size_t seq = 0; seq < lengths_.size(); ++seq) {
      for (int head = 0; head < kKvHeads; ++head) {
        for (int page = 0; page < lengths_[seq].sealed; ++page) {
          const EncodedPage* chosen[2];
          for (int side = 0; side < 2; ++side) {
            chosen[side] = &unique_[side][head * kUniquePages + random_() % kUniquePages];
            std::copy(chosen[side]->device.begin(), chosen[side]->device.end(),
                      page_of(sealed_, static_cast<int>(seq), head, side, page));
          }
          const std::uint32_t* mask = mask_.data() + ((seq * kKvHeads + head) * max_pages_ + page) * 4;
          for (int token = 0; token < kPageTokens; ++token) {
            if ((page == 0 && token < sink_) || (mask[token / 32] >> (token % 32) & 1) != 0) continue;
            tokens_[seq * kKvHeads + head].push_back(
                {chosen[0]->values.data() + token * d_, chosen[1]->values.data() + token * d_});
          }
        }
      }
    }
  }

  template <class Count>
  void add_plain(Pool& pool, const Count& count) {
    int maximum = 0;
    for (const SequenceLengths& l : lengths_) maximum = std::max(maximum, pages_for(count(l)));
    const std::vector<std::size_t> page_bytes(2 * kKvHeads, static_cast<std::size_t>(kPageTokens) * d_ * 2);
    pool = make_pool(maximum, page_bytes, /*is_packed=*/false);
    for (std::size_t seq = 0; seq < lengths_.size(); ++seq) {
      for (int head = 0; head < kKvHeads; ++head) {
        for (int first = 0; first < count(lengths_[seq]); first += kPageTokens) {
          std::vector<float>* rows[2];
          for (int side = 0; side < 2; ++side) {
            plain_values_.push_back(
                std::make_unique<std::vector<float>>(values(static_cast<Side>(side), random_())));
            rows[side] = plain_values_.back().get();
            auto* page = reinterpret_cast<std::uint16_t*>(
                page_of(pool, static_cast<int>(seq), head, side, first / kPageTokens));
            for (int token = 0; token < std::min(kPageTokens, count(lengths_[seq]) - first); ++token) {
              for (int channel = 0; channel < d_; ++channel) {
                float& value = (*rows[side])[token * d_ + channel];
                const std::uint16_t packed = bf16_from_float(value);
                value = float_from_bf16(packed);
                page[plain_index(static_cast<PageSide>(side), d_, token, channel)] = packed;
              }
            }
          }
          for (int token = 0; token < std::min(kPageTokens, count(lengths_[seq]) - first); ++token)
            tokens_[seq * kKvHeads + head].push_back(
                {rows[0]->data() + token * d_, rows[1]->data() + token * d_});
        }
      }
    }
  }

  // Returns the tokens of a sequence and KV head to which a query attends. The sequence has `n_later` more
  // queries after this query.
  std::vector<Token> visible(std::size_t seq, int kv_head, int n_later) const {
    const std::size_t of_head = seq * kKvHeads + kv_head;
    std::vector<Token> tokens = tokens_[of_head];
    const auto tail = tokens.begin() + static_cast<std::ptrdiff_t>(tail_begins_[of_head]);
    tokens.erase(tail + std::max(0, lengths_[seq].tail - n_later), tail + lengths_[seq].tail);
    if (hidden_.empty()) return tokens;
    const int before_window = std::max(0, hidden_[seq] - n_later);
    const int hidden = lengths_[seq].sealed > 0 ? std::max(0, before_window - sink_) : before_window;
    return {tokens.begin() + hidden, tokens.end()};
  }

  AttentionOracle oracle() const {
    const bool has_pages =
        std::any_of(lengths_.begin(), lengths_.end(), [](const auto& l) { return l.sealed > 0; });
    return {.d = d_,
            .softmax_scale = softmax_scale(),
            .softcap = softcap_,
            .has_sink_logits = has_sink_logits_,
            .softmax = expected_,
            .rises_by_tiles = !has_pages};
  }

  double compare(const std::vector<float>& q, const std::vector<std::uint8_t>& out,
                 const std::vector<float>& lse, int group, kvant_type out_type) const {
    double worst = 0;
    const std::vector<std::int32_t> begins = query_begins();
    for (std::size_t seq = 0; seq < lengths_.size(); ++seq) {
      for (int row = begins[seq]; row < begins[seq + 1]; ++row) {
        worst = std::max(worst, error_of(seq, row, begins[seq + 1] - 1 - row, q, out, lse, group, out_type));
        if (!std::isfinite(worst)) return worst;
      }
    }
    return worst;
  }

  // Returns the relative RMS error of a query's outputs. The sequence has `n_later` more queries after this
  // query.
  double error_of(std::size_t seq, int row, int n_later, const std::vector<float>& q,
                  const std::vector<std::uint8_t>& out, const std::vector<float>& lse, int group,
                  kvant_type out_type) const {
    double error = 0;
    double energy = 0;
    for (int head = 0; head < kKvHeads * group; ++head) {
      const std::size_t of_row = static_cast<std::size_t>(row) * kKvHeads * group + head;
      const std::size_t first = of_row * d_;
      const std::vector<Token> tokens = visible(seq, head / group, n_later);
      double log_sum_exp = -INFINITY;
      std::vector<double> expected(d_);  // the output of a query that attends to nothing is zero
      if (tokens.empty()) {
        if (tokens_[seq * kKvHeads + head / group].empty()) continue;
        EXPECT_FLOAT_EQ(lse[of_row], has_sink_logits_ ? AttentionOracle::sink_logit(head) : -INFINITY);
      } else {
        expected = oracle().attend(q.data() + first, tokens, head, &log_sum_exp);
        if (rotates_) expected = rotated(expected, head / group);
        if (expected_ == softmax_ && sharpness_ < kSharpest) {
          EXPECT_NEAR(lse[of_row], log_sum_exp, 5e-3 + 1e-3 * std::fabs(log_sum_exp));
        }
      }
      for (int i = 0; i < channels(); ++i) {
        const float x = number_at(out, out_type, of_row * channels() + i);
        error += (x - expected[i]) * (x - expected[i]);
        energy += expected[i] * expected[i];
      }
    }
    if (!std::isfinite(error)) return INFINITY;
    return error == 0 ? 0 : std::sqrt(error / energy);
  }

  std::vector<const char*> formats_[2];  // [side][head]
  bool is_mixed_ = false;
  float sharpness_ = 1;
  float skip_threshold_ = 0;
  kvant_type q_type_ = KVANT_BF16;
  int channels_ = 0;  // number of channels; 0 means all
  bool rotates_ = false;
  bool was_short_ = false;
  bool settles_ = true;
  bool says_lengths_ = false, appends_ = false, rotates_rows_ = false;
  kvant_type row_type_ = KVANT_F32;
  float softcap_ = 0;
  bool has_sink_logits_ = false;
  std::vector<std::int32_t> hidden_;
  int max_queries_ = 0;
  std::vector<int> query_counts_;
  std::vector<std::uint64_t> skip_counts_;
  Softmax softmax_ = Softmax::exact, expected_ = Softmax::exact;
  int d_;
  std::vector<SequenceLengths> lengths_;
  int sink_;
  Tables tables_;
  Values values_;
  float loudness_;
  bool use_masks_ = false;
  std::mt19937 random_;
  Codebooks codebooks_;
  int max_pages_ = 0;
  std::vector<std::uint32_t> mask_;
  std::vector<EncodedPage> unique_[2];  // [side][head][kUniquePages]
  std::vector<std::unique_ptr<std::vector<float>>> plain_values_;
  // Lists the tokens of each sequence and head, [seq][head], in the order of sealed tokens, tokens of the
  // tail and protected tokens.
  std::vector<std::vector<Token>> tokens_;
  // Holds the index in tokens_ of the tail's first token, [seq][head].
  std::vector<std::size_t> tail_begins_;
  Pool sealed_, tail_, protected_;
};

}  // namespace kvant::cuda
