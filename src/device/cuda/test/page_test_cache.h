// Makes caches in GPU memory for tests of kernels that turn pages into rows. A PageTestCache also has the
// rows that its pages represent, which are the expected results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cache/page_counts.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "device/cuda/test/packed_entry.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

// Holds pages of one size, [seq][head][side][page], in random places of a pool.
class TestPagePool {
 public:
  TestPagePool(std::size_t n_seqs, int n_heads, int n_pages, std::size_t page_bytes, std::mt19937& random)
      : n_heads_(n_heads),
        n_pages_(std::max(n_pages, 1)),
        page_bytes_(page_bytes),
        table_(n_seqs * n_heads * 2 * n_pages_),
        bytes_(table_.size() * page_bytes, std::byte{0xff}) {
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), random);
  }
  std::byte* page(std::size_t seq, int head, int side, int page) {
    return bytes_.data() + table_[((seq * n_heads_ + head) * 2 + side) * n_pages_ + page] * page_bytes_;
  }
  // Uploads the pages. The result is valid for the lifetime of the pool.
  kvant_pages upload() {
    device_table_ = std::make_unique<DeviceArray<std::int32_t>>(table_);
    device_bytes_ = std::make_unique<DeviceArray<std::byte>>(bytes_);
    kvant_pages pages{};
    pages.table = device_table_->get();
    pages.side_stride = n_pages_;
    pages.head_stride = 2 * n_pages_;
    pages.seq_stride = static_cast<std::int64_t>(n_heads_) * 2 * n_pages_;
    pages.pool = device_bytes_->get();
    pages.page_stride = static_cast<std::int64_t>(page_bytes_);
    return pages;
  }

 private:
  int n_heads_, n_pages_;
  std::size_t page_bytes_;
  std::vector<std::int32_t> table_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<DeviceArray<std::int32_t>> device_table_;
  std::unique_ptr<DeviceArray<std::byte>> device_bytes_;
};

// Holds entries [seq][page] in random places of a pool. Each entry contains the pages of all heads and sides.
class PackedPagePool {
 public:
  PackedPagePool(std::size_t n_seqs, int n_pages, PackedEntry entry, std::mt19937& random)
      : n_pages_(std::max(n_pages, 1)),
        entry_(std::move(entry)),
        table_(n_seqs * n_pages_),
        bytes_(table_.size() * entry_.bytes, std::byte{0xff}) {
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), random);
  }
  std::byte* page(std::size_t seq, int head, int side, int page) {
    return bytes_.data() + table_[seq * n_pages_ + page] * entry_.bytes + entry_.offsets[2 * head + side];
  }
  // Uploads the pages, and makes `layer` refer to them. The reference is valid for the lifetime of the pool.
  void upload(kvant_decode_layer& layer) {
    device_table_ = std::make_unique<DeviceArray<std::int32_t>>(table_);
    device_bytes_ = std::make_unique<DeviceArray<std::byte>>(bytes_);
    layer.sealed = {};
    layer.sealed.table = device_table_->get();
    layer.sealed.seq_stride = n_pages_;
    layer.sealed.pool = device_bytes_->get();
    layer.sealed.page_stride = entry_.bytes;
    layer.sealed_offsets = entry_.offsets.data();
  }

 private:
  int n_pages_;
  PackedEntry entry_;
  std::vector<std::int32_t> table_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<DeviceArray<std::int32_t>> device_table_;
  std::unique_ptr<DeviceArray<std::byte>> device_bytes_;
};

// Holds sequences of sealed pages and a tail, with a sink and masked tokens in protected pages. KV heads take
// the pairs of formats in turn. If there is more than one pair, sealed pages are packed by size.
class PageTestCache {
 public:
  static constexpr int kKvHeads = 3;
  struct Formats {
    const char* key;
    const char* value;
  };
  struct Lengths {
    int sealed, tail;  // pages and tokens
  };

