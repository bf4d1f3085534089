// Captures a step, whose lengths only the device knows, in a CUDA graph. The test replays the graph while
// sequences grow beyond pages, are replaced, are cut back, and pause. The step must leave the same bytes as a
// cache whose lengths the host knows (host_driven_cache.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string>

#include "cache/step_parts.h"
#include "device/cuda/test/host_driven_cache.h"
#include "kvant/kvant.h"

namespace kvant::cuda::captured_step_test {
namespace {

using Model = StepModel;

constexpr int kRequests = 5;
constexpr int kSteps = 300;
constexpr double kTolerance = .01;  // relative RMS error

// Holds the device's memory and the graph of a step.
class CapturedStep {
 public:
  CapturedStep(const StepModel& model, const Codebooks& codebooks)
      : model_(model),
        rules_(model.rules),
        codebooks_(codebooks),
        n_parts_(parts_of(rules_.max_new, rules_.max_queries)),
        n_seqs_(kRequests * n_parts_),
        n_rows_(kRequests * rules_.max_new),
        ring_(tail_pages_of(rules_.max_new, rules_.window)),
        memory_(bytes_of_memory()),
        key_codebooks_(codebooks.packed[0]),
        value_codebooks_(codebooks.packed[1]),
        seq_lens_(zeros(kRequests)),
        query_begins_(zeros(kRequests + 1)),
        slots_(std::vector<std::int64_t>(n_rows_)),
        blocks_(block_numbers(Model::kMaxPages)),
        tail_blocks_(block_numbers(ring_)),
        tail_places_(places(ring_)),
        sink_blocks_(block_numbers(1)),
        sink_places_(places(1)),
        state_(zeros(kRequests)),
        sealed_pages_(zeros(n_seqs_)),
        tail_tokens_(zeros(n_seqs_)),
        protected_tokens_(zeros(n_seqs_)),
        first_tokens_(zeros(n_seqs_)),
        part_begins_(zeros(n_seqs_ + 1)),
        row_seq_(zeros(n_rows_)),
        row_tail_token_(zeros(n_rows_)),
        due_tail_page_(zeros(kRequests)),
        due_sealed_page_(zeros(kRequests)),
        n_due_pages_(zeros(kRequests)),
        sealed_table_(zeros(n_seqs_ * Model::kMaxPages)),
        tail_table_(zeros(n_seqs_ * kEntries * ring_)),
        sink_table_(zeros(n_seqs_ * kEntries)),
        layer_offsets_(offsets()) {
    for (int i = 0; i < Model::kLayers; ++i) {
      for (int kind = 0; kind < 3; ++kind) rows_[kind].emplace_back(row_size(kind));
      out_.emplace_back(row_size(Model::queries));
    }
    EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    const kvant_decode_shape shape = model.shape(n_seqs_, rules_.max_queries);
    EXPECT_EQ(kvant_decode_workspace(&shape, &workspace_bytes_), KVANT_OK);
    workspace_.emplace(workspace_bytes_);
    launch_step(shape);  // the step has only padding, and loads the kernels
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    cudaGraph_t graph;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    launch_step(shape);
    check_cuda(cudaStreamEndCapture(stream_, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&step_, graph, 0), "graph");
    cudaGraphDestroy(graph);
  }
  ~CapturedStep() {
    cudaGraphExecDestroy(step_);
    cudaStreamDestroy(stream_);
  }
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  // Replays the step. `lens` holds the lengths of the requests, including new tokens. Request i has
  // new_tokens[i] new tokens. The first right[i] rows come from the model's sequence sequences[i], and the
  // other rows from another sequence.
  void run(const Ids& lens, const Ids& new_tokens, const Ids& sequences, const Ids& right) {
    Ids begins = {0};
    for (const int n : new_tokens) begins.push_back(begins.back() + n);
    std::vector<std::int64_t> slots(n_rows_, -1);
    for (int i = 0; i < kRequests; ++i) {
      const int first = rules_.max_new == 1 ? i : begins[i];
      for (int t = 0; t < new_tokens[i]; ++t) slots[first + t] = 1000 * i + t;
    }
    for (int layer = 0; layer < Model::kLayers; ++layer) {
      for (int kind = 0; kind < 3; ++kind) {
        const int n_heads = kind == Model::queries ? Model::kHeads : Model::kKvHeads;
        std::vector<std::uint16_t> rows(row_size(kind), 0x7fc0);  // NaN where there is no token
        for (int i = 0; i < kRequests; ++i) {
          const int first = rules_.max_new == 1 ? i : begins[i];
          for (int t = 0; t < new_tokens[i]; ++t) {
            // The rows of wrong drafts come from another sequence.
            const int sequence = t < right[i] ? sequences[i] : 100000 + sequences[i];
            for (int head = 0; head < n_heads; ++head) {
              const std::uint16_t* row = model_.row(sequence, layer, static_cast<Model::Kind>(kind), head,
                                                    lens[i] - new_tokens[i] + t);
              std::copy_n(row, rules_.d,
                          rows.data() + (static_cast<std::ptrdiff_t>(first + t) * n_heads + head) * rules_.d);
            }
          }
        }
        rows_[kind][layer].write(rows);
      }
    }
    first_rows_ = begins;
    seq_lens_.write(lens);
    query_begins_.write(begins);
    slots_.write(slots);
    check_cuda(cudaGraphLaunch(step_, stream_), "graph");
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    for (int layer = 0; layer < Model::kLayers; ++layer) last_out_[layer] = out_[layer].read();
  }
  // Returns the output of new token `t` of request `i`, [heads][d].
  std::vector<float> out(int layer, int i, int t) const {
    const std::ptrdiff_t size = std::ptrdiff_t{Model::kHeads} * rules_.d;
    const int row = (rules_.max_new == 1 ? i : first_rows_[i]) + t;
    return {last_out_[layer].begin() + row * size, last_out_[layer].begin() + (row + 1) * size};
  }

