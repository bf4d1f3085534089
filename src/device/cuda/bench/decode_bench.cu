// Times decode attention per layer, for each pair of formats and each (sequences, context). The time is the
// median over replays of a CUDA graph that attends in several layers. Each layer has pages of its own, so the
// L2 cache holds none of the pages when a layer starts. The program also prints a limit for each time, which
// is the time that reading the same bytes alone takes.
//
//   decode_bench [--head-dim D] [--group G] [--kv-heads H] [--runs N] [--seqs B] [--context TOKENS]
//                [--shapes BxTOKENS,...]
//                [--tail TOKENS] [--settled 1] [--reproducible 1] [--protected PERCENT] [--correction 1]
//                [--sas 1] [--sharpness N] [--skip N] [--sink TOKENS] [--rotate q|o|qo] [--short 1]
//                [--queries N] [--between MB] [--block-layers N] [--json FILE] [KEY+VALUE[/KEY+VALUE...] ...]
//
// KV heads take the pairs between slashes in turn. --shapes lists the sequences and contexts to time.
// Otherwise, --seqs or --context alone selects shapes from kShapes. Together, both options define the only
// shape.
//
// --settled 1: Pages are read while the previous layer still ends.
// --tail: Each sequence has this many unquantized tokens after the sealed ones.
// --protected: This share of the sealed tokens, at random, is masked out of their pages and lies in
//   unquantized pages, as for VQuant.
// --correction 1: Attention includes KVLinC's correction. Each layer has maps and states of its own, which
//   the limit does not read.
// --sink: Each sequence has this many tokens in an unquantized page of their own.
// --rotate: A Hadamard matrix rotates queries before each layer's attention, outputs after it, or both, as
//   for recipes that rotate keys or values. In a real step, kvant_append rotates the queries.
// --short 1: Calls give the numbers of tail tokens and sealed pages, so kernels for short sequences may run.
// --queries: Each sequence has this many queries, and its pages are read once for all of them. The time
//   relative to one query is also printed.
// --between: Another kernel reads this many MB between two calls, as a model reads weights between layers.
//   Pages, tables and code then come from memory. The other kernel's time is subtracted.
// --block-layers: The pages of this many layers and of all KV heads lie together for each 128 tokens, as in
//   serving engines with blocks of all layers. Without the option, each page lies at a place of its own.
// --json: Results are also written to a file, one object a line.
#include <algorithm>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>

#include "cache/page_counts.h"
#include "device/cuda/bench/bench_options.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

constexpr int kUniquePages = 16;
// A graph reads at least this many bytes. No byte is then still in the L2 cache when the next replay reads it
// again.
constexpr std::size_t kColdBytes = 600UL << 20;
constexpr std::size_t kPoolBytes = 40UL << 30;

struct BatchShape {
  int seqs, context;
};
constexpr BatchShape kShapes[] = {{1, 32768},  {1, 131072}, {1, 196608}, {8, 32768},
                                  {8, 131072}, {64, 4096},  {64, 32768}};

struct Settings {
  int head_dim = 128;
  int group = 4;
  int kv_heads = 8;
  int runs = 15;
  // If not 0, only shapes with this many sequences are timed.
  int seqs = 0;
  // If not 0, only shapes with this many tokens a sequence are timed.
  int context = 0;
  int settled = 0;          // kvant_decode_layer::settled
  int reproducible = 0;     // kvant_decode_layer::reproducible
  int tail = 0;             // tokens
  int protected_share = 0;  // percent of the sealed tokens
  int correction = 0;
  int sas = 0;        // kvant_decode_shape::sas
  int sharpness = 1;  // factor of all scores
  // If not 0, values of pages whose weights are below 10^-skip are not read.
  int skip = 0;
  int sink = 0;  // tokens
  // Sets max_tail_tokens and max_sealed_pages of kvant_decode_lengths if nonzero.
  int says_lengths = 0;
  int queries = 1;  // queries of each sequence
  int between = 0;  // MB
  int block_layers = 0;
  std::string rotate;
  std::vector<BatchShape> shapes;
  std::string json;  // path of the file, or an empty string
  // Holds the text of all options except --json, as given.
  std::string options;
  std::vector<std::string> pairs;
};

