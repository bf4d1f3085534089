// Drives a cache whose lengths the host knows, as a reference for steps whose lengths only the device knows.
// For each sequence, a PageLedger says which pages exist and which are due. For each token, the cache makes
// tables and counts from the ledgers and passes them to the library's calls.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <vector>

#include "cache/page_ledger.h"
#include "device/cuda/test/attention_oracle.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "device/cuda/test/step_model.h"

namespace kvant::cuda {

using Ids = std::vector<std::int32_t>;

// Represents the entries of pools by their numbers. The entries of sealed pages and of tails are numbered
// separately.
class NumberedEntries final : public EntryStore {
 public:
  NumberedEntries(int n_sealed, int n_tails) {
    for (int id = n_sealed; id-- > 0;) free_[0].push_back(id);
    for (int id = n_tails; id-- > 0;) free_[1].push_back(id);
  }
  PageEntry take(int room) override {
    std::vector<std::int32_t>& free = free_[room == kSealedRoom ? 0 : 1];
    if (free.empty()) return {};
    const PageEntry entry{free.back(), room};
    free.pop_back();
    return entry;
  }
  void retain(PageEntry) override { ADD_FAILURE() << "nothing is shared"; }
  void release(PageEntry entry) noexcept override {
    free_[entry.room == kSealedRoom ? 0 : 1].insert(free_[entry.room == kSealedRoom ? 0 : 1].begin(),
                                                    entry.id);
  }
  bool shared(PageEntry) const override { return false; }
  bool copy(PageEntry, int, PageEntry) override { return false; }

 private:
  std::vector<std::int32_t> free_[2];
};

// Holds BF16 rows [tokens][heads][d] for every layer and side.
using LayerRows = std::vector<std::vector<std::uint16_t>>;

class HostDrivenCache {
 public:
  using Model = StepModel;

  HostDrivenCache(const StepModel& model, const Codebooks& codebooks, int n_seqs)
      : model_(model),
        host_codebooks_(codebooks),
        n_seqs_(n_seqs),
        entries_(n_seqs * Model::kMaxPages, n_seqs * (2 + tail_pages())),
        seqs_(n_seqs),
        key_codebooks_(codebooks.packed[0]),
        value_codebooks_(codebooks.packed[1]),
        host_tables_(begin(n_parts)),
        tables_(host_tables_),
        numbers_(all_seqs()),
        out_(row_numbers(Model::kHeads)) {
    for (const int n_heads : {Model::kKvHeads, Model::kKvHeads, Model::kHeads})
      rows_.emplace_back(row_numbers(n_heads));
    const std::int64_t plain = 2 * Model::kKvHeads * model.plain_bytes();
    for (int layer = 0; layer < Model::kLayers; ++layer) {
      sealed_.push_back(
          std::make_unique<DeviceArray<std::byte>>(n_seqs * Model::kMaxPages * model.sealed_bytes()));
      tails_.push_back(std::make_unique<DeviceArray<std::byte>>(n_seqs * (2 + tail_pages()) * plain));
      sinks_.push_back(std::make_unique<DeviceArray<std::byte>>(n_seqs * plain));
    }
    const kvant_decode_shape shape = model.shape(n_seqs, 1);
    EXPECT_EQ(kvant_decode_workspace(&shape, &workspace_bytes_), KVANT_OK);
    workspace_ = std::make_unique<DeviceArray<std::byte>>(workspace_bytes_);
    for (int i = 0; i < n_seqs; ++i) restart(i, 0);
  }

  void restart(int i, int sequence) {
    seqs_[i] = {};
    seqs_[i].sequence = sequence;
    const StepCase& rules = model_.rules;
    seqs_[i].ledger = std::make_unique<PageLedger>(
        GroupRules{rules.window, rules.sliding_window, kPageTokens, kPageTokens, /*tail_lasts=*/true},
        entries_);
    seqs_[i].truth.resize(2 * Model::kLayers * Model::kKvHeads);
  }
  int length(int i) const { return seqs_[i].ledger->length(); }
  int n_sealed(int i) const { return seqs_[i].ledger->n_sealed(); }

