// Makes layers with random pages and queries, for tests of the CPU library.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "base/float16.h"
#include "cache/page_counts.h"
#include "device/cpu/calls.h"
#include "device/cpu/kernels/testing/small_number_error.h"
#include "device/cpu/rows.h"
#include "device/cpu/testing/double_attention.h"
#include "format/error_metric.h"
#include "kvant/kvant.h"

namespace kvant::device::cpu {

inline std::vector<float> normal(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> drawn;
  std::vector<float> values(n);
  for (float& x : values) x = drawn(random);
  return values;
}

inline std::vector<std::uint16_t> halves(const std::vector<float>& values) {
  std::vector<std::uint16_t> to(values.size());
  f16_row_from_float(values.data(), to.data(), static_cast<int>(values.size()));
  return to;
}

// GuardedBytes is memory that ends where the process may not read on, so a read after the last page fails.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t n) {
    const std::size_t unit = sysconf(_SC_PAGESIZE), used = (n + unit - 1) / unit * unit;
    size_ = used + unit;
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED || mprotect(memory_ + used, unit, PROT_NONE) != 0) throw std::bad_alloc();
    begin_ = memory_ + used - n;
  }
  ~GuardedBytes() { munmap(memory_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::byte* get() const { return begin_; }

 private:
  std::size_t size_;
  std::byte *memory_, *begin_;
};

// TestPages has a pool and a table of its own, [seq][head][side][page].
struct TestPages {
  TestPages(int n_seqs, int n_heads, int n_pages, std::size_t bytes)
      : stride((bytes + 15) / 16 * 16), pool(std::size_t{2} * n_seqs * n_heads * n_pages * stride) {
    view.seq_stride = std::int64_t{2} * n_heads * n_pages;
    view.head_stride = std::int64_t{2} * n_pages;
    view.side_stride = n_pages;
    for (int i = 0; i < 2 * n_seqs * n_heads * n_pages; ++i) table.push_back(i);
    std::shuffle(table.begin(), table.end(), std::mt19937(5));
    view.table = table.data();
    view.pool = pool.get();
    view.page_stride = static_cast<std::int64_t>(stride);
  }
  std::size_t stride;
  GuardedBytes pool;
  std::vector<std::int32_t> table;
  kvant_pages view{};
};

struct LayerSizes {
  int d = 64, group = 3, n_kv_heads = 2, n_seqs = 2, n_sealed = 2, n_tail = 21, n_protected = 0,
      n_queries = 1;
};

// Returns random codebooks for one side of all heads, with centroids as large as the values that they stand
// for.
inline std::vector<std::uint16_t> codebooks_of(const std::string& format, int d, int n_heads) {
  const Format& known = *find_format(format);
  const auto shape = known.codebook_shape();
  if (!shape) return {};
  std::vector<float> centroids = normal(n_heads * known.constant_size(d), 77);
  for (float& x : centroids) x *= shape->unit_vectors ? 1 / std::sqrt(static_cast<float>(d)) : 1;
  return halves(centroids);
}

// TestLayer has random keys, values and queries. Its outputs are F32.
struct TestLayer {
  explicit TestLayer(const LayerSizes& of, const std::string& key, const std::string& value)
      : sizes(of),
        key_format(key),
        value_format(value),
        sealed(of.n_seqs, of.n_kv_heads, std::max(of.n_sealed, 1),
               std::max(kvant_page_bytes(key.c_str(), of.d), kvant_page_bytes(value.c_str(), of.d))),
        tail(of.n_seqs, of.n_kv_heads, std::max(pages_for(of.n_tail), 1),
             std::size_t{2} * kPageTokens * of.d),
        kept(of.n_seqs, of.n_kv_heads, std::max(pages_for(of.n_protected), 1),
             std::size_t{2} * kPageTokens * of.d),
        key_codebooks(codebooks_of(key, of.d, of.n_kv_heads)),
        value_codebooks(codebooks_of(value, of.d, of.n_kv_heads)),
        n_sealed(of.n_seqs, of.n_sealed),
        n_tail(of.n_seqs, of.n_tail),
        n_protected(of.n_seqs, of.n_protected) {
    shape.struct_size = sizeof shape;
    shape.n_seqs = of.n_seqs;
    shape.n_kv_heads = of.n_kv_heads;
    shape.group = of.group;
    shape.head_dim = of.d;
    shape.softmax_scale = 1.5F / std::sqrt(static_cast<float>(of.d));
    shape.key_format = key_format.c_str();
    shape.value_format = value_format.c_str();
    shape.max_queries = of.n_queries;
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = n_sealed.data();
    lengths.tail_tokens = n_tail.data();
    lengths.protected_tokens = n_protected.data();
    lengths.protected_seq_stride = 1;
    layer.struct_size = sizeof layer;
    layer.sealed = sealed.view;
    layer.tail = tail.view;
    layer.protected_pages = kept.view;
    layer.key_codebooks = key_codebooks.empty() ? nullptr : key_codebooks.data();
    layer.value_codebooks = value_codebooks.empty() ? nullptr : value_codebooks.data();
    layer.key_codebook_stride = static_cast<std::int64_t>(key_codebooks.size()) / of.n_kv_heads;
    layer.value_codebook_stride = static_cast<std::int64_t>(value_codebooks.size()) / of.n_kv_heads;
    const int n_heads = of.n_kv_heads * of.group;
    q = normal(std::size_t{1} * of.n_seqs * of.n_queries * n_heads * of.d, 1);
    layer.q = q.data();
    layer.q_type = layer.out_type = KVANT_F32;
    layer.q_head_stride = layer.out_head_stride = of.d;
    layer.q_seq_stride = layer.out_seq_stride = std::int64_t{n_heads} * of.d;
    fill_plain(tail.view, of.n_tail, 11);
    fill_plain(kept.view, of.n_protected, 12);
  }

  void fill_plain(const kvant_pages& pages, int n_tokens, std::uint32_t seed) const {
    for (int seq = 0; seq < sizes.n_seqs; ++seq)
      for (int i = 0; i < 2 * sizes.n_kv_heads; ++i)
        for (int t = 0; t < n_tokens; ++t)
          write_row(normal(sizes.d, seed + 1000 * t + 10 * i + seq).data(), sizes.d, t % kPageTokens,
                    page_address(pages, seq, 0, i / 2, i % 2, t / kPageTokens));
  }

  // Encodes pages as kvant_seal does, also in formats that kvant_seal refuses.
  void fill_sealed(const std::function<TokenMask(int page)>& left_out = [](int) {
    return TokenMask{};
  }) const {
    for (int i = 0; i < 2 * sizes.n_kv_heads; ++i) {
      const SideContext side(shape, layer, i / 2, i % 2);
      for (int seq = 0; seq < sizes.n_seqs; ++seq)
        for (int page = 0; page < sizes.n_sealed; ++page)
          side.format().encode(normal(std::size_t{kPageTokens} * sizes.d, 100 * page + 10 * i + seq).data(),
                               left_out(page), side.context(),
                               sealed_address(layer, seq, i / 2, i % 2, page));
    }
  }

  struct Result {
    std::vector<float> out, lse;
  };
  Result attend(const char* kernels) {
    Result result = prepare_result();
    shape.kernels = kernels;
    EXPECT_EQ(kvant_decode_attention(&shape, &lengths, &layer, nullptr, 0, nullptr), KVANT_OK)
        << kvant_last_error();
    return result;
  }

  Result attend_in_double() {
    Result result = prepare_result();
    testing::decode_in_double(shape, lengths, layer);
    return result;
  }

  // Lets attention write into the result.
  Result prepare_result() {
    Result result{std::vector<float>(q.size(), -7.0F), std::vector<float>(q.size() / sizes.d, -7.0F)};
    layer.out = result.out.data();
    layer.lse = result.lse.data();
    return result;
  }

  LayerSizes sizes;
  std::string key_format, value_format;
  TestPages sealed, tail, kept;
  std::vector<std::uint16_t> key_codebooks, value_codebooks;
  std::vector<std::int32_t> n_sealed, n_tail, n_protected;
  std::vector<float> q;
  kvant_decode_shape shape{};
  kvant_decode_lengths lengths{};
  kvant_decode_layer layer{};
};

inline double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    error += (double{found[i]} - expected[i]) * (double{found[i]} - expected[i]);
    size += double{expected[i]} * expected[i];
  }
  return std::sqrt(error / size);
}