  // append_to_ring() and keep_sealed() write between steps, as a server does. append_to_ring() writes the
  // rows of a page, and keep_sealed() limits the number of pages that remain sealed.
  void append_to_ring(int i, int page, int n, const LayerRows& rows) {
    const Ids blocks = tail_blocks_.read();
    Ids ids, tokens;
    for (int entry = 0; entry < kEntries; ++entry)
      ids.push_back(blocks[i * ring_ + page % ring_] * kEntries + entry);
    for (int t = 0; t < n; ++t) tokens.push_back(t);
    const DeviceArray<std::int32_t> table(ids), seq(Ids(n, 0)), token(tokens);
    const kvant_decode_shape shape = model_.shape(1, 1);
    for (int layer = 0; layer < Model::kLayers; ++layer) {
      const DeviceArray<std::uint16_t> keys(rows[2 * layer]), values(rows[2 * layer + 1]);
      kvant_decode_layer at = at_layer(layer);
      at.tail = plain_pages(table.get(), kEntries, 1, layer, tail_begin());
      const kvant_new_rows appended = model_.new_rows(n, seq.get(), token.get(), keys.get(), values.get());
      EXPECT_EQ(kvant_append(&shape, &at, &appended, nullptr), KVANT_OK) << kvant_last_error();
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }
  void keep_sealed(int i, int n_pages) {
    Ids state = state_.read();
    state[i] = std::min(state[i], n_pages);
    state_.write(state);
  }

  std::vector<std::byte> sealed_page(int layer, int i, int page) const {
    std::vector<std::byte> bytes(model_.sealed_bytes());
    const std::int32_t block = blocks_.read()[i * Model::kMaxPages + page];
    check_cuda(cudaMemcpy(bytes.data(), memory_.get() + offsets()[layer] + block * model_.sealed_bytes(),
                          bytes.size(), cudaMemcpyDeviceToHost),
               "copy from the GPU");
    return bytes;
  }

 private:
  static constexpr int kEntries = 2 * Model::kKvHeads;  // entries of a tail page

  static Ids zeros(int n) { return Ids(n); }
  // Returns the block numbers of all requests in mixed order. Every number occurs once, because 7 divides
  // none of the counts.
  static Ids block_numbers(int of_request) {
    Ids numbers;
    for (int i = 0; i < kRequests * of_request; ++i)
      numbers.push_back((i * 7 + 3) % (kRequests * of_request));
    return numbers;
  }
  static Ids places(int ring) {
    Ids pairs;
    for (int page = 0; page < ring; ++page)
      for (int entry = 0; entry < kEntries; ++entry) pairs.push_back(page), pairs.push_back(entry);
    return pairs;
  }
  std::size_t row_size(int kind) const {
    return static_cast<std::size_t>(n_rows_) * (kind == Model::queries ? Model::kHeads : Model::kKvHeads) *
           rules_.d;
  }

  // A layer consists of its sealed pages, its tails and its sinks in this order. The distances between layers
  // differ.
  static constexpr std::int64_t kUneven = 4096;
  std::int64_t tail_begin() const {
    return std::int64_t{kRequests} * Model::kMaxPages * model_.sealed_bytes();
  }
  std::int64_t sink_begin() const {
    return tail_begin() + std::int64_t{kRequests} * ring_ * kEntries * model_.plain_bytes();
  }
  std::int64_t layer_bytes() const {
    return sink_begin() + std::int64_t{kRequests} * kEntries * model_.plain_bytes();
  }
  std::vector<std::int64_t> offsets() const {
    std::vector<std::int64_t> offsets;
    for (int layer = 0; layer < Model::kLayers; ++layer)
      offsets.push_back((Model::kLayers - 1 - layer) * (layer_bytes() + kUneven) + layer % 2 * kUneven);
    return offsets;
  }
  std::size_t bytes_of_memory() const {
    return static_cast<std::size_t>(Model::kLayers * (layer_bytes() + kUneven));
  }

  kvant_pages plain_pages(const std::int32_t* table, int seq_entries, int n_pages, int layer,
                          std::int64_t begin) const {
    return {table,
            std::int64_t{seq_entries} * n_pages,
            0,
            std::int64_t{2} * n_pages,
            n_pages,
            memory_.get() + begin + offsets()[layer],
            model_.plain_bytes(),
            0,
            0,
            0};
  }
  kvant_decode_layer at_layer(int layer) const {
    kvant_decode_layer at{};
    at.struct_size = sizeof at;
    at.sink = rules_.sink;
    at.key_codebooks = codebooks_.size[0] > 0 ? key_codebooks_.get() : nullptr;
    at.value_codebooks = codebooks_.size[1] > 0 ? value_codebooks_.get() : nullptr;
    at.key_codebook_stride = codebooks_.size[0];
    at.value_codebook_stride = codebooks_.size[1];
    at.sealed = {needs_tables() ? sealed_table_.get() : blocks_.get(),
                 Model::kMaxPages,
                 0,
                 0,
                 0,
                 memory_.get() + offsets()[layer],
                 model_.sealed_bytes(),
                 0,
                 model_.key_bytes() + model_.value_bytes(),
                 model_.key_bytes()};
    at.tail = plain_pages(tail_table_.get(), kEntries, ring_, layer, tail_begin());
    at.protected_pages = plain_pages(sink_table_.get(), kEntries, 1, layer, sink_begin());
    return at;
  }
  bool needs_tables() const { return n_parts_ > 1 || rules_.sliding_window > 0; }

  void plan() const {
    kvant_step_table sealed{sizeof sealed,    blocks_.get(),      Model::kMaxPages, nullptr, 0, 1, 1,
                            Model::kMaxPages, sealed_table_.get()};
    kvant_step_table tail{sizeof tail, tail_blocks_.get(), ring_, tail_places_.get(), ring_,
                          kEntries,    kEntries,           ring_, tail_table_.get()};
    kvant_step_table sinks{sizeof sinks, sink_blocks_.get(), 1, sink_places_.get(), 1,
                           kEntries,     kEntries,           1, sink_table_.get()};
    kvant_step step{};
    step.struct_size = sizeof step;
    step.n_requests = kRequests;
    step.max_new_tokens = rules_.max_new;
    step.max_queries = rules_.max_queries;
    step.n_seqs = n_seqs_;
    step.n_rows = n_rows_;
    step.window = rules_.window;
    step.sliding_window = rules_.sliding_window;
    step.sink = rules_.sink;
    step.seq_lens = seq_lens_.get();
    if (rules_.max_new > 1) step.query_begins = query_begins_.get();
    step.slots = slots_.get();
    if (rules_.window > 0) step.sealed_before = step.sealed_after = state_.get();
    step.sealed_pages = sealed_pages_.get();
    step.tail_tokens = tail_tokens_.get();
    step.protected_tokens = protected_tokens_.get();
    step.first_tokens = first_tokens_.get();
    step.part_begins = part_begins_.get();
    step.row_seq = row_seq_.get();
    step.row_tail_token = row_tail_token_.get();
    step.due_tail_page = due_tail_page_.get();
    step.due_sealed_page = due_sealed_page_.get();
    step.n_due_pages = n_due_pages_.get();
    if (needs_tables()) step.sealed = &sealed;
    step.tail = &tail;
    step.protected_pages = &sinks;
    EXPECT_EQ(kvant_plan_step(&step, stream_), KVANT_OK) << kvant_last_error();
  }

  void seal(int first_layer, int n_layers) const {
    kvant_decode_layer at = at_layer(first_layer);
    at.sealed.table = blocks_.get();
    at.tail.seq_stride *= n_parts_;
    at.protected_pages.seq_stride *= n_parts_;
    kvant_seal_range range{};
    range.struct_size = sizeof range;
    range.tail_page = due_tail_page_.get();
    range.sealed_page = due_sealed_page_.get();
    range.n_pages = n_due_pages_.get();
    range.max_pages = 1;
    range.n_layers = n_layers;
    range.keep_sink = 1;
    if (n_layers > 1) {
      const std::int64_t first = offsets()[first_layer];
      for (kvant_pages* pages : {&at.sealed, &at.tail, &at.protected_pages})
        pages->pool = static_cast<const std::byte*>(pages->pool) - first;
      range.layer_offsets = layer_offsets_.get();
    }
    const kvant_decode_shape shape = model_.shape(kRequests, 1);
    EXPECT_EQ(kvant_seal_pages(&shape, &at, &range, stream_), KVANT_OK) << kvant_last_error();
  }

  void launch_step(const kvant_decode_shape& shape) {
    plan();
    kvant_decode_lengths lengths{};
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = sealed_pages_.get();
    lengths.tail_tokens = tail_tokens_.get();
    if (rules_.sink > 0) lengths.protected_tokens = protected_tokens_.get();
    lengths.protected_seq_stride = 1;
    if (rules_.says_lengths) {
      lengths.max_tail_tokens = ring_ * kPageTokens;
      lengths.max_sealed_pages = Model::kMaxPages;
    }
    if (rules_.sliding_window > 0) lengths.first_tokens = first_tokens_.get();
    if (n_parts_ > 1) lengths.query_begins = part_begins_.get();
    EXPECT_EQ(kvant_decode_schedule(&shape, &lengths, workspace_->get(), workspace_bytes_, stream_),
              KVANT_OK);
    for (int layer = 0; layer < Model::kLayers; ++layer) {
      kvant_decode_layer at = at_layer(layer);
      at.q = rows_[Model::queries][layer].get();
      at.out = out_[layer].get();
      at.out_type = KVANT_F32;
      at.q_head_stride = at.out_head_stride = rules_.d;
      at.q_seq_stride = at.out_seq_stride = std::int64_t{Model::kHeads} * rules_.d;
      at.reproducible = 1;
      const bool is_one = n_parts_ == 1;
      const kvant_new_rows rows = model_.new_rows(
          n_rows_, is_one ? nullptr : row_seq_.get(), is_one ? nullptr : row_tail_token_.get(),
          rows_[Model::keys][layer].get(), rows_[Model::values][layer].get());
      if (is_one) {
        at.new_rows = &rows;
        at.settled = 1;
      } else {
        EXPECT_EQ(kvant_append(&shape, &at, &rows, stream_), KVANT_OK) << kvant_last_error();
        seal(layer, 1);
      }
      EXPECT_EQ(kvant_decode_attention(&shape, &lengths, &at, workspace_->get(), workspace_bytes_, stream_),
                KVANT_OK)
          << kvant_last_error();
    }
    if (n_parts_ > 1) return;
    const bool has_codebooks = codebooks_.size[0] > 0 || codebooks_.size[1] > 0;
    if (!has_codebooks) return seal(0, Model::kLayers);
    for (int layer = 0; layer < Model::kLayers; ++layer) seal(layer, 1);
  }

  const StepModel& model_;
  const StepCase& rules_;
  const Codebooks& codebooks_;
  int n_parts_, n_seqs_, n_rows_, ring_;
  DeviceArray<std::byte> memory_;
  DeviceArray<std::uint16_t> key_codebooks_, value_codebooks_;
  DeviceArray<std::int32_t> seq_lens_, query_begins_;
  DeviceArray<std::int64_t> slots_;
  DeviceArray<std::int32_t> blocks_, tail_blocks_, tail_places_, sink_blocks_, sink_places_, state_;
  DeviceArray<std::int32_t> sealed_pages_, tail_tokens_, protected_tokens_, first_tokens_, part_begins_,
      row_seq_, row_tail_token_, due_tail_page_, due_sealed_page_, n_due_pages_;
  DeviceArray<std::int32_t> sealed_table_, tail_table_, sink_table_;
  DeviceArray<std::int64_t> layer_offsets_;
  std::deque<DeviceArray<std::uint16_t>> rows_[3];  // [3][layers]
  std::deque<DeviceArray<float>> out_;
  std::size_t workspace_bytes_ = 0;
  std::optional<DeviceArray<std::byte>> workspace_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t step_ = nullptr;
  Ids first_rows_;
  std::array<std::vector<float>, Model::kLayers> last_out_;
};

// Starts, extends, cuts back and ends sequences in both the captured and the host-driven cache.
class Session {
 public:
  explicit Session(const StepCase& of)
      : model_(of),
        codebooks_(of.key, of.value, of.d, Model::kKvHeads, 5),
        captured_(model_, codebooks_),
        host_(model_, codebooks_, kRequests),
        random_(11) {}