// Fills the pool's entries with copies of the unique pages, taken in turn.
__global__ void fill_kernel(const uint4* unique, std::size_t entry_words, uint4* pool, std::size_t n_entries,
                            int n_unique) {
  for (std::size_t entry = blockIdx.x; entry < n_entries; entry += gridDim.x)
    for (std::size_t i = threadIdx.x; i < entry_words; i += blockDim.x)
      pool[entry * entry_words + i] = unique[entry % n_unique * entry_words + i];
}

__global__ void __launch_bounds__(256) read_kernel(const uint4* data, std::size_t n, uint4* out) {
  uint4 x[4];
  const std::size_t first = blockIdx.x * 1024UL + threadIdx.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = first + i * 256 < n ? __ldcs(data + first + i * 256) : uint4{};
  const std::uint32_t sum = (x[0].x ^ x[1].y ^ x[2].z ^ x[3].w) + (x[0].y ^ x[1].z ^ x[2].w ^ x[3].x);
  if (sum == 0x12345678) out[blockIdx.x] = x[0];
}

// Reads bytes into the L2 cache, which evicts its previous contents, as reading the weights of a model's
// layer does.
__global__ void __launch_bounds__(256) push_out_kernel(const uint4* data, std::size_t n, uint4* out) {
  std::uint32_t sum = 0;
  for (std::size_t i = blockIdx.x * 256UL + threadIdx.x; i < n; i += gridDim.x * 256UL) {
    const uint4 x = data[i];
    sum ^= x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == 0x12345678) out[blockIdx.x] = {sum, 0, 0, 0};
}

// Returns the median time of one call, in microseconds. A graph captures `layers` calls of launch(layer,
// stream).
template <class Launch>
double median_us(int layers, int runs, const Launch& launch) {
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int layer = 0; layer < layers; ++layer) launch(layer, stream);
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t start;
  cudaEvent_t stop;
  check_cuda(cudaEventCreate(&start), "event");
  check_cuda(cudaEventCreate(&stop), "event");
  std::vector<double> times;
  for (int run = -3; run < runs; ++run) {
    check_cuda(cudaEventRecord(start, stream), "event");
    check_cuda(cudaGraphLaunch(exec, stream), "graph");
    check_cuda(cudaEventRecord(stop, stream), "event");
    check_cuda(cudaStreamSynchronize(stream), "graph");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, start, stop), "event");
    if (run >= 0) times.push_back(ms * 1e3 / layers);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaStreamDestroy(stream);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Holds the unquantized pages of a graph's layers. All sequences and heads have equally many tokens.
struct PlainPages {
  std::unique_ptr<DeviceArray<std::byte>> pool;
  std::unique_ptr<DeviceArray<std::int32_t>> table;
  std::unique_ptr<DeviceArray<std::int32_t>> tokens;  // [n_seqs]
  kvant_pages pages{};
  std::size_t bytes_per_layer = 0;  // bytes that a kernel reads in one layer

