// Times causal prefill attention, and prints microseconds and TFLOP/s for each precision, head size and
// shape. The time is the median over runs and includes making tiles. TFLOP/s count only products of rows with
// tokens to which the rows attend.
//
//   prompt_bench [--heads H] [--kv-heads H] [--runs N] [--softcap C] [--sas 1] [--prog 1] [--protect P] [D
//   ...]
//
// Sealed pages are ch4g128 and tok4g128, or prog4 with --prog 1. --protect protects P percent of the sealed
// tokens, chosen at random. Integer products are then timed twice: with protected tokens in the tiles of
// their pages, and with protected tokens in half precision next to the tiles. With --protect, the bench also
// times weighing tokens by 64 queries.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

#include "cache/page_counts.h"
#include "device/cuda/bench/bench_options.h"
#include "device/cuda/bench/median_time.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/encoded_pages.h"
#include "kvant/kvant.h"

namespace kvant::cuda {
namespace {

// Names the formats of keys and of values.
using PageFormats = const char* [2];
constexpr PageFormats kGrids = {"ch4g128", "tok4g128"}, kProgressive = {"prog4", "prog4"};

struct Settings {
  int heads = 32;
  int kv_heads = 8;
  int runs = 7;
  int softcap = 0;
  int sas = 0;
  int prog = 0;
  int protect = 0;
  std::vector<int> head_dims;
};

// Describes a batch of prompts. Each sequence has `sealed` tokens in sealed pages, and then `prompt` tokens,
// which attend.
struct Shape {
  int sequences, sealed, prompt;
};
constexpr Shape kShapes[] = {{1, 0, 2048}, {4, 0, 2048},  {1, 0, 8192},
                             {2, 0, 8192}, {1, 0, 32768}, {1, 30720, 2048}};

// Only this many pages are distinct, and the other pages are copies.
constexpr int kUnique = 8;

// Returns Gaussian rows in BF16, [tokens][heads][d].
std::vector<std::uint16_t> gaussian_rows(int tokens, int heads, int d) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(tokens) * heads * d);
  const std::size_t unique = std::min<std::size_t>(rows.size(), 1009 * d);  // 1009 is prime, so heads differ
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = i < unique ? bf16_from_float(normal(random)) : rows[i - unique];
  return rows;
}

// Holds sealed pages in GPU memory, [heads][pages][side], and their protected tokens, if any.
struct SealedPages {
  SealedPages(const PageFormats& formats, int kv_heads, int n_pages, int d, int protect)
      : codebooks(formats[0], formats[1], d, kv_heads, 3) {
    std::vector<std::byte> unique[2];
    for (const Side side : kSides)
      for (int i = 0; i < kUnique; ++i) {
        const char* format = formats[static_cast<int>(side)];
        const EncodedPage page = encode_page(format, side, d, {}, codebooks, 0, page_values(side, d, i));
        bytes[static_cast<int>(side)] = page.device.size();
        std::vector<std::byte>& all = unique[static_cast<int>(side)];
        all.insert(all.end(), page.device.begin(), page.device.end());
      }
    std::vector<std::byte> all;
    for (int i = 0; i < kv_heads * n_pages; ++i)
      for (int side = 0; side < 2; ++side) {
        const auto first = unique[side].begin() + static_cast<std::ptrdiff_t>(i % kUnique * bytes[side]);
        all.insert(all.end(), first, first + static_cast<std::ptrdiff_t>(bytes[side]));
      }
    pool = std::make_unique<DeviceArray<std::byte>>(all);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(kv_heads) * n_pages);
    std::iota(ids.begin(), ids.end(), 0);
    table = std::make_unique<DeviceArray<std::int32_t>>(ids);
    shape = {sizeof shape, 1, kv_heads, 1, d, 1.0F, formats[0], formats[1]};
    layer.struct_size = sizeof layer;
    layer.sealed.table = table->get();
    layer.sealed.head_stride = n_pages;
    layer.sealed.pool = pool->get();
    layer.sealed.side_offset = static_cast<std::int64_t>(bytes[0]);
    layer.sealed.page_stride = static_cast<std::int64_t>(bytes[0] + bytes[1]);
    if (protect > 0) add_protected(kv_heads, n_pages, d, protect);
  }

  // Protects `protect` percent of each head's tokens. Every head has protected pages for most_protected
  // tokens.
  void add_protected(int kv_heads, int n_pages, int d, int protect) {
    std::mt19937 random(5);
    std::vector<std::uint32_t> words(static_cast<std::size_t>(kv_heads) * n_pages * 4);
    for (int head = 0; head < kv_heads; ++head) {
      int count = 0;
      for (int t = 0; t < n_pages * kPageTokens; ++t) {
        if (static_cast<int>(random() % 100) >= protect) continue;
        words[(static_cast<std::size_t>(head) * n_pages * kPageTokens + t) / 32] |= 1U << t % 32;
        ++count;
      }
      most_protected = std::max(most_protected, count);
    }
    masks = std::make_unique<DeviceArray<std::uint32_t>>(words);
    const int pages = pages_for(most_protected);
    protected_pool =
        std::make_unique<DeviceArray<std::uint16_t>>(gaussian_rows(2 * pages * kPageTokens, kv_heads, d));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(kv_heads) * pages);
    std::iota(ids.begin(), ids.end(), 0);
    protected_table = std::make_unique<DeviceArray<std::int32_t>>(ids);
    layer.masks = masks->get();
    layer.mask_head_stride = n_pages;
    layer.protected_pages.table = protected_table->get();
    layer.protected_pages.head_stride = pages;
    layer.protected_pages.pool = protected_pool->get();
    layer.protected_pages.side_offset = std::int64_t{2} * kPageTokens * d;
    layer.protected_pages.page_stride = 2 * layer.protected_pages.side_offset;
  }

  Codebooks codebooks;
  std::size_t bytes[2];
  std::unique_ptr<DeviceArray<std::byte>> pool;
  std::unique_ptr<DeviceArray<std::int32_t>> table;
  kvant_decode_shape shape{};
  kvant_decode_layer layer{};
  int most_protected = 0;  // protected tokens of the head with the most of them
  std::unique_ptr<DeviceArray<std::uint32_t>> masks;
  std::unique_ptr<DeviceArray<std::uint16_t>> protected_pool;
  std::unique_ptr<DeviceArray<std::int32_t>> protected_table;
};