  void run() {
    // With a window, pages are sealed later, so the test needs more steps.
    const int n_steps = model_.rules.window > 0 ? 2 * kSteps : kSteps;
    for (int step = 0; step < n_steps && !::testing::Test::HasFailure(); ++step) {
      for (int i = 0; i < kRequests; ++i) change(i, step);
      grow(step);
    }
    for (int i = 0; i < kRequests; ++i) compare_pages(i);
    EXPECT_GT(n_compared_, 0);
    EXPECT_TRUE(n_reopened_ > 0 || !can_cut());
    std::printf(
        "  %s + %s, d = %d: error %.4f, of sealing %.3f; %d pages sealed, %d reopened, %d sequences\n",
        model_.rules.key, model_.rules.value, model_.rules.d, worst_, worst_sealing_, n_compared_,
        n_reopened_, n_sequences_);
  }

 private:
  bool one_in(int n) { return random_() % n == 0; }
  // A sequence that is cut back may need pages again that a layer with a sliding window has freed.
  bool can_cut() const { return model_.rules.sliding_window == 0; }

  void change(int i, int step) {
    const int length = host_.length(i);
    const bool is_full = length + model_.rules.max_new > Model::kMaxTokens;
    if (!is_there_[i] ? one_in(6) : is_full || (step > 60 && one_in(200))) {
      compare_pages(i);
      host_.restart(i, ++n_sequences_);
      captured_.keep_sealed(i, 0);
      sequence_[i] = n_sequences_;
      is_there_[i] = true;
      // The prompt fills no page.
      const int n_prompt = 64 + static_cast<int>(random_() % 64);
      captured_.append_to_ring(i, 0, n_prompt, host_.append_prompt(i, n_prompt));
    } else if (is_there_[i] && length > 20 && can_cut() && one_in(40)) {
      const int n_sealed = host_.n_sealed(i);
      const auto less = [&](int most) { return static_cast<int>(random_() % std::min(length - 1, most)); };
      cut(i, n_sealed > 0 && one_in(3) ? n_sealed * kPageTokens - 1 - less(40) : length - 1 - less(12));
    }
  }