  PageTestCache(const std::vector<Formats>& pairs, int d, const std::vector<Lengths>& lengths, int sink,
                bool masks)
      : d_(d), lengths_(lengths), codebooks_(pairs[0].key, pairs[0].value, d, kKvHeads, 3), random_(7) {
    std::vector<std::size_t> page_bytes;
    for (int head = 0; head < kKvHeads; ++head) {
      formats_[0].push_back(pairs[head % pairs.size()].key);
      formats_[1].push_back(pairs[head % pairs.size()].value);
      for (const auto& names : formats_) page_bytes.push_back(kvant_page_bytes(names[head], d));
    }
    for (const Lengths& l : lengths) {
      max_sealed_ = std::max(max_sealed_, l.sealed);
      max_tail_ = std::max(max_tail_, pages_for(l.tail));
    }
    const std::size_t plain = static_cast<std::size_t>(kPageTokens) * d * 2;
    if (pairs.size() > 1) {
      packed_ =
          std::make_unique<PackedPagePool>(lengths.size(), max_sealed_, PackedEntry(page_bytes), random_);
    } else {
      const std::size_t stride = *std::max_element(page_bytes.begin(), page_bytes.end());
      sealed_ = std::make_unique<TestPagePool>(lengths.size(), kKvHeads, max_sealed_, stride, random_);
    }
    tail_ = std::make_unique<TestPagePool>(lengths.size(), kKvHeads, max_tail_, plain, random_);
    protected_ = std::make_unique<TestPagePool>(lengths.size(), kKvHeads, max_sealed_, plain, random_);
    mask_words_.resize(lengths.size() * kKvHeads * std::max(max_sealed_, 1) * 4);
    if (masks)
      for (std::uint32_t& word : mask_words_)
        word = random_() % 3 == 0 ? random_() & random_() & random_() : 0;
    for (std::size_t seq = 0; seq < lengths.size(); ++seq)
      for (int head = 0; head < kKvHeads; ++head)
        for (int side = 0; side < 2; ++side) add(seq, head, side, sink);
    describe(sink, masks);
  }

  int tokens(std::size_t seq) const { return lengths_[seq].sealed * kPageTokens + lengths_[seq].tail; }
  // Returns the row that a token must have after dequantization, [d].
  const float* row(std::size_t seq, int head, int side, int token) const {
    return rows_[(seq * kKvHeads + head) * 2 + side].data() + static_cast<std::ptrdiff_t>(token) * d_;
  }

  // shape(), layer() and lengths() return arguments for the library's calls.
  const kvant_decode_shape& shape() const { return shape_; }
  const kvant_decode_layer& layer() const { return layer_; }
  const kvant_decode_lengths& lengths() const { return device_lengths_; }

  // Dequantizes pages [first, first + n) of all sequences and heads to BF16 [seq][n * kPageTokens][head][d].
  // Rows without a token have 0xffff in all channels.
  std::vector<std::uint16_t> dequantized(int side, int first, int n) const {
    const std::size_t size = lengths_.size() * n * kPageTokens * kKvHeads * d_;
    const DeviceArray<std::uint16_t> out(std::vector<std::uint16_t>(size, 0xffff));
    kvant_dequantization dequantization{};
    dequantization.struct_size = sizeof dequantization;
    dequantization.n_seqs = static_cast<std::int32_t>(lengths_.size());
    dequantization.first_page = first;
    dequantization.n_pages = n;
    dequantization.n_heads = kKvHeads;
    (side == 0 ? dequantization.keys : dequantization.values) = out.get();
    dequantization.head_stride = d_;
    dequantization.token_stride = kKvHeads * d_;
    dequantization.seq_stride = dequantization.token_stride * n * kPageTokens;
    EXPECT_EQ(kvant_dequantize(&shape_, &device_lengths_, &layer_, &dequantization, nullptr), KVANT_OK);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    return out.read();
  }
  // Dequantizes pages [first, first + n) of one sequence and head to BF16 [n * kPageTokens][d].
  std::vector<std::uint16_t> dequantized_alone(int side, int seq, int head, int first, int n) const {
    const DeviceArray<std::int32_t> seqs(std::vector<std::int32_t>{seq});
    const DeviceArray<std::uint16_t> out(
        std::vector<std::uint16_t>(static_cast<std::size_t>(n) * kPageTokens * d_, 0xffff));
    kvant_dequantization dequantization{};
    dequantization.struct_size = sizeof dequantization;
    dequantization.n_seqs = 1;
    dequantization.seqs = seqs.get();
    dequantization.first_page = first;
    dequantization.n_pages = n;
    dequantization.first_head = head;
    dequantization.n_heads = 1;
    (side == 0 ? dequantization.keys : dequantization.values) = out.get();
    dequantization.token_stride = d_;
    EXPECT_EQ(kvant_dequantize(&shape_, &device_lengths_, &layer_, &dequantization, nullptr), KVANT_OK);
    return out.read();
  }

 private:
  bool is_protected(std::size_t seq, int head, int token, int sink) const {
    if (token < sink) return true;
    const std::uint32_t* words = mask_words_.data() + (seq * kKvHeads + head) * std::max(max_sealed_, 1) * 4;
    return (words[token / 32] >> (token % 32) & 1) != 0;
  }

