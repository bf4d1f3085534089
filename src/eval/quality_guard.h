// QualityGuard: watches, while a model decodes, what its cache does to attention.
//
// A backend around another. Of each layer one KV head is watched: its newest K and V are kept unquantized
// beside the cache. In a sampled share of the decode steps, another one for each layer, the query of the
// newest token attends in plain F32 to the tokens that are kept so and to the sink, once with K and V as they
// were and once as the cache gives them back; older pages are left out of both. docs/guide/tune.md has the
// measurements behind the constants.
//
// On a device rows stay where they are: K and V as they were are copied from the tail, which has them
// unquantized, when a step seals their page and when it is checked. What was copied is looked at by another
// thread while the device makes the next step.
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

// What a relative RMS error of attention outputs, squared and averaged over the layers, costs in mean KL
// divergence of the predictions (nats): measured on 18 recipes from .0001 to 8 nats, right within a factor of
// two for each.
inline constexpr double kDivergenceOfSquaredError = 2.2;

struct GuardSettings {
  int every = 64;  // a layer is checked in one of so many steps
  std::uint64_t seed = 0;
};

struct GuardedLayer {
  int kv_head = 0;  // watched now
  int checks = 0;
  OutputError error;  // of all checks
  OutputError keys;   // with K alone as the cache gives it back
};

struct GuardReport {
  int every = 0;
  std::int64_t steps = 0;    // of decoding
  std::int64_t checks = 0;   // of all layers
  std::int64_t bytes = 0;    // kept beside the cache
  double relative = 0;       // RMS over the checked layers of their relative errors
  double estimated_kld = 0;  // nats, an estimate; 0 before the first check
  std::vector<GuardedLayer> layers;
};

class QualityGuard final : public BackendDecorator, private RowObserver {
 public:
  // `inner` serves the cache and outlives this. Steps of one sequence of `plan`'s caches.
  QualityGuard(AttentionBackend& inner, const Plan& plan, const GuardSettings& settings);

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override;
  RowObserver* observer() override { return this; }

  // Waits for what is being looked at.
  GuardReport report();

  // Benchmarks only: as if a sequence of n_tokens had been watched, see Cache::fill_synthetic.
  void fill_synthetic(int n_tokens, std::uint64_t seed);

 private:
  struct Watch {
    GuardedLayer found;
    RecentRows recent;
    std::int64_t steps = 0;  // of decoding
    int checks_of_head = 0;
  };
  ShownRows wants(const Step& step, int layer) override;
  void see(Step& step, int layer, const LayerRows& rows) override;
  // What was copied of a layer of a step on a device.
  struct Copies {
    int layer = 0, kv_head = 0;
    int first_in_tail = 0;  // token
    int n_sealed = 0;       // pages, once the step has sealed
    std::shared_ptr<const Plan> plan;
    bool sealed = false;       // by the step
    DeviceHeadPages tail;      // before it did; where it didn't, `cached` has these pages
    DeviceHeadPages cached;    // all pages that a check may compare
    std::vector<float> query;  // of the newest token; empty: there is no check
  };
  using AllCopies = std::vector<std::unique_ptr<Copies>>;
  Status gather(const Step& step, int layer, const LayerRows& rows, Copies& copies) const;
  Status download(const Step& step);
  void look_at(Copies& copies);
  // False: memory was short.
  bool look_at_all(const AllCopies& all);
  // Waits for the other thread. False as above.
  bool join();
  void keep(const Step& step, int layer, const LayerRows& rows, Watch& watch) const;
  bool due(int layer, std::int64_t step) const;
  // The first token that is compared; none: there is nothing to compare.
  std::optional<int> first_compared(const Plan& plan, int layer, const RecentRows& recent) const;
  // query: of all heads.
  void check(const Plan& plan, int layer, const float* query, const RecentTokens& tokens, Watch& watch) const;

  const Geometry geometry_;
  const GuardSettings settings_;
  std::vector<Watch> layers_;
  AllCopies copies_;           // of the newest step
  std::size_t n_wanted_ = 0;   // so many there will be
  std::future<bool> looking_;  // at those of the step before: look_at_all(); destroyed first
};

// The layer with the largest error, of those with at least `least_checks`; -1: none.
int worst_layer(const GuardReport& report, int least_checks);

// What is past a limit, as a sentence for the user that says where and what to do; nothing while all is well.
// recipe: as --kv takes it.
std::optional<std::string> guard_warning(const GuardReport& report, const std::string& recipe);

}  // namespace kvant
