#include "bench/attention_bench.h"

#include <algorithm>

#include "bench/contender.h"
#include "bench/median.h"
#include "bench/rest.h"

namespace kvant {
namespace {

using Contenders = std::vector<std::unique_ptr<AttentionContender>>;

Result<Contenders> make_all(std::span<const AttentionEntry> entries, int context,
                            const std::function<void(int)>& advance) {
  Contenders contenders;
  for (const AttentionEntry& entry : entries) {
    auto made = entry.make(context);
    if (!made.ok()) return made.error();
    contenders.push_back(std::move(made).value());
    advance(1);
  }
  return contenders;
}

// Returns the seconds of each run, [contender][round].
Result<std::vector<std::vector<double>>> run_rounds(const Contenders& contenders, int n_rounds,
                                                    const std::function<void(int)>& advance) {
  std::vector<std::vector<double>> seconds(contenders.size());
  for (int round = 0; round < n_rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      rest();
      const auto taken = contenders[i]->layer_seconds();
      if (!taken.ok()) return taken.error();
      seconds[i].push_back(*taken);
      advance(1);
    }
  }
  return seconds;
}

}  // namespace

Result<std::vector<AttentionRow>> run_attention_bench(std::span<const AttentionEntry> entries,
                                                      std::span<const int> contexts, int repeats,
                                                      const std::function<void(int)>& advance) {
  KVANT_CHECK(repeats > 0, "a benchmark needs at least one run");
  std::vector<AttentionRow> rows;
  for (const int context : contexts) {
    const auto contenders = make_all(entries, context, advance);
    if (!contenders.ok()) return contenders.error();
    const auto warm_up = run_rounds(*contenders, 1, advance);
    if (!warm_up.ok()) return warm_up.error();
    const auto seconds = run_rounds(*contenders, repeats, advance);
    if (!seconds.ok()) return seconds.error();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const AttentionContender& c = *(*contenders)[i];
      rows.push_back({entries[i].name, context, c.bits(), c.n_layers(), median((*seconds)[i]),
                      c.layer_bytes(), c.kernels()});
    }
  }
  return rows;
}

int attention_bench_units(std::size_t n_entries, std::size_t n_contexts, int repeats) {
  return static_cast<int>(n_entries * n_contexts) * (2 + repeats);
}

bool is_rival(const AttentionRow& row) {
  return row.name.starts_with("ggml:");
}

const AttentionRow* fastest_rival(std::span<const AttentionRow> rows, const AttentionRow& row) {
  const AttentionRow* fastest = nullptr;
  for (const AttentionRow& other : rows) {
    if (other.context != row.context || !is_rival(other) || !stores_as_many_bits(other.bits, row.bits))
      continue;
    if (fastest == nullptr || other.seconds < fastest->seconds) fastest = &other;
  }
  return fastest;
}

}  // namespace kvant