  void cut(int i, int n_tokens) {
    compare_pages(i);
    const LayerRows rows = host_.truncate(i, n_tokens);
    const int page = n_tokens / kPageTokens;
    captured_.keep_sealed(i, page);
    if (rows.empty()) return;
    captured_.append_to_ring(i, page, n_tokens % kPageTokens, rows);
    ++n_reopened_;
  }

  void grow(int step) {
    Ids lens(kRequests), new_tokens(kRequests), right(kRequests);
    for (int i = 0; i < kRequests; ++i) {
      const bool rests = !is_there_[i] || one_in(15);
      new_tokens[i] = rests ? 0 : 1 + static_cast<int>(random_() % model_.rules.max_new);
      right[i] = rests ? 0 : 1 + static_cast<int>(random_() % new_tokens[i]);
      // Padding is recognized by its slots, so any length is allowed.
      lens[i] = rests ? 77 : host_.length(i) + new_tokens[i];
    }
    captured_.run(lens, new_tokens, sequence_, right);
    for (int t = 0; t < model_.rules.max_new; ++t) {
      std::vector<bool> takes_part(kRequests);
      for (int i = 0; i < kRequests; ++i) takes_part[i] = t < right[i];
      host_.step(takes_part);
      for (int i = 0; i < kRequests; ++i)
        if (takes_part[i]) compare(i, t, step);
    }
  }