  PlainPages(int layers, int n_seqs, int n_heads, int n_tokens, int d) {
    const std::size_t page_bytes = static_cast<std::size_t>(kPageTokens) * d * 2;
    const int n_pages = pages_for(n_tokens);
    const std::size_t entries = static_cast<std::size_t>(layers) * n_seqs * n_heads * n_pages;
    std::vector<std::byte> unique;
    const Codebooks none("bf16", "bf16", d, 1, 1);
    for (int i = 0; i < kUniquePages; ++i) {
      for (const Side side : kSides) {
        const EncodedPage page = encode_page("bf16", side, d, {}, none, 0, page_values(side, d, i));
        unique.insert(unique.end(), page.device.begin(), page.device.end());
      }
    }
    const DeviceArray<std::byte> device_unique(unique);
    pool = std::make_unique<DeviceArray<std::byte>>(entries * 2 * page_bytes);
    fill_kernel<<<1320, 256>>>(reinterpret_cast<const uint4*>(device_unique.get()), 2 * page_bytes / 16,
                               reinterpret_cast<uint4*>(pool->get()), entries, kUniquePages);
    check_cuda(cudaDeviceSynchronize(), "fill");
    std::vector<std::int32_t> ids(entries);
    std::iota(ids.begin(), ids.end(), 0);
    table = std::make_unique<DeviceArray<std::int32_t>>(ids);
    tokens = std::make_unique<DeviceArray<std::int32_t>>(std::vector<std::int32_t>(n_seqs, n_tokens));
    pages.table = table->get();
    pages.head_stride = n_pages;
    pages.seq_stride = static_cast<std::int64_t>(n_heads) * n_pages;
    pages.layer_stride = pages.seq_stride * n_seqs;
    pages.pool = pool->get();
    pages.page_stride = static_cast<std::int64_t>(2 * page_bytes);
    pages.side_offset = static_cast<std::int64_t>(page_bytes);
    bytes_per_layer = static_cast<std::size_t>(n_seqs) * n_heads * ((n_tokens + 15) / 16 * 16) * d * 4;
  }
};

// Holds the feature maps and states of a graph's layers.
class Corrections {
 public:
  Corrections(int layers, const kvant_decode_shape& shape)
      : map_size_(std::size_t{256} * shape.head_dim * shape.n_kv_heads * shape.group),
        state_size_(std::size_t{256} * (shape.head_dim + 1)),
        layer_states_(state_size_ * shape.n_kv_heads * shape.n_seqs),
        n_kv_heads_(shape.n_kv_heads),
        maps_(layers * map_size_),
        states_(layers * layer_states_) {
    constexpr int kByte = 0x3c;  // F32 numbers whose bytes are all 0x3c are near 0.01
    check_cuda(cudaMemset(maps_.get(), kByte, layers * map_size_ * sizeof(float)), "maps");
    check_cuda(cudaMemset(states_.get(), kByte, layers * layer_states_ * sizeof(float)), "states");
  }

  kvant_correction of_layer(int layer) const {
    kvant_correction correction{};
    correction.struct_size = sizeof correction;
    correction.query_maps = maps_.get() + layer * map_size_;
    correction.states = states_.get() + layer * layer_states_;
    correction.state_head_stride = static_cast<std::int64_t>(state_size_);
    correction.state_seq_stride = static_cast<std::int64_t>(state_size_ * n_kv_heads_);
    return correction;
  }

 private:
  std::size_t map_size_, state_size_, layer_states_;  // sizes in numbers
  int n_kv_heads_;
  DeviceArray<float> maps_, states_;
};