// Expects outputs and LSEs of kernels to differ from the expected numbers by at most `most`.
inline void expect_close(const TestLayer::Result& found, const TestLayer::Result& expected, double most,
                         const std::string& name) {
  EXPECT_LT(relative_error(found.out, expected.out), most) << name;
  for (std::size_t i = 0; i < found.lse.size(); ++i) {
    if (found.lse[i] == expected.lse[i]) continue;  // Two infinities have no difference.
    ASSERT_NEAR(found.lse[i], expected.lse[i], most) << name << ", " << i;
  }
}

// WithKernels runs a test with the kernels of one instruction set, or with the reference. The test is skipped
// if this machine lacks the instruction set.
class WithKernels : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!knows_kernels(GetParam())) GTEST_SKIP() << "this processor (or this build) has no " << GetParam();
  }
};

// Kernels round levels and centroids to bytes, which costs accuracy (cpu_backend_test.cc). With other formats
// they round only q and P, to 16 bits or to small numbers. Queries of a TestLayer are normal, so their
// largest value is at most 4 times the RMS.
inline double tolerance(const char* kernels, const std::string& format, int d) {
  if (format.starts_with("vq") || format.starts_with("nvq") || format.starts_with("pq")) return 0.035;
  const double rounded = format.starts_with("lm") || format.starts_with("gtq") ? 0.015 : 1e-3;
  const auto* found = kvant::cpu::find_kernels(kernels);
  return std::hypot(rounded, kvant::cpu::testing::small_number_error(found, format, d, {4, 1.5}));
}

// Returns the formats that the library reads at a head size. Codebooks that take long to search are left out.
inline std::vector<std::string> read_formats(int d) {
  std::vector<std::string> names;
  for (const std::string& name : format_names()) {
    if (kvant_page_bytes(name.c_str(), d) > 0 && find_format(name)->constant_size(d) < 40'000)
      names.push_back(name);
  }
  return names;
}

}  // namespace kvant::device::cpu