  // Appends the first tokens of a sequence. The tokens must not fill a page, and no query attends to them in
  // this call.
  LayerRows append_prompt(int i, int n_tokens) {
    PageLedger& ledger = *seqs_[i].ledger;
    ledger.begin();
    EXPECT_TRUE(ledger.reserve(n_tokens, /*is_prompt=*/false));
    LayerRows rows = rows_of(i, 0, n_tokens);
    append(ledger.tail(0), 0, n_tokens, rows);
    add_to_truth(i, 0, n_tokens, rows);
    ledger.commit();
    return rows;
  }

  // Appends one token to each sequence that takes part. The token attends, and out() returns its output.
  void step(const std::vector<bool>& takes_part) {
    std::fill(host_tables_.begin(), host_tables_.end(), 0);
    for (int i = 0; i < n_seqs_; ++i) {
      number(due_tail_page, i) = number(appended, i) = -1;
      if (takes_part[i]) prepare(i);
    }
    tables_.write(host_tables_);
    for (int layer = 0; layer < Model::kLayers; ++layer) {
      append_tokens(layer);
      seal(layer);
      attend(layer);
      last_out_[layer] = out_.read();
    }
    for (int i = 0; i < n_seqs_; ++i)
      if (takes_part[i]) seqs_[i].ledger->commit();
  }
  // Returns the output of sequence i in the last step, [heads][d].
  std::vector<float> out(int layer, int i) const {
    const auto size = static_cast<std::ptrdiff_t>(Model::kHeads) * model_.rules.d;
    return {last_out_[layer].begin() + i * size, last_out_[layer].begin() + (i + 1) * size};
  }

  // Keeps the first n_tokens tokens. If this reopens a sealed page as the last page of the tail, returns the
  // rows of the page. Otherwise returns nothing.
  LayerRows truncate(int i, int n_tokens) {
    LayerRows rows;
    const int page = n_tokens / kPageTokens;
    EXPECT_TRUE(seqs_[i].ledger->truncate(n_tokens, [&](PageEntry from, PageEntry to) {
      rows = dequantized(i, page, from);
      append(to, 0, n_tokens % kPageTokens, rows);
      add_to_truth(i, page * kPageTokens, n_tokens % kPageTokens, rows);
    }));
    return rows;
  }

  // Returns the bytes of a sealed page in one layer.
  std::vector<std::byte> sealed_page(int layer, int i, int page) const {
    return bytes_of(layer, seqs_[i].ledger->sealed(page));
  }
  int first_page(int i) const { return seqs_[i].ledger->first_page(); }

  // Returns the attention output of the last step's token in double precision, [heads][d]. The function
  // derives the visible tokens from the rules. The rows come from sealed pages and from the appended rows.
  std::vector<double> expected(int layer, int i) const {
    const int d = model_.rules.d;
    const AttentionOracle oracle{.d = d,
                                 .softmax_scale = model_.softmax_scale(),
                                 .softcap = 0,
                                 .has_sink_logits = false,
                                 .softmax = Softmax::exact,
                                 .rises_by_tiles = false};
    std::vector<double> out;
    for (int kv_head = 0; kv_head < Model::kKvHeads; ++kv_head) {
      const std::vector<float> keys = visible_rows(i, layer, KVANT_KEY, kv_head);
      const std::vector<float> values = visible_rows(i, layer, KVANT_VALUE, kv_head);
      std::vector<AttentionOracle::Token> tokens;
      for (std::size_t at = 0; at < keys.size(); at += d)
        tokens.push_back({keys.data() + at, values.data() + at});
      for (int head = kv_head * Model::kGroup; head < (kv_head + 1) * Model::kGroup; ++head) {
        std::vector<float> q(d);
        float_row_from_bf16(model_.row(seqs_[i].sequence, layer, Model::queries, head, seqs_[i].last.token),
                            q.data(), d);
        double log_sum_exp = 0;
        const std::vector<double> row = oracle.attend(q.data(), tokens, head, &log_sum_exp);
        out.insert(out.end(), row.begin(), row.end());
      }
    }
    return out;
  }

  // Returns the relative RMS error of sealed pages with respect to the rows from which they were made.
  double sealing_error(int layer, int i) const {
    double error = 0, energy = 1e-30;
    for (int page = first_page(i); page < n_sealed(i); ++page) {
      for (int side = 0; side < 2; ++side) {
        for (int head = 0; head < Model::kKvHeads; ++head) {
          const std::vector<float> rows = decoded(layer, seqs_[i].ledger->sealed(page), side, head);
          const float* truth = truth_of(i, layer, side, head, page * kPageTokens);
          for (std::size_t j = 0; j < rows.size(); ++j) {
            error += (rows[j] - truth[j]) * (rows[j] - truth[j]);
            energy += truth[j] * truth[j];
          }
        }
      }
    }
    return std::sqrt(error / energy);
  }

