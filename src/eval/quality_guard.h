// QualityGuard: watches, while a model decodes, what its cache does to attention.
//
// It is a backend around another one. In each layer it watches one KV head, whose newest K and V it keeps
// unquantized next to the cache. It samples a share of the decode steps, different ones for each layer. There
// the query of the newest token attends in plain F32 to those tokens and the sink, once with the original K
// and V and once as the cache returns them. Older pages are left out of both. docs/guide/tune.md has the
// measurements behind the constants.
// measurements behind the constants.
//
// On a device rows stay where they are. The original K and V are copied from the tail, which has them
// unquantized, when a step seals their page and when it is checked. Another thread examines the copies while
// the device runs the next step.
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
// divergence of the predictions (nats). It was measured on 18 recipes from .0001 to 8 nats and is right
// within a factor of two for each.
inline constexpr double kDivergenceOfSquaredError = 2.2;

struct GuardSettings {
  int every = 64;  // each layer is checked in one of this many steps
  std::uint64_t seed = 0;
};

struct GuardedLayer {
  int kv_head = 0;  // the one that is watched now
  int checks = 0;
  OutputError error;  // over all checks
  OutputError keys;   // with only K as the cache returns it
};

struct GuardReport {
  int every = 0;
  std::int64_t steps = 0;    // decode steps
  std::int64_t checks = 0;   // over all layers
  std::int64_t bytes = 0;    // bytes kept in addition to the cache
  double relative = 0;       // RMS over the checked layers of their relative errors
  double estimated_kld = 0;  // nats, an estimate; 0 before the first check
  std::vector<GuardedLayer> layers;
};

class QualityGuard final : public BackendDecorator, private RowObserver {
 public:
  // Watches steps of one sequence of `plan`'s caches. `inner` serves the cache and must outlive this object.
  QualityGuard(AttentionBackend& inner, const Plan& plan, const GuardSettings& settings);

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override;
  RowObserver* observer() override { return this; }

  // Waits for the other thread and returns the findings.
  GuardReport report();

  // For benchmarks only: behaves as if a sequence of n_tokens had been watched, see cache/synthetic_sequence.h.
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
  // Holds copies from one layer of a step on a device.
  struct Copies {
    int layer = 0, kv_head = 0;
    int first_in_tail = 0;  // token
    int n_sealed = 0;       // pages, once the step has sealed
    std::shared_ptr<const Plan> plan;
    bool sealed = false;       // whether the step sealed pages
    DeviceHeadPages tail;      // before sealing; if nothing was sealed, `cached` has these pages
    DeviceHeadPages cached;    // all pages that a check may compare
    std::vector<float> query;  // of the newest token; empty: no check
  };
  using AllCopies = std::vector<std::unique_ptr<Copies>>;
  Status gather(const Step& step, int layer, const LayerRows& rows, Copies& copies) const;
  Status download(const Step& step);
  void look_at(Copies& copies);
  // Returns false if memory ran short.
  bool look_at_all(const AllCopies& all);
  // Waits for the other thread. Returns false like look_at_all().
  bool join();
  void keep(const Step& step, int layer, const LayerRows& rows, Watch& watch) const;
  bool due(int layer, std::int64_t step) const;
  // Returns the first token that is compared, or nothing if there is nothing to compare.
  std::optional<int> first_compared(const Plan& plan, int layer, const RecentRows& recent) const;
  // query: the queries of all heads.
  void check(const Plan& plan, int layer, const float* query, const RecentTokens& tokens, Watch& watch) const;

  const Geometry geometry_;
  const GuardSettings settings_;
  std::vector<Watch> layers_;
  AllCopies copies_;           // from the newest step
  std::size_t n_wanted_ = 0;   // expected number of copies
  std::future<bool> looking_;  // look_at_all() on the previous step's copies; destroyed first
};

// Returns the layer with the largest error among those with at least `least_checks`, or -1.
int worst_layer(const GuardReport& report, int least_checks);

// Returns a sentence for the user that names the exceeded limit, where, and what to do; nothing if all is
// well. recipe: as --kv takes it.
std::optional<std::string> guard_warning(const GuardReport& report, const std::string& recipe);

}  // namespace kvant