  void compare(int i, int t, int step) {
    for (int layer = 0; layer < Model::kLayers; ++layer) {
      const std::vector<float> out = captured_.out(layer, i, t), host = host_.out(layer, i);
      if (model_.rules.max_new == 1 && !model_.rules.says_lengths) {
        ASSERT_EQ(out, host) << "step " << step << ", sequence " << i << ", layer " << layer << ", "
                             << host_.length(i) << " tokens";
      }
      ASSERT_LE(error_of(out, {host.begin(), host.end()}), kTolerance)
          << "step " << step << ", sequence " << i << ", token " << t << ", layer " << layer << ", "
          << host_.length(i) << " tokens";
    }
    if ((step + 5 * i) % 32 != 0) return;
    const int layer = step / 32 % Model::kLayers;
    const double error = error_of(captured_.out(layer, i, t), host_.expected(layer, i));
    ASSERT_LE(error, kTolerance) << "step " << step << ", sequence " << i << ", layer " << layer << ", "
                                 << host_.length(i) << " tokens";
    worst_ = std::max(worst_, error);
    worst_sealing_ = std::max(worst_sealing_, host_.sealing_error(layer, i));
    ASSERT_LE(worst_sealing_, .6);
  }

  // Compares every sealed page of a sequence before the page is freed.
  void compare_pages(int i) {
    for (int page = host_.first_page(i); page < host_.n_sealed(i); ++page, ++n_compared_)
      for (int layer = 0; layer < Model::kLayers; ++layer)
        ASSERT_EQ(captured_.sealed_page(layer, i, page), host_.sealed_page(layer, i, page))
            << "sequence " << i << ", page " << page << ", layer " << layer;
  }