 private:
  // Describes the tokens and pages to which the last step's token attends.
  struct Seen {
    int token = 0, first_token = 0, sealed = 0;
    // Holds the entries of sealed pages from the first visible page on.
    std::vector<PageEntry> entries;
  };
  struct Seq {
    int sequence = 0;
    std::unique_ptr<PageLedger> ledger;
    // Holds the rows as they were appended, [layer][side][head][tokens][d].
    std::vector<std::vector<float>> truth;
    Seen last;
  };
  // Names the arrays that the calls of a step read. The arrays before n_numbers have one number for each
  // sequence. The arrays after n_numbers are page tables with kMaxPages entries for each sequence.
  enum Part {
    sealed_pages,
    tail_tokens,
    n_protected,
    hidden,
    due_tail_page,  // index into tables that start at page 0
    due_sealed_page,
    n_due,
    appended,  // index of the token, or -1 for none
    n_numbers,
    sealed = n_numbers,  // table that starts at page 0
    sealed_seen,         // table that starts at the first visible page
    tail,
    tail_seen,
    n_parts
  };
  int begin(int part) const {
    return n_seqs_ * (std::min<int>(part, n_numbers) + std::max(part - n_numbers, 0) * Model::kMaxPages);
  }
  std::int32_t& number(Part part, int i) { return host_tables_[begin(part) + i]; }
  std::int32_t& entry(Part part, int i, int page) { return number(part, i * Model::kMaxPages + page); }
  const std::int32_t* of(Part part) const { return tables_.get() + begin(part); }

  int tail_pages() const { return pages_for(model_.rules.window + 2 * kPageTokens); }

  void prepare(int i) {
    Seq& seq = seqs_[i];
    PageLedger& ledger = *seq.ledger;
    const StepCase& rules = model_.rules;
    const int token = ledger.length(), before = ledger.n_sealed();
    ledger.begin();
    EXPECT_TRUE(ledger.reserve(1, /*is_prompt=*/false));
    // Token t reads page j in sealed form if 128 (j + 1) + window <= t.
    int seen = before;
    while (kPageTokens * (seen + 1) + rules.window <= token) ++seen;
    // The step may also seal a page that only later tokens read in sealed form.
    EXPECT_GE(ledger.end_sealed(), seen);
    const int first_token = rules.sliding_window == 0 ? 0 : std::max(0, token + 1 - rules.sliding_window);
    const int first_page = first_token / kPageTokens, first_tail = std::max(seen, first_page);
    number(sealed_pages, i) = std::max(0, seen - first_page);
    number(tail_tokens, i) = token + 1 - first_tail * kPageTokens;
    number(n_protected, i) = seen > 0 ? rules.sink : 0;
    number(hidden, i) = first_token - first_page * kPageTokens;
    number(appended, i) = token;
    if (ledger.end_sealed() > before) {
      number(due_tail_page, i) = number(due_sealed_page, i) = before;
      number(n_due, i) = ledger.end_sealed() - before;
    }
    seq.last = {token, first_token, seen, {}};
    for (int page = ledger.first_page(); page < ledger.end_sealed(); ++page) {
      entry(sealed, i, page) = ledger.sealed(page).id;
      if (page < first_page || page >= seen) continue;
      entry(sealed_seen, i, page - first_page) = ledger.sealed(page).id;
      seq.last.entries.push_back(ledger.sealed(page));
    }
    for (int page = before; page <= token / kPageTokens; ++page) {
      entry(tail, i, page) = ledger.tail(page).id;
      if (page >= first_tail) entry(tail_seen, i, page - first_tail) = ledger.tail(page).id;
    }
    add_to_truth(i, token, 1, rows_of(i, token, 1));
  }

