// Repeats one piece of work a given number of times, for a count of its instructions by
// count-instructions.c. The difference of two counts leaves out the program's preparations.
//
//   count_steps decode KERNELS K V TIMES      a token attends to 1,024 tokens: one KV head with four query
//                                             heads of 128 channels
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

void decode(const char* kernels, const char* key, const char* value, int times) {
  device::cpu::LayerSizes sizes{
      .d = kValues, .group = 4, .n_kv_heads = 1, .n_seqs = 1, .n_sealed = 8, .n_tail = 0};
  if (std::string(key) == "bf16") sizes.n_tail = std::exchange(sizes.n_sealed, 0) * kPageTokens;
  device::cpu::TestLayer layer(sizes, key, value);
  layer.fill_sealed();
  for (int i = 0; i < times; ++i) layer.attend(kernels);
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
  } else if ((work == "encode" || work == "shaped") && n == 5) {
    const bool fastest = std::string(words[2]) != "portable";
    (work == "encode" ? kvant::encode : kvant::shaped)(fastest, std::atoi(words[3]), std::atoi(words[4]));
  } else {
    std::fputs("usage: count_steps decode KERNELS K V TIMES | encode|shaped KERNELS BITS TIMES\n", stderr);
    return 2;
  }
  return 0;
}