void check(kvant_status status) {
  if (status == KVANT_OK) return;
  std::fprintf(stderr, "prompt_bench: %s\n", kvant_last_error());
  std::exit(1);
}

// Selects a variant of attention. If `kept` is true, protected tokens are rows in half precision.
struct Way {
  bool half_products, kept;
};

void run_shape(const Settings& settings, int d, const Shape& of, const Way& way) {
  const bool half_products = way.half_products;
  kvant_prompt_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = of.sequences;
  shape.n_heads = settings.heads;
  shape.n_kv_heads = settings.kv_heads;
  shape.head_dim = d;
  const int rows = of.sequences * of.prompt;
  shape.n_queries = shape.n_tokens = rows;
  shape.softmax_scale = 1 / std::sqrt(static_cast<float>(d));
  shape.causal = 1;
  shape.sas = settings.sas;
  shape.n_sealed_pages = of.sequences * (of.sealed / kPageTokens);
  shape.half_products = half_products ? 1 : 0;
  shape.score_softcap = static_cast<float>(half_products ? settings.softcap : 0);
  const SealedPages sealed(settings.prog != 0 ? kProgressive : kGrids, settings.kv_heads,
                           std::max(shape.n_sealed_pages, 1), d, settings.protect);
  shape.n_kept_tokens = way.kept ? sealed.most_protected : 0;
  std::size_t bytes = 0;
  check(kvant_prompt_workspace(&shape, &bytes));
  const DeviceArray<unsigned char> workspace(bytes);
  const DeviceArray<std::uint16_t> q(gaussian_rows(rows, settings.heads, d)),
      k(gaussian_rows(rows, settings.kv_heads, d)), out(static_cast<std::size_t>(rows) * settings.heads * d);
  std::vector<std::int32_t> row_begins, page_begins;
  for (int i = 0; i <= of.sequences; ++i) {
    row_begins.push_back(i * of.prompt);
    page_begins.push_back(i * (of.sealed / kPageTokens));
  }
  const DeviceArray<std::int32_t> begins(row_begins), sealed_begins(page_begins);
  kvant_prompt_pages pages{};
  pages.struct_size = sizeof pages;
  pages.shape = &sealed.shape;
  pages.layer = &sealed.layer;
  pages.sealed_begins = sealed_begins.get();
  kvant_prompt prompt{};
  prompt.struct_size = sizeof prompt;
  prompt.query_begins = prompt.token_begins = begins.get();
  prompt.q = q.get();
  prompt.k = prompt.v = k.get();
  prompt.out = out.get();
  prompt.q_token_stride = prompt.out_token_stride = std::int64_t{settings.heads} * d;
  prompt.k_token_stride = prompt.v_token_stride = std::int64_t{settings.kv_heads} * d;
  prompt.q_head_stride = prompt.k_head_stride = prompt.v_head_stride = prompt.out_head_stride = d;
  if (of.sealed > 0) prompt.pages = &pages;
  const double us = median_us(settings.runs, "attention of prompts", [&] {
    check(kvant_prompt_attention(&shape, &prompt, workspace.get(), bytes, nullptr));
  });
  const double seen = rows * (of.sealed + 0.5 * of.prompt);  // tokens to which all rows of a head attend
  std::printf("d %3d  %d x %5d tokens after %5d sealed  %-8s %9.1f us  %6.1f TFLOP/s\n", d, of.sequences,
              of.prompt, of.sealed,
              half_products ? "half"
              : way.kept    ? "kept"
                            : "integers",
              us, 4 * seen * d * settings.heads / us / 1e6);
  std::fflush(stdout);
}