  kvant_pages plain_pages(const std::int32_t* table, std::int64_t stride,
                          DeviceArray<std::byte>& pool) const {
    const std::int64_t page = model_.plain_bytes();
    return {table, stride, 0, 0, 0, pool.get(), 2 * Model::kKvHeads * page, 0, 2 * page, page};
  }
  kvant_pages sealed_pages_of(const std::int32_t* table, int layer) const {
    return {table,
            Model::kMaxPages,
            0,
            0,
            0,
            sealed_[layer]->get(),
            model_.sealed_bytes(),
            0,
            model_.key_bytes() + model_.value_bytes(),
            model_.key_bytes()};
  }
  kvant_decode_layer empty_layer() const {
    kvant_decode_layer layer{};
    layer.struct_size = sizeof layer;
    layer.key_codebooks = host_codebooks_.size[0] > 0 ? key_codebooks_.get() : nullptr;
    layer.value_codebooks = host_codebooks_.size[1] > 0 ? value_codebooks_.get() : nullptr;
    layer.key_codebook_stride = host_codebooks_.size[0];
    layer.value_codebook_stride = host_codebooks_.size[1];
    return layer;
  }

  void seal(int layer) {
    kvant_decode_layer at = empty_layer();
    at.sink = model_.rules.sink;
    at.sealed = sealed_pages_of(of(sealed), layer);
    at.tail = plain_pages(of(tail), Model::kMaxPages, *tails_[layer]);
    const kvant_decode_shape shape = model_.shape(n_seqs_, 1);
    kvant_seal_range range{};
    range.struct_size = sizeof range;
    range.tail_page = of(due_tail_page);
    range.sealed_page = of(due_sealed_page);
    range.n_pages = of(n_due);
    range.max_pages = 2;
    EXPECT_EQ(kvant_seal_pages(&shape, &at, &range, nullptr), KVANT_OK) << kvant_last_error();
    Ids seqs, heads, tokens;
    for (int i = 0; i < n_seqs_; ++i)
      for (int head = 0; head < Model::kKvHeads && number(n_due, i) > 0 && number(due_sealed_page, i) == 0;
           ++head)
        for (int token = 0; token < model_.rules.sink; ++token)
          seqs.push_back(i), heads.push_back(head), tokens.push_back(token);
    if (seqs.empty()) return;
    const DeviceArray<std::int32_t> of_seq(seqs), of_head(heads), of_token(tokens);
    at.protected_pages = plain_pages(numbers_.get(), 1, *sinks_[layer]);
    const kvant_protected_rows rows{
        sizeof rows,   static_cast<std::int32_t>(seqs.size()), 0, of_seq.get(), of_head.get(), of_token.get(),
        of_token.get()};
    EXPECT_EQ(kvant_protect(&shape, &at, &rows, nullptr), KVANT_OK) << kvant_last_error();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  // Returns each sequence's row of the last step's token, [n_seqs][heads][d].
  std::vector<std::uint16_t> last_rows(int layer, Model::Kind kind) const {
    std::vector<std::uint16_t> rows;
    for (const Seq& seq : seqs_) {
      for (int head = 0; head < (kind == Model::queries ? Model::kHeads : Model::kKvHeads); ++head) {
        const std::uint16_t* row = model_.row(seq.sequence, layer, kind, head, seq.last.token);
        rows.insert(rows.end(), row, row + model_.rules.d);
      }
    }
    return rows;
  }

  void append_tokens(int layer) {
    rows_[Model::keys].write(last_rows(layer, Model::keys));
    rows_[Model::values].write(last_rows(layer, Model::values));
    kvant_decode_layer at = empty_layer();
    at.tail = plain_pages(of(tail), Model::kMaxPages, *tails_[layer]);
    append_to(model_.shape(n_seqs_, 1), at, n_seqs_, numbers_.get(), of(appended), rows_[Model::keys].get(),
              rows_[Model::values].get());
  }

  void attend(int layer) {
    rows_[Model::queries].write(last_rows(layer, Model::queries));
    const kvant_decode_shape shape = model_.shape(n_seqs_, 1);
    kvant_decode_layer at = empty_layer();
    at.sealed = sealed_pages_of(of(sealed_seen), layer);
    at.tail = plain_pages(of(tail_seen), Model::kMaxPages, *tails_[layer]);
    at.protected_pages = plain_pages(numbers_.get(), 1, *sinks_[layer]);
    at.sink = model_.rules.sink;
    at.q = rows_[Model::queries].get();
    at.q_head_stride = at.out_head_stride = model_.rules.d;
    at.q_seq_stride = at.out_seq_stride = std::int64_t{Model::kHeads} * model_.rules.d;
    at.out = out_.get();
    at.out_type = KVANT_F32;
    at.reproducible = 1;
    kvant_decode_lengths lengths{};
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = of(sealed_pages);
    lengths.tail_tokens = of(tail_tokens);
    if (model_.rules.sink > 0) lengths.protected_tokens = of(n_protected);
    lengths.protected_seq_stride = 1;
    if (model_.rules.sliding_window > 0) lengths.first_tokens = of(hidden);
    EXPECT_EQ(kvant_decode_schedule(&shape, &lengths, workspace_->get(), workspace_bytes_, nullptr),
              KVANT_OK);
    EXPECT_EQ(kvant_decode_attention(&shape, &lengths, &at, workspace_->get(), workspace_bytes_, nullptr),
              KVANT_OK)
        << kvant_last_error();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
  }

  std::size_t row_numbers(int n_heads) const {
    return static_cast<std::size_t>(n_seqs_) * n_heads * model_.rules.d;
  }
  Ids all_seqs() const {
    Ids numbers;
    for (int i = 0; i < n_seqs_; ++i) numbers.push_back(i);
    return numbers;
  }

  void append_to(const kvant_decode_shape& shape, const kvant_decode_layer& at, int n_rows,
                 const std::int32_t* seq, const std::int32_t* token, const void* keys,
                 const void* values) const {
    const kvant_new_rows rows = model_.new_rows(n_rows, seq, token, keys, values);
    EXPECT_EQ(kvant_append(&shape, &at, &rows, nullptr), KVANT_OK) << kvant_last_error();
  }

  // Returns the rows of n tokens of the model's sequence, in all layers.
  LayerRows rows_of(int i, int first_token, int n) const {
    LayerRows rows;
    for (int layer = 0; layer < Model::kLayers; ++layer) {
      for (int side = 0; side < 2; ++side) {
        std::vector<std::uint16_t>& to = rows.emplace_back();
        for (int token = first_token; token < first_token + n; ++token) {
          for (int head = 0; head < Model::kKvHeads; ++head) {
            const std::uint16_t* row =
                model_.row(seqs_[i].sequence, layer, static_cast<Model::Kind>(side), head, token);
            to.insert(to.end(), row, row + model_.rules.d);
          }
        }
      }
    }
    return rows;
  }

  // Appends the first n rows to a page of the tail, starting at token first_token of the page.
  void append(PageEntry entry, int first_token, int n, const LayerRows& rows) {
    Ids tokens;
    for (int t = 0; t < n; ++t) tokens.push_back(first_token + t);
    const DeviceArray<std::int32_t> seq(Ids(n, 0)), token(tokens), table(Ids{entry.id});
    const kvant_decode_shape shape = model_.shape(1, 1);
    for (int layer = 0; layer < Model::kLayers; ++layer) {
      const DeviceArray<std::uint16_t> keys(rows[2 * layer]), values(rows[2 * layer + 1]);
      kvant_decode_layer at = empty_layer();
      at.tail = plain_pages(table.get(), 1, *tails_[layer]);
      append_to(shape, at, n, seq.get(), token.get(), keys.get(), values.get());
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }

  void add_to_truth(int i, int first_token, int n, const LayerRows& rows) {
    const int d = model_.rules.d;
    for (int at = 0; at < 2 * Model::kLayers; ++at) {
      for (int head = 0; head < Model::kKvHeads; ++head) {
        std::vector<float>& truth = seqs_[i].truth[at * Model::kKvHeads + head];
        truth.resize(static_cast<std::size_t>(first_token) * d);
        for (int t = 0; t < n; ++t)
          for (int c = 0; c < d; ++c)
            truth.push_back(float_from_bf16(rows[at][(t * Model::kKvHeads + head) * d + c]));
      }
    }
  }
  const float* truth_of(int i, int layer, int side, int head, int token) const {
    return seqs_[i].truth[(2 * layer + side) * Model::kKvHeads + head].data() +
           static_cast<std::ptrdiff_t>(token) * model_.rules.d;
  }

  LayerRows dequantized(int i, int page, PageEntry from) const {
    LayerRows rows;
    const DeviceArray<std::int32_t> table(Ids(Model::kMaxPages, from.id)), one(Ids{1}), number(Ids{i}),
        n_protected(Ids{model_.rules.sink});
    const kvant_decode_shape shape = model_.shape(1, 1);
    kvant_decode_lengths lengths{};
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = one.get();
    for (int layer = 0; layer < Model::kLayers; ++layer) {
      kvant_decode_layer at = empty_layer();
      at.sealed = sealed_pages_of(table.get(), layer);
      at.protected_pages = plain_pages(number.get(), 1, *sinks_[layer]);
      at.sink = page == 0 ? model_.rules.sink : 0;
      lengths.protected_tokens = at.sink > 0 ? n_protected.get() : nullptr;
      const std::size_t size = static_cast<std::size_t>(kPageTokens) * Model::kKvHeads * model_.rules.d;
      const DeviceArray<std::uint16_t> keys(size), values(size);
      kvant_dequantization to{};
      to.struct_size = sizeof to;
      to.n_seqs = to.n_pages = 1;
      to.n_heads = Model::kKvHeads;
      to.keys = keys.get();
      to.values = values.get();
      to.token_stride = std::int64_t{Model::kKvHeads} * model_.rules.d;
      to.head_stride = model_.rules.d;
      EXPECT_EQ(kvant_dequantize(&shape, &lengths, &at, &to, nullptr), KVANT_OK) << kvant_last_error();
      rows.push_back(keys.read());
      rows.push_back(values.read());
    }
    return rows;
  }

  std::vector<std::byte> bytes_of(int layer, PageEntry entry) const {
    std::vector<std::byte> bytes(model_.sealed_bytes());
    check_cuda(cudaMemcpy(bytes.data(), sealed_[layer]->get() + entry.id * model_.sealed_bytes(),
                          bytes.size(), cudaMemcpyDeviceToHost),
               "copy from the GPU");
    return bytes;
  }

  // Returns the decoded values of a sealed page, [kPageTokens][d].
  std::vector<float> decoded(int layer, PageEntry entry, int side, int head) const {
    const std::vector<std::byte> bytes = bytes_of(layer, entry);
    const std::int64_t at = head * (model_.key_bytes() + model_.value_bytes()) + side * model_.key_bytes();
    const char* name = side == KVANT_KEY ? model_.rules.key : model_.rules.value;
    const Format& format = *find_format(name);
    DeviceFormat device;
    find_device_format(name, device);
    const int d = model_.rules.d;
    const auto of_side = static_cast<Side>(side);
    std::vector<std::byte> canonical(format.page_bytes(d));
    page_from_device(device, of_side, d, canonical.size(), bytes.data() + at, canonical.data());
    std::vector<float> rows(static_cast<std::size_t>(kPageTokens) * d);
    const PageContext context{d, {&host_codebooks_.constants, 0, head, of_side}};
    format.decode(canonical.data(), kPageTokens, context, rows.data());
    return rows;
  }

  // Returns the rows to which the last step's token attends, [tokens][d].
  std::vector<float> visible_rows(int i, int layer, int side, int head) const {
    const Seen& seen = seqs_[i].last;
    const int d = model_.rules.d, first_page = seen.first_token / kPageTokens;
    std::vector<float> rows;
    for (int page = first_page; page <= seen.token / kPageTokens; ++page) {
      std::vector<float> sealed;
      if (page < seen.sealed) sealed = decoded(layer, seen.entries[page - first_page], side, head);
      const int end = std::min(seen.token + 1, (page + 1) * kPageTokens);
      for (int token = std::max(seen.first_token, page * kPageTokens); token < end; ++token) {
        const bool is_sealed = page < seen.sealed && token >= model_.rules.sink;
        const float* row = is_sealed ? sealed.data() + static_cast<std::ptrdiff_t>(token % kPageTokens) * d
                                     : truth_of(i, layer, side, head, token);
        rows.insert(rows.end(), row, row + d);
      }
    }
    return rows;
  }

  const StepModel& model_;
  const Codebooks& host_codebooks_;
  int n_seqs_;
  NumberedEntries entries_;
  std::vector<Seq> seqs_;
  DeviceArray<std::uint16_t> key_codebooks_, value_codebooks_;
  Ids host_tables_;
  DeviceArray<std::int32_t> tables_, numbers_;
  // Holds keys, values and queries of each sequence. The arrays are reused for each layer.
  std::deque<DeviceArray<std::uint16_t>> rows_;
  DeviceArray<float> out_;  // outputs of one layer
  std::vector<float> last_out_[Model::kLayers];
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> sealed_, tails_, sinks_;  // [layers]
  std::size_t workspace_bytes_ = 0;
  std::unique_ptr<DeviceArray<std::byte>> workspace_;
};

}  // namespace kvant::cuda
