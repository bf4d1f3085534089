#include "calibrate/cost_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "base/gemm.h"
#include "base/progress.h"
#include "base/resident_memory.h"
#include "base/team.h"
#include "calibrate/differentiable_model.h"
#include "eval/reading_speed.h"
#include "recipe/plan.h"

namespace kvant {
namespace {

using CostClock = std::chrono::steady_clock;

double seconds_since(CostClock::time_point start) {
  return std::chrono::duration<double>(CostClock::now() - start).count();
}

// layer_weights() returns the number of weights of all layers. output_weights() returns the number of weights
// of the output.
double layer_weights(const Hparams& h) {
  double all = 0;
  for (int layer = 0; layer < h.n_layers; ++layer)
    all += 1.0 * h.n_embd * (2.0 * h.n_q(layer) + 2.0 * h.n_kv(layer) + 3.0 * h.ff(layer));
  return all;
}
double output_weights(const Hparams& h) {
  return 1.0 * h.n_vocab * h.n_embd;
}

// Returns the multiplications of one context's forward and backward pass, or 0 if there are no contexts.
double context_multiplications(const Hparams& h, const CalibrationWork& work) {
  if (work.contexts == 0) return 0;
  const double n = work.context_tokens;
  const double again = 1 - static_cast<double>(layers_kept(h, work.context_tokens)) / h.n_layers;
  // The forward pass and attention run in F32. Attention covers half of the pairs of tokens. Each pair takes
  // 2 products in the forward pass, 6 in the backward pass, and 2 for the effects of errors. For each format,
  // K and V take one more product each.
  const double slower = fastest_gemm_precision() == GemmPrecision::f32 ? 1 : 2;
  const double by_pairs =
      slower * (10 + 2.0 * work.formats) * n * n / 2 * h.n_heads * h.head_dim * h.n_layers;
  constexpr double kReadings = 2.5;  // passes over the vocabulary
  return n * ((1 + slower + again) * layer_weights(h) + kReadings * output_weights(h)) + by_pairs;
}

// Measures the speed of products of 128 rows, computed by all threads. Each product is small enough for the
// caches.
double multiplications_per_second(int n_threads) {
  constexpr int kRows = 128, kDepth = 768, kColumns = 1024;
  constexpr double kSeconds = 0.3;
  std::atomic<int> n_done{0};
  const auto start = CostClock::now();
  run_team(n_threads, [&](Team& team) {
    std::vector<float> a(std::size_t{kRows} * kDepth, 0.5F), b(std::size_t{kDepth} * kColumns, 0.25F);
    std::vector<float> c(std::size_t{kRows} * kColumns);
    PackedMatrix packed;
    packed.resize(kDepth, kColumns, fastest_gemm_precision());
    for (int part = 0; part < packed.n_parts(); ++part) packed.pack(row_major(b.data(), kColumns), part);
    while (seconds_since(start) < kSeconds) {
      gemm(kRows, kColumns, row_major(a.data(), kDepth), packed, /*accumulate=*/false, c.data(), kColumns);
      ++n_done;
    }
    team.barrier();
  });
  return double{kRows} * kDepth * kColumns * n_done / seconds_since(start);
}

}  // namespace

double multiplications(const Hparams& hparams, const CalibrationWork& work) {
  return static_cast<double>(work.tokens) * layer_weights(hparams) +
         work.contexts * context_multiplications(hparams, work);
}

Result<CalibrationCost> estimated_cost(const SampleReader& reader, const Hparams& hparams,
                                       const CalibrationWork& work, int n_threads) {
  CalibrationCost cost;
  if (work.tokens > 0) {
    const auto resolved = resolve(Recipe{}, reader.engine->geometry(), nullptr);
    if (!resolved.ok()) return resolved.error();
    const auto plan = reader.backend->place(*resolved);
    if (!plan.ok()) return plan.error();
    const auto speed = measure_reading(*reader.engine, *reader.backend, *plan, /*n_decoded=*/0);
    if (!speed.ok()) return speed.error();
    cost.seconds += speed->prompt * static_cast<double>(work.tokens);
  }
  cost.bytes = resident_bytes();
  if (work.contexts > 0) {
    // This factor covers the expansion of weights and the encoding of K and V.
    constexpr double kBeside = 1.45;
    cost.seconds += kBeside * work.contexts * context_multiplications(hparams, work) /
                    multiplications_per_second(n_threads);
    // The engine may have read its weights from the file, or may have copied them to memory of its own.
    cost.bytes += std::max<std::int64_t>(0, work.file_bytes - resident_file_bytes()) +
                  gradient_bytes(hparams, work.context_tokens);
    // The allocator keeps freed blocks of other sizes. A model of 1.5B parameters peaked 3 % above this sum.
    constexpr double kAllocator = 1.05;
    cost.bytes = static_cast<std::int64_t>(kAllocator * static_cast<double>(cost.bytes));
  }
  return cost;
}

std::string readable_cost(const CalibrationCost& cost) {
  const double seconds =
      cost.seconds < 60 ? std::ceil(cost.seconds / 10) * 10 : std::ceil(cost.seconds / 60) * 60;
  return fmt::format(
      "about {} and at most {} of memory",
      cost.seconds < 60 ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.0f} min", seconds / 60),
      readable_bytes(static_cast<double>(cost.bytes)));
}

}  // namespace kvant
