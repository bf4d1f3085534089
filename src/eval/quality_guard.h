// QualityGuard watches, while a model decodes, how much the cache changes attention, so a program can warn
// its user.
//
// The guard is a backend around another backend. In each layer the guard watches one KV head and keeps the
// head's newest K and V unquantized next to the cache. In a random share of the decode steps, the newest
// query attends twice in plain F32. The query attends once to the original K and V, and once to K and V as
// the cache returns them. Only the newest tokens and the sink are visible to the query. docs/lab/serving.md
// has the measurements that set the constants.
//
// On a device, rows stay in device memory. The tail holds the original K and V unquantized. The guard copies
// rows of the tail when a step seals their page, and when a check needs the rows. Another thread examines the
// copies while the device runs the next step.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "cache/device_head_pages.h"
#include "eval/recent_attention.h"
#include "eval/recent_rows.h"

namespace kvant {

// Converts the squared relative RMS error of attention outputs, averaged over the layers, to the mean KL
// divergence of the predictions in nats. The factor was measured on SmolLM2-135M, with recipes of 0.0001 to
// 8 nats. For each of these recipes, the result is right within a factor of two.
inline constexpr double kDivergenceOfSquaredError = 2.2;

struct GuardSettings {
  // The guard checks each layer in one of `every` steps.
  int every = 64;
  std::uint64_t seed = 0;
};

struct GuardedLayer {
  // The guard watches this KV head now.
  int kv_head = 0;
  int checks = 0;
  // `error` is the error over all checks of the layer.
  OutputError error;
  // `keys` is the error if only K comes from the cache and V is the original.
  OutputError keys;
};

struct GuardReport {
  int every = 0;
  std::int64_t steps = 0;   // decode steps
  std::int64_t checks = 0;  // checks of all layers together
  std::int64_t bytes = 0;   // bytes that the guard needs besides the cache
  // `relative` is the root mean square of the relative errors of all checked layers.
  double relative = 0;
  // estimated_kld estimates the divergence in nats. The value is 0 before the first check.
  double estimated_kld = 0;
  std::vector<GuardedLayer> layers;
};

class QualityGuard final : public BackendDecorator, private RowObserver {
 public:
  // The guard watches steps of one sequence in caches of `plan`. `inner` serves the cache and must outlive
  // the guard.
  QualityGuard(AttentionBackend& inner, const Plan& plan, const GuardSettings& settings);

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override;
  RowObserver* observer() override { return this; }

  // Waits for the other thread and returns the findings.
  GuardReport report();

  // Fills the guard as if a sequence of n_tokens had been watched. Only benchmarks call this function
  // (cache/synthetic_sequence.h).
  void fill_synthetic(int n_tokens, std::uint64_t seed);

 private:
  struct Watch {
    GuardedLayer found;
    RecentRows recent;
    std::int64_t steps = 0;  // decode steps
    int checks_of_head = 0;
  };
  ShownRows wants(const Step& step, int layer) override;
  void see(Step& step, int layer, const LayerRows& rows) override;
  // Holds the copies from one layer of one step on a device.
  struct Copies {
    int layer = 0, kv_head = 0;
    int first_in_tail = 0;  // the index of a token
    int n_sealed = 0;       // the number of sealed pages after the step
    std::shared_ptr<const Plan> plan;
    // Says whether the step sealed pages.
    bool sealed = false;
    // Holds the tail before sealing. The tail is empty if nothing was sealed, because `cached` then has the
    // tail's pages.
    DeviceHeadPages tail;
    // Holds all pages that a check may compare.
    DeviceHeadPages cached;
    // Holds the query of the newest token. The query is empty if the step has no check.
    std::vector<float> query;
  };
  using AllCopies = std::vector<std::unique_ptr<Copies>>;
  Status gather(const Step& step, int layer, const LayerRows& rows, Copies& copies) const;
  Status download(const Step& step);
  void look_at(Copies& copies);
  // Examines all copies. Returns false if there was not enough memory.
  bool look_at_all(const AllCopies& all);
  // Waits for the other thread and returns the result of look_at_all().
  bool join();
  void keep(const Step& step, int layer, const LayerRows& rows, Watch& watch) const;
  bool due(int layer, std::int64_t step) const;
  // Returns the first token that a check compares, or nothing if there is nothing to compare.
  std::optional<int> first_compared(const Plan& plan, int layer, const RecentRows& recent) const;
  // Adds the errors of `tokens` to the figures of the layer. `query` holds the queries of all heads, [n_heads
  // * head_dim].
  void check(const Plan& plan, int layer, const float* query, const RecentTokens& tokens, Watch& watch) const;

  const Geometry geometry_;
  const GuardSettings settings_;
  std::vector<Watch> layers_;
  AllCopies copies_;          // copies from the newest step
  std::size_t n_wanted_ = 0;  // expected number of copies
  // Examines the copies of the previous step. The future is the last member. Its destructor therefore waits
  // for the other thread before the other members are destroyed.
  std::future<bool> looking_;
};

// Returns the layer with the largest error among the layers with at least `least_checks` checks, or -1
// without such a layer.
int worst_layer(const GuardReport& report, int least_checks);

// Returns a sentence for the user that names the exceeded limit, the place and the remedy. Returns nothing if
// all errors are within the limits. `recipe` is the text that --kv takes.
std::optional<std::string> guard_warning(const GuardReport& report, const std::string& recipe);

}  // namespace kvant
