// Lists KVLinC's ablations (its sections 3.1, 4.2 and 4.3). Hadamard matrices multiply K and V from the
// right, so they mix channels. Matrices on the left would mix tokens, which is impossible in a growing cache.
#include <fmt/format.h>

#include "eval/suite.h"

namespace kvant {
namespace {

// kQuantized is KVLinC's recipe without the correction.
constexpr const char* kQuantized = "k=ch2g128,v=hadamard:tok2g128,window=128";

std::vector<SuiteRow> axes_and_rotations() {
  const std::pair<const char*, const char*> sides[] = {{"channel", "ch2g128"},
                                                       {"channel, H", "hadamard:ch2g128"},
                                                       {"token", "tok2g128"},
                                                       {"token, H", "hadamard:tok2g128"}};
  std::vector<SuiteRow> rows;
  for (const auto& [k_label, k] : sides) {
    for (const auto& [v_label, v] : sides)
      rows.push_back(
          {fmt::format("K {}; V {}", k_label, v_label), fmt::format("k={},v={},window=128", k, v)});
  }
  return rows;
}

// Uses KVLinC in some layers of a model with 30 layers, and KIVI in all other layers.
std::vector<SuiteRow> layer_ranges() {
  std::vector<SuiteRow> rows = {{"none", "kivi-2bit"}};
  for (const char* layers : {"0-9", "10-19", "20-29", "0-14", "15-29", "0-29"}) {
    rows.push_back(
        {fmt::format("layers {}", layers),
         fmt::format("kivi-2bit,v@{0}=hadamard:tok2g128,correction=relative,correction_layers={0}", layers)});
  }
  return rows;
}

// Combines H2O's eviction with quantized caches. The paper also evicts together with the correction, which
// kvant does not support (docs/guide/recipes.md).
std::vector<SuiteRow> evictions() {
  std::vector<SuiteRow> rows;
  for (const int percent : {0, 70, 75, 80, 85, 90, 95}) {
    const double share = percent / 100.0;
    rows.push_back({fmt::format("KIVI, {} % dropped", percent), fmt::format("kivi-2bit,evict={}", share)});
    rows.push_back(
        {fmt::format("V rotated, {} % dropped", percent), fmt::format("{},evict={}", kQuantized, share)});
  }
  return rows;
}

}  // namespace

std::vector<Suite> kvlinc_suites() {
  return {
      {.name = "kvlinc-hadamard",
       .title = "KVLinC, Figure 3: quantization axis and rotation of K and V at 2 bits",
       .rows = axes_and_rotations()},
      {.name = "kvlinc-parts",
       .title = "KVLinC, Tables 3 and 5: rotation of V and correction, separately and combined",
       .rows = {{"KIVI", "kivi-2bit"},
                {"KIVI + correction, relative", "kivi-2bit,correction=relative"},
                {"KIVI + correction, absolute", "kivi-2bit,correction=absolute"},
                {"quantization only", kQuantized},
                {"KVLinC, relative", fmt::format("{},correction=relative", kQuantized)},
                {"KVLinC, absolute", fmt::format("{},correction=absolute", kQuantized)},
                {"1 bit: KIVI", "kivi-1bit"},
                {"1 bit: quantization only", "kvlinc-1bit,correction=none"},
                {"1 bit: KVLinC", "kvlinc-1bit"}}},
      {.name = "kvlinc-layers",
       .title = "KVLinC, Table 6: ranges of layers that use it, for models with 30 layers",
       .rows = layer_ranges()},
      {.name = "kvlinc-eviction",
       .title = "KVLinC, Table 4: eviction of the least attended tokens from 2-bit caches",
       .rows = evictions()},
  };
}

}  // namespace kvant