  void add(std::size_t seq, int head, int side, int sink) {
    std::vector<float> rows;
    for (int page = 0; page < lengths_[seq].sealed; ++page) {
      const EncodedPage encoded =
          encode_page(formats_[side][head], static_cast<Side>(side), d_, {}, codebooks_, head,
                      page_values(static_cast<Side>(side), d_, random_()));
      std::copy(encoded.device.begin(), encoded.device.end(),
                packed_ ? packed_->page(seq, head, side, page) : sealed_->page(seq, head, side, page));
      rows.insert(rows.end(), encoded.values.begin(), encoded.values.end());
    }
    int n_protected = 0;
    for (int token = 0; token < lengths_[seq].sealed * kPageTokens; ++token)
      if (is_protected(seq, head, token, sink))
        add_plain(*protected_, seq, head, side, n_protected++,
                  rows.data() + static_cast<std::ptrdiff_t>(token) * d_);
    const std::size_t sealed = rows.size();
    rows.resize(sealed + static_cast<std::size_t>(lengths_[seq].tail) * d_);
    for (int token = 0; token < lengths_[seq].tail; ++token)
      add_plain(*tail_, seq, head, side, token,
                rows.data() + sealed + static_cast<std::ptrdiff_t>(token) * d_);
    rows_.push_back(rows);
  }

  // Adds a random row at position `token` of the pool's pages for a sequence, head and side.
  void add_plain(TestPagePool& pool, std::size_t seq, int head, int side, int token, float* row) {
    auto* page = reinterpret_cast<std::uint16_t*>(pool.page(seq, head, side, token / kPageTokens));
    for (int i = 0; i < d_; ++i) {
      row[i] = float_from_bf16(bf16_from_float(normal_(random_)));
      page[plain_index(static_cast<PageSide>(side), d_, token % kPageTokens, i)] = bf16_from_float(row[i]);
    }
  }

  void describe(int sink, bool masks) {
    std::vector<std::int32_t> sealed, tail;
    for (const Lengths& l : lengths_) {
      sealed.push_back(l.sealed);
      tail.push_back(l.tail);
    }
    device_sealed_ = std::make_unique<DeviceArray<std::int32_t>>(sealed);
    device_tail_ = std::make_unique<DeviceArray<std::int32_t>>(tail);
    device_masks_ = std::make_unique<DeviceArray<std::uint32_t>>(mask_words_);
    for (int side = 0; side < 2; ++side)
      device_codebooks_[side] = std::make_unique<DeviceArray<std::uint16_t>>(codebooks_.packed[side]);
    shape_.struct_size = sizeof shape_;
    shape_.n_seqs = static_cast<std::int32_t>(lengths_.size());
    shape_.n_kv_heads = kKvHeads;
    shape_.group = 1;
    shape_.head_dim = d_;
    shape_.head_key_formats = formats_[0].data();
    shape_.head_value_formats = formats_[1].data();
    device_lengths_.struct_size = sizeof device_lengths_;
    device_lengths_.sealed_pages = device_sealed_->get();
    device_lengths_.tail_tokens = device_tail_->get();
    layer_.struct_size = sizeof layer_;
    if (packed_) {
      packed_->upload(layer_);
    } else {
      layer_.sealed = sealed_->upload();
    }
    layer_.tail = tail_->upload();
    layer_.protected_pages = protected_->upload();
    layer_.sink = sink;
    if (masks) layer_.masks = device_masks_->get();
    layer_.mask_seq_stride = kKvHeads * std::max(max_sealed_, 1);
    layer_.mask_head_stride = std::max(max_sealed_, 1);
    layer_.key_codebooks = device_codebooks_[0]->get();
    layer_.value_codebooks = device_codebooks_[1]->get();
    layer_.key_codebook_stride = codebooks_.size[0];
    layer_.value_codebook_stride = codebooks_.size[1];
  }

  int d_;
  std::vector<Lengths> lengths_;
  Codebooks codebooks_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::vector<const char*> formats_[2];  // [side][head]
  int max_sealed_ = 0, max_tail_ = 0;    // pages
  std::vector<std::uint32_t> mask_words_;
  std::vector<std::vector<float>> rows_;  // [seq][head][side][tokens][d]
  std::unique_ptr<TestPagePool> sealed_, tail_, protected_;
  // With several pairs of formats, packed_ replaces sealed_.
  std::unique_ptr<PackedPagePool> packed_;
  std::unique_ptr<DeviceArray<std::int32_t>> device_sealed_, device_tail_;
  std::unique_ptr<DeviceArray<std::uint32_t>> device_masks_;
  std::unique_ptr<DeviceArray<std::uint16_t>> device_codebooks_[2];
  kvant_decode_shape shape_{};
  kvant_decode_lengths device_lengths_{};
  kvant_decode_layer layer_{};
};

}  // namespace kvant::cuda