struct FormatPair {
  std::string key, value;
};

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings), pool_(kPoolBytes), junk_(1 << 20) {}

  // Times all shapes for the pairs of formats in `name`, which KV heads take in turn.
  void run_pairs(const std::string& name) {
    const int d = settings_.head_dim;
    const std::vector<FormatPair> pairs = parse_pairs(name);
    const auto n_pairs = static_cast<int>(pairs.size());
    const bool plain = pairs[0].key == "bf16" && pairs[0].value == "bf16";
    if (settings_.block_layers > 0 && settings_.kv_heads % n_pairs != 0) {
      std::fprintf(stderr, "--block-layers needs as many KV heads as %d pairs, or a multiple\n", n_pairs);
      std::exit(2);
    }
    const Codebooks codebooks(pairs[0].key, pairs[0].value, d, settings_.kv_heads, 3);
    // All entries of the pool have one size, which fits every pair.
    std::size_t key_bytes = 0;
    std::size_t value_bytes = 0;
    for (const FormatPair& pair : pairs) {
      key_bytes = std::max(key_bytes, kvant_page_bytes(pair.key.c_str(), d));
      value_bytes = std::max(value_bytes, kvant_page_bytes(pair.value.c_str(), d));
    }
    const std::size_t entry = (key_bytes + value_bytes + 127) / 128 * 128;
    const int n_unique = kUniquePages / n_pairs * n_pairs;
    // Entry i of the pool belongs to pair i % n_pairs.
    std::vector<std::byte> unique(n_unique * entry);
    for (int i = 0; i < n_unique; ++i) {
      for (const Side side : kSides) {
        const FormatPair& pair = pairs[i % n_pairs];
        const EncodedPage page = encode_page(side == Side::key ? pair.key : pair.value, side, d, {},
                                             codebooks, 0, page_values(side, d, i));
        std::copy(
            page.device.begin(), page.device.end(),
            unique.begin() + static_cast<std::ptrdiff_t>(i * entry + (side == Side::key ? 0 : key_bytes)));
      }
    }
    const DeviceArray<std::byte> device_unique(unique);
    fill_kernel<<<1320, 256>>>(reinterpret_cast<const uint4*>(device_unique.get()), entry / 16,
                               reinterpret_cast<uint4*>(pool_.get()), kPoolBytes / entry, n_unique);
    check_cuda(cudaDeviceSynchronize(), "fill");
    const DeviceArray<std::uint16_t> key_codebooks(codebooks.packed[0]), value_codebooks(codebooks.packed[1]);

    for (const BatchShape& batch : shapes()) {
      const int pages = plain ? pages_for(batch.context) : batch.context / kPageTokens;
      const std::size_t per_layer = static_cast<std::size_t>(batch.seqs) * settings_.kv_heads * pages;
      std::size_t bytes = 0;
      std::vector<const char*> head_formats[2];
      for (int head = 0; head < settings_.kv_heads; ++head) {
        const FormatPair& pair = pairs[head % n_pairs];
        head_formats[0].push_back(pair.key.c_str());
        head_formats[1].push_back(pair.value.c_str());
        bytes += per_layer / settings_.kv_heads *
                 (kvant_page_bytes(pair.key.c_str(), d) + kvant_page_bytes(pair.value.c_str(), d));
      }
      const int layers = static_cast<int>(std::max<std::size_t>(2, (kColdBytes + bytes - 1) / bytes));
      const std::size_t block_layers = std::max(settings_.block_layers, 1);
      const std::size_t pool_layers = (layers + block_layers - 1) / block_layers * block_layers;
      if (pool_layers * (per_layer + pages * batch.seqs * n_pairs) * entry > kPoolBytes) continue;
      const std::vector<std::int32_t> ids = settings_.block_layers > 0
                                                ? ids_in_blocks(layers, batch.seqs, pages)
                                                : page_ids(layers * batch.seqs, pages, n_pairs);
      const DeviceArray<std::int32_t> table(ids);
      const DeviceArray<std::int32_t> lengths_array(
          std::vector<std::int32_t>(batch.seqs, plain ? batch.context : pages));
      const int n_heads = settings_.kv_heads * settings_.group;
      std::vector<std::uint16_t> q(static_cast<std::size_t>(batch.seqs) * settings_.queries * n_heads * d);
      std::mt19937 random(4);
      std::normal_distribution<float> normal;
      for (std::uint16_t& x : q) x = bf16_from_float(normal(random));
      const DeviceArray<std::uint16_t> device_q(q), out(q.size());

      kvant_decode_shape shape{};
      shape.struct_size = sizeof shape;
      shape.n_seqs = batch.seqs;
      shape.n_kv_heads = settings_.kv_heads;
      shape.group = settings_.group;
      shape.head_dim = d;
      shape.softmax_scale = static_cast<float>(settings_.sharpness) / std::sqrt(static_cast<float>(d));
      shape.skip_threshold = settings_.skip == 0 ? 0 : std::pow(10.0F, static_cast<float>(-settings_.skip));
      shape.head_key_formats = head_formats[0].data();
      shape.head_value_formats = head_formats[1].data();
      shape.sas = settings_.sas;
      kvant_decode_lengths lengths{};
      lengths.struct_size = sizeof lengths;
      (plain ? lengths.tail_tokens : lengths.sealed_pages) = lengths_array.get();
      if (settings_.says_lengths != 0) {
        lengths.max_tail_tokens = plain ? batch.context : settings_.tail;
        lengths.max_sealed_pages = plain ? 0 : pages;
      }
      kvant_decode_layer layer{};
      layer.struct_size = sizeof layer;
      layer.settled = settings_.settled;
      layer.reproducible = settings_.reproducible;
      kvant_pages& source = plain ? layer.tail : layer.sealed;
      source.table = table.get();
      source.layer_stride = static_cast<std::int64_t>(per_layer);
      source.seq_stride = static_cast<std::int64_t>(settings_.kv_heads) * pages;
      source.head_stride = pages;
      source.pool = pool_.get();
      source.page_stride = static_cast<std::int64_t>(entry);
      source.side_offset = static_cast<std::int64_t>(key_bytes);
      layer.key_codebooks = key_codebooks.get();
      layer.value_codebooks = value_codebooks.get();
      layer.key_codebook_stride = codebooks.size[0];
      layer.value_codebook_stride = codebooks.size[1];
      layer.q = device_q.get();
      layer.out = out.get();
      layer.q_seq_stride = layer.out_seq_stride = n_heads * d;
      layer.q_head_stride = layer.out_head_stride = d;
      std::unique_ptr<PlainPages> tail, protected_rows;
      if (settings_.sink > 0 && !plain) {
        protected_rows =
            std::make_unique<PlainPages>(layers, batch.seqs, settings_.kv_heads, settings_.sink, d);
        lengths.protected_tokens = protected_rows->tokens->get();
        lengths.protected_seq_stride = 1;
        layer.protected_pages = protected_rows->pages;
        layer.sink = settings_.sink;
        bytes += protected_rows->bytes_per_layer;
      }
      std::unique_ptr<DeviceArray<std::uint32_t>> masks;
      if (settings_.tail > 0 && !plain) {
        tail = std::make_unique<PlainPages>(layers, batch.seqs, settings_.kv_heads, settings_.tail, d);
        lengths.tail_tokens = tail->tokens->get();
        layer.tail = tail->pages;
        bytes += tail->bytes_per_layer;
      }
      if (settings_.protected_share > 0 && !plain) {
        const int tokens = batch.context * settings_.protected_share / 100;
        protected_rows = std::make_unique<PlainPages>(layers, batch.seqs, settings_.kv_heads, tokens, d);
        lengths.protected_tokens = protected_rows->tokens->get();
        lengths.protected_seq_stride = 1;
        layer.protected_pages = protected_rows->pages;
        std::vector<std::uint32_t> words(per_layer * 4);
        for (std::size_t i = 0; i < words.size() * 32; ++i)
          if (random() % 100 < static_cast<unsigned>(settings_.protected_share))
            words[i / 32] |= 1U << (i % 32);
        masks = std::make_unique<DeviceArray<std::uint32_t>>(words);
        layer.masks = masks->get();
        layer.mask_seq_stride = static_cast<std::int64_t>(settings_.kv_heads) * pages;
        layer.mask_head_stride = pages;
        bytes += protected_rows->bytes_per_layer + words.size() * 4;
      }
      std::unique_ptr<Corrections> corrections;
      if (settings_.correction != 0) {
        corrections = std::make_unique<Corrections>(layers, shape);
        shape.corrected = 1;
      }
      shape.max_queries = settings_.queries;
      std::size_t workspace_bytes = 0;
      expect_ok(kvant_decode_workspace(&shape, &workspace_bytes));
      const DeviceArray<std::uint8_t> workspace(workspace_bytes);
      expect_ok(kvant_decode_schedule(&shape, &lengths, workspace.get(), workspace_bytes, nullptr));
      check_cuda(cudaDeviceSynchronize(), "schedule");
      const DeviceArray<std::uint64_t> skip_counts(std::vector<std::uint64_t>(2, 0));
      if (settings_.skip != 0) layer.skip_counts = skip_counts.get();
      kvant_transformation rotation{};
      rotation.struct_size = sizeof rotation;
      rotation.n_rows = batch.seqs * settings_.queries;
      rotation.n_heads = n_heads;
      rotation.head_dim = d;
      rotation.row_stride = static_cast<std::int64_t>(n_heads) * d;
      rotation.head_stride = d;
      rotation.hadamard = 1;
      rotation.rows = device_q.get();
      const auto rotates = [&](char which) { return settings_.rotate.find(which) != std::string::npos; };
      layer.out_hadamard = rotates('o') ? 1 : 0;
      const auto attend = [&](int i, cudaStream_t stream) {
        layer.layer = i;
        if (rotates('q')) expect_ok(kvant_transform(&rotation, stream));
        kvant_correction correction;
        if (corrections != nullptr) {
          correction = corrections->of_layer(i);
          layer.correction = &correction;
        }
        expect_ok(kvant_decode_attention(&shape, &lengths, &layer, workspace.get(), workspace_bytes, stream));
      };
      const double us = settings_.between == 0 ? median_us(layers, settings_.runs, attend)
                                               : median_us_between(layers, attend);
      if (settings_.queries > 1) {
        shape.max_queries = 1;
        expect_ok(kvant_decode_schedule(&shape, &lengths, workspace.get(), workspace_bytes, nullptr));
        const double of_one = median_us(layers, settings_.runs, attend);
        std::printf("%d queries: %.2f times the %.1f us of one\n", settings_.queries, us / of_one, of_one);
      }
      const double limit = median_us(layers, settings_.runs, [&](int i, cudaStream_t stream) {
        read_kernel<<<static_cast<unsigned>((bytes / 16 + 1023) / 1024), 256, 0, stream>>>(
            reinterpret_cast<const uint4*>(pool_.get() + i * bytes), bytes / 16, junk_.get());
      });
      report({name, batch, us, limit, bytes,
              8.0 * static_cast<double>(bytes) / (static_cast<double>(per_layer) * 2 * kPageTokens * d)});
      if (settings_.skip != 0) {
        const std::vector<std::uint64_t> counts = skip_counts.read();
        std::printf(
            "  of %zu pages of values, %.1f %% skipped\n", static_cast<std::size_t>(counts[0]),
            counts[0] == 0 ? 0 : 100.0 * static_cast<double>(counts[1]) / static_cast<double>(counts[0]));
      }
      std::fflush(stdout);
    }
  }

 private:
  // Returns the median time of one call when another kernel runs between calls. The time of the other kernel
  // is subtracted.
  template <class Attend>
  double median_us_between(int layers, const Attend& attend) const {
    const std::size_t words = (static_cast<std::size_t>(settings_.between) << 20) / sizeof(uint4);
    // The pages are in the first half of the pool, so the other kernel reads the second half.
    const std::size_t half = kPoolBytes / sizeof(uint4) / 2;
    const auto push_out = [&](int i, cudaStream_t stream) {
      push_out_kernel<<<528, 256, 0, stream>>>(
          reinterpret_cast<const uint4*>(pool_.get()) + half + i % (half / words) * words, words,
          junk_.get());
    };
    const int calls = std::min(layers, 100);
    const double of_both = median_us(calls, settings_.runs, [&](int i, cudaStream_t stream) {
      push_out(i, stream);
      attend(i, stream);
    });
    return of_both - median_us(calls, settings_.runs, push_out);
  }

  std::vector<BatchShape> shapes() const {
    if (!settings_.shapes.empty()) return settings_.shapes;
    if (settings_.seqs != 0 && settings_.context != 0) return {{settings_.seqs, settings_.context}};
    std::vector<BatchShape> chosen;
    for (const BatchShape& batch : kShapes)
      if ((settings_.seqs == 0 || batch.seqs == settings_.seqs) &&
          (settings_.context == 0 || batch.context == settings_.context))
        chosen.push_back(batch);
    return chosen;
  }

  struct Result {
    std::string formats;
    BatchShape batch;
    double us, limit_us;
    std::size_t bytes;  // bytes that one layer's attention reads
    double bits;        // bits of one key or value
  };

  void report(const Result& result) const {
    const auto [formats, batch, us, limit, bytes, bits] = result;
    std::printf("%-23s d%-3d G%d (%2d, %6d) %9.1f us  limit %8.1f us  %3.0f %%  %5.0f GB/s  %.2f bits\n",
                formats.c_str(), settings_.head_dim, settings_.group, batch.seqs, batch.context, us, limit,
                100 * limit / us, static_cast<double>(bytes) / us / 1e3, bits);
    if (settings_.json.empty()) return;
    std::FILE* file = std::fopen(settings_.json.c_str(), "a");
    if (file == nullptr) {
      std::fprintf(stderr, "decode_bench: cannot write to %s\n", settings_.json.c_str());
      std::exit(1);
    }
    std::fprintf(
        file,
        "{\"what\":\"kvant %s\",\"options\":\"%s\",\"head_dim\":%d,\"group\":%d,\"kv_heads\":%d,\"seqs\":%d,"
        "\"context\":%d,\"us\":%.2f,\"limit_us\":%.2f,\"bytes\":%zu,\"bits\":%.3f}\n",
        formats.c_str(), settings_.options.c_str(), settings_.head_dim, settings_.group, settings_.kv_heads,
        batch.seqs, batch.context, us, limit, bytes, bits);
    std::fclose(file);
  }

  static std::vector<FormatPair> parse_pairs(const std::string& names) {
    std::vector<FormatPair> pairs;
    std::stringstream stream(names);
    for (std::string pair; std::getline(stream, pair, '/');)
      pairs.push_back({pair.substr(0, pair.find('+')), pair.substr(pair.find('+') + 1)});
    return pairs;
  }

  // Returns the numbers of entries of the pool, [n_seqs][kv_heads][pages], in random order. Every entry
  // belongs to the pair of its KV head.
  std::vector<std::int32_t> page_ids(int n_seqs, int pages, int n_pairs) const {
    const std::size_t maximum =
        static_cast<std::size_t>(n_seqs) * ((settings_.kv_heads + n_pairs - 1) / n_pairs) * pages;
    std::mt19937 random(9);
    std::vector<std::vector<std::int32_t>> of_pair(n_pairs, std::vector<std::int32_t>(maximum));
    for (int pair = 0; pair < n_pairs; ++pair) {
      for (std::size_t i = 0; i < maximum; ++i)
        of_pair[pair][i] = static_cast<std::int32_t>(i * n_pairs + pair);
      std::shuffle(of_pair[pair].begin(), of_pair[pair].end(), random);
    }
    std::vector<std::int32_t> ids;
    for (int i = 0; i < n_seqs * settings_.kv_heads; ++i) {
      std::vector<std::int32_t>& left = of_pair[i % settings_.kv_heads % n_pairs];
      ids.insert(ids.end(), left.end() - pages, left.end());
      left.resize(left.size() - pages);
    }
    return ids;
  }

  // Returns the numbers of entries of the pool, [layers][n_seqs][kv_heads][pages]. A block of entries has the
  // pages of block_layers layers and all KV heads. Blocks are in random order.
  std::vector<std::int32_t> ids_in_blocks(int layers, int n_seqs, int pages) const {
    const int of_block = settings_.block_layers, heads = settings_.kv_heads;
    std::vector<std::int32_t> blocks((layers + of_block - 1) / of_block * n_seqs * pages);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(9));
    std::vector<std::int32_t> ids;
    for (int layer = 0; layer < layers; ++layer) {
      for (int seq = 0; seq < n_seqs; ++seq) {
        const std::int32_t* own = blocks.data() + (layer / of_block * n_seqs + seq) * pages;
        for (int head = 0; head < heads; ++head)
          for (int page = 0; page < pages; ++page)
            ids.push_back((own[page] * of_block + layer % of_block) * heads + head);
      }
    }
    return ids;
  }

  static void expect_ok(kvant_status status) {
    if (status == KVANT_OK) return;
    std::fprintf(stderr, "%s %s\n", kvant_status_text(status), cudaGetErrorString(cudaGetLastError()));
    std::exit(1);
  }

  Settings settings_;
  DeviceArray<std::byte> pool_;
  DeviceArray<uint4> junk_;
};