// Times how long it takes to weigh tokens by 64 queries, first with known LSEs and then with LSEs that the
// call computes.
void run_weights(const Settings& settings, int d, int n_tokens) {
  constexpr int kQueries = 64;
  const DeviceArray<std::uint16_t> keys(gaussian_rows(n_tokens, settings.kv_heads, d));
  const DeviceArray<float> q(
      std::vector<float>(static_cast<std::size_t>(kQueries) * settings.heads * d, 0.5F)),
      lse(static_cast<std::size_t>(kQueries) * settings.heads),
      weights(std::vector<float>(static_cast<std::size_t>(settings.kv_heads) * n_tokens));
  kvant_decode_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_kv_heads = settings.kv_heads;
  shape.group = settings.heads / settings.kv_heads;
  shape.head_dim = d;
  shape.softmax_scale = 1 / std::sqrt(static_cast<float>(d));
  kvant_token_weights w{};
  w.struct_size = sizeof w;
  w.n_queries = kQueries;
  w.n_tokens = n_tokens;
  w.n_visible = n_tokens - kQueries + 1;
  w.q_type = KVANT_F32;
  w.q = q.get();
  w.q_token_stride = std::int64_t{settings.heads} * d;
  w.q_head_stride = w.key_head_stride = d;
  w.lse = lse.get();
  w.lse_token_stride = settings.heads;
  w.lse_head_stride = 1;
  w.keys = keys.get();
  w.key_token_stride = std::int64_t{settings.kv_heads} * d;
  w.weights = weights.get();
  w.weight_head_stride = n_tokens;
  const auto weigh = [&] { check(kvant_weigh_tokens(&shape, &w, nullptr)); };
  const double known = median_us(settings.runs, "weights of tokens", weigh);
  w.found_lse = lse.get();
  const double found = median_us(settings.runs, "weights of tokens", weigh);
  std::printf("d %3d  weights of %5d tokens by %d queries %9.1f us  with log-sum-exps %9.1f us\n", d,
              n_tokens, kQueries, known, found);
  std::fflush(stdout);
}

Settings parse(int argc, char** argv) {
  Settings settings;
  const BenchCommand command = parse_bench(argc, argv,
                                           {{"--heads", &settings.heads},
                                            {"--kv-heads", &settings.kv_heads},
                                            {"--runs", &settings.runs},
                                            {"--softcap", &settings.softcap},
                                            {"--sas", &settings.sas},
                                            {"--prog", &settings.prog},
                                            {"--protect", &settings.protect}});
  for (const std::string& head_dim : command.names) settings.head_dims.push_back(std::atoi(head_dim.c_str()));
  if (settings.head_dims.empty()) settings.head_dims = {64, 128, 256};
  return settings;
}

void run(const Settings& settings) {
  for (const int d : settings.head_dims) {
    for (const bool half_products : {true, false})
      for (const Shape& shape : kShapes) run_shape(settings, d, shape, {half_products, /*kept=*/false});
    if (settings.protect == 0) continue;
    for (const Shape& shape : kShapes)
      if (shape.sealed > 0) run_shape(settings, d, shape, {/*half_products=*/false, /*kept=*/true});
    for (const int n_tokens : {2048, 32768}) run_weights(settings, d, n_tokens);
  }
}

}  // namespace
}  // namespace kvant::cuda

int main(int argc, char** argv) {
  kvant::cuda::run(kvant::cuda::parse(argc, argv));
}