  static double error_of(const std::vector<float>& x, const std::vector<double>& expected) {
    double error = 0, energy = 1e-30;
    for (std::size_t j = 0; j < x.size(); ++j) {
      error += (x[j] - expected[j]) * (x[j] - expected[j]);
      energy += expected[j] * expected[j];
    }
    return std::sqrt(error / energy);
  }

  StepModel model_;
  Codebooks codebooks_;
  CapturedStep captured_;
  HostDrivenCache host_;
  std::mt19937 random_;
  std::array<bool, kRequests> is_there_{};
  Ids sequence_ = Ids(kRequests);
  int n_sequences_ = 0, n_reopened_ = 0, n_compared_ = 0;
  double worst_ = 0, worst_sealing_ = 0;
};

constexpr StepCase kCases[] = {
    // A case lists the members of StepCase in their order, which is formats, d, new tokens, queries, windows,
    // sink and says_lengths.
    {"ch4g128", "tok4g128", 128, 1, 1, 0, 0, 4}, {"tcq4", "tcq4", 128, 1, 1, 0, 0, 1},
    {"prog4", "prog4", 64, 1, 1, 0, 200, 0},     {"fp8", "lm3", 64, 1, 1, 100, 0, 0},
    {"vq-d4b8", "vq-d4b8", 128, 1, 1, 0, 0, 0},  {"ch4g128", "tok4g128", 128, 4, 4, 0, 0, 4},
    {"tcq2", "tcq3", 64, 5, 2, 0, 0, 1},         {"lm4", "lm4", 128, 3, 8, 0, 150, 0},
    {"tcq4", "tcq4", 128, 1, 1, 0, 0, 4, true},  {"ch4g128", "tok4g128", 64, 1, 1, 0, 200, 0, true},
    {"fp8", "lm3", 128, 1, 1, 100, 0, 0, true},
};

class CapturedGraph : public ::testing::TestWithParam<StepCase> {};

TEST_P(CapturedGraph, OfAWholeStepServesAnyLengths) {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no GPU";
  Session(GetParam()).run();
}

INSTANTIATE_TEST_SUITE_P(Steps, CapturedGraph, ::testing::ValuesIn(kCases), [](const auto& info) {
  const StepCase& of = info.param;
  std::string name = std::string(of.key) + "_" + of.value + "_new" + std::to_string(of.max_new) + "_window" +
                     std::to_string(of.window) + "_sliding" + std::to_string(of.sliding_window) +
                     (of.says_lengths ? "_short" : "");
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
});

}  // namespace
}  // namespace kvant::cuda::captured_step_test