// Reads a list like 1x512,16x2048. Ends the program with an error message if the list has a different form.
std::vector<BatchShape> read_shapes(const std::string& list) {
  std::vector<BatchShape> shapes;
  std::stringstream stream(list);
  for (std::string text; std::getline(stream, text, ',');) {
    BatchShape shape{};
    char rest = 0;
    if (std::sscanf(text.c_str(), "%dx%d%c", &shape.seqs, &shape.context, &rest) != 2 || shape.seqs < 1 ||
        shape.context < kPageTokens) {
      std::fprintf(stderr, "--shapes: %s is no shape such as 16x2048, with at least %d tokens\n",
                   text.c_str(), kPageTokens);
      std::exit(2);
    }
    shapes.push_back(shape);
  }
  return shapes;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  std::string shapes;
  BenchCommand command =
      parse_bench(argc, argv,
                  {{"--head-dim", &settings.head_dim},
                   {"--group", &settings.group},
                   {"--kv-heads", &settings.kv_heads},
                   {"--runs", &settings.runs},
                   {"--seqs", &settings.seqs},
                   {"--context", &settings.context},
                   {"--settled", &settings.settled},
                   {"--reproducible", &settings.reproducible},
                   {"--tail", &settings.tail},
                   {"--correction", &settings.correction},
                   {"--sas", &settings.sas},
                   {"--sharpness", &settings.sharpness},
                   {"--skip", &settings.skip},
                   {"--protected", &settings.protected_share},
                   {"--sink", &settings.sink},
                   {"--short", &settings.says_lengths},
                   {"--queries", &settings.queries},
                   {"--between", &settings.between},
                   {"--block-layers", &settings.block_layers}},
                  {{"--rotate", &settings.rotate}, {"--json", &settings.json}, {"--shapes", &shapes}});
  settings.shapes = read_shapes(shapes);
  settings.pairs = std::move(command.names);
  for (const auto& [option, value] : command.options) {
    if (option != "--json" && option != "--shapes")
      settings.options += (settings.options.empty() ? "" : " ") + option + " " + value;
  }
  if (settings.pairs.empty())
    settings.pairs = {"bf16+bf16",
                      "ch4g128+tok4g128",
                      "prog4+prog4",
                      "prog2+prog2",
                      "prog3+prog3",
                      "prog5+prog5",
                      "fp8+fp8",
                      "tok8g128+tok8g128",
                      "prog4+prog4/prog2+prog2",
                      "ch4g128+tok2g128",
                      "ch2g128+tok2g128",
                      "lm4+lm4",
                      "lm3+lm3",
                      "lm2+lm2",
                      "vq-d2b8+vq-d2b8",
                      "vq-d4b12+vq-d4b12",
                      "vq-d4b8+vq-d4b8",
                      "nvq-d4b8+nvq-d4b8",
                      "nvq-d4b10+nvq-d4b10",
                      "vq-d4b10+vq-d8b12",
                      "vq-d8b12+vq-d8b12",
                      "vq-d8b12+vq-d8b8",
                      "tcq6+tcq6",
                      "tcq5+tcq4",
                      "tcq4+tcq4",
                      "tcq4+tcq3",
                      "tcq4+tcq2",
                      "tcq3+tcq3",
                      "tcq3+tcq2",
                      "tcq2+tcq2",
                      "tcq1+tcq1"};
  return settings;
}

}  // namespace
}  // namespace kvant::cuda

int main(int argc, char** argv) {
  const kvant::cuda::Settings settings = kvant::cuda::parse(argc, argv);
  kvant::cuda::Bench bench(settings);
  for (const std::string& name : settings.pairs) bench.run_pairs(name);
}
