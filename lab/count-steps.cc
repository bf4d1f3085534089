// Repeats one piece of work a given number of times, for a count of its instructions by
// count-instructions.c. The difference of two counts leaves out the program's preparations. On one processor
// (taskset -c 0) a count is the same each time; otherwise waiting threads spin.
//
//   count_steps decode KERNELS K V TIMES      a token attends to 1,024 tokens: one KV head with four query
//                                             heads of 128 channels
//   count_steps prompt KERNELS K V TIMES      64 tokens attend to the same 1,024 tokens
//   count_steps encode KERNELS BITS TIMES     4 rows of 128 values become trellis codes
//   count_steps shaped KERNELS BITS TIMES     the same under a metric of queries
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "device/cpu/test_layer.h"
#include "format/shaped_encoder.h"
#include "format/trellis_encoder.h"

namespace kvant {
namespace {

constexpr int kRows = 4, kValues = 128;

constexpr device::cpu::LayerSizes kLayer{
    .d = kValues, .group = 4, .n_kv_heads = 1, .n_seqs = 1, .n_sealed = 8, .n_tail = 0};

void decode(const char* kernels, const char* key, const char* value, int times) {
  device::cpu::LayerSizes sizes = kLayer;
  if (std::string(key) == "bf16") sizes.n_tail = std::exchange(sizes.n_sealed, 0) * kPageTokens;
  device::cpu::TestLayer layer(sizes, key, value);
  layer.fill_sealed();
  for (int i = 0; i < times; ++i) layer.attend(kernels);
}

void prompt(const char* kernels, const char* key, const char* value, int times) {
  constexpr int kQueries = 64;
  device::cpu::TestLayer layer(kLayer, key, value);
  layer.fill_sealed();
  const std::vector<float> q = device::cpu::normal(std::size_t{kQueries} * kLayer.group * kValues, 1);
  std::vector<float> out(q.size());
  const std::int32_t query_begins[] = {0, kQueries}, token_begins[] = {0, 0},
                     sealed_begins[] = {0, kLayer.n_sealed};
  kvant_prompt_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = shape.n_kv_heads = shape.half_products = 1;
  shape.n_heads = kLayer.group;
  shape.head_dim = kValues;
  shape.n_queries = kQueries;
  shape.softmax_scale = layer.shape.softmax_scale;
  shape.n_sealed_pages = kLayer.n_sealed;
  shape.kernels = kernels;
  kvant_prompt_pages pages{};
  pages.struct_size = sizeof pages;
  pages.shape = &layer.shape;
  pages.layer = &layer.layer;
  pages.sealed_begins = sealed_begins;
  kvant_prompt work{};
  work.struct_size = sizeof work;
  work.query_begins = query_begins;
  work.token_begins = token_begins;
  work.q = q.data();
  work.out = out.data();
  work.q_type = work.out_type = KVANT_F32;
  work.q_token_stride = work.out_token_stride = std::int64_t{kLayer.group} * kValues;
  work.q_head_stride = work.out_head_stride = kValues;
  work.pages = &pages;
  for (int i = 0; i < times; ++i) {
    if (kvant_prompt_attention(&shape, &work, nullptr, 0, nullptr) != KVANT_OK) std::abort();
  }
}

void encode(bool fastest, int bits, int times) {
  const TrellisEncoder encoder(trellis_tables()[bits - 1], fastest ? best_viterbi() : portable_viterbi());
  const std::vector<float> values = device::cpu::normal(kRows * kValues, 1);
  std::vector<std::uint16_t> symbols(values.size());
  for (int i = 0; i < times; ++i) encoder.encode(values.data(), kRows, kValues, symbols.data());
}

void shaped(bool fastest, int bits, int times) {
  const ShapedEncoder encoder(trellis_tables()[bits - 1],
                              fastest ? best_shaped_search() : portable_shaped_search());
  const std::vector<float> values = device::cpu::normal(kRows * kValues, 1);
  const ErrorMetric metric(device::cpu::normal(kValues * kMetricRank, 2));
  std::vector<std::uint16_t> symbols(values.size());
  for (int i = 0; i < times; ++i) encoder.encode(values.data(), kRows, metric, symbols.data());
}

}  // namespace
}  // namespace kvant

int main(int n, char** words) {
  const std::string work = n > 1 ? words[1] : "";
  if (work == "decode" && n == 6) {
    kvant::decode(words[2], words[3], words[4], std::atoi(words[5]));
  } else if (work == "prompt" && n == 6) {
    kvant::prompt(words[2], words[3], words[4], std::atoi(words[5]));
  } else if ((work == "encode" || work == "shaped") && n == 5) {
    const bool fastest = std::string(words[2]) != "portable";
    (work == "encode" ? kvant::encode : kvant::shaped)(fastest, std::atoi(words[3]), std::atoi(words[4]));
  } else {
    std::fputs("usage: count_steps decode|prompt KERNELS K V TIMES | encode|shaped KERNELS BITS TIMES\n",
               stderr);
    return 2;
  }
  return 0;
}
