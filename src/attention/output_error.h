// Measures what recipes do to attention outputs, layer by layer. All layers get the unquantized model's own
// Q, K and V, so errors do not add up over the layers. VQuant section 6.2 measures this error at the input of
// o_proj.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "attention/mass_coverage.h"

namespace kvant {

// Holds sums over output values.
struct OutputError {
  double difference = 0;  // sum of squares
  double energy = 0;      // sum of squares of the exact outputs
  std::int64_t values = 0;

  void add(const OutputError& other) {
    difference += other.difference;
    energy += other.energy;
    values += other.values;
  }
  double mse() const;       // mean squared error
  double relative() const;  // relative RMS error, the root of difference / energy
};

// Holds what was measured for one recipe.
struct LayerEffects {
  int n_layers = 0, n_heads = 0;
  std::vector<OutputError> errors;  // [n_layers, n_heads]: query heads
  // [n_layers]; empty if the recipe skips nothing, or if skips were not counted
  std::vector<SkipCount> skips;
  // [n_layers]; empty if the recipe protects nothing by scores, or if coverage was not measured
  std::vector<MassCoverage> coverage;

  OutputError of_layer(int layer) const;
  OutputError total() const;
};

// Runs a cache through an inner backend, whose outputs the model uses. The cache is unquantized to measure
// recipes, or has a recipe to measure a backend. Each added recipe keeps a shadow cache of equal Q, K and V,
// and its outputs are compared. Shadow caches of plans on a device lie on the device and attend to the rows
// that the observer is shown.
class OutputErrorBackend final : public BackendDecorator, private RowObserver {
 public:
  // `inner` outlives this object.
  explicit OutputErrorBackend(AttentionBackend& inner) : BackendDecorator(inner) {}

  // Adds a recipe that runs on `inner`, or on a backend of its own, which outlives this object.
  void add(PlacedPlan plan) { add(std::move(plan), inner()); }
  void add(PlacedPlan plan, AttentionBackend& backend);
  // The next step starts a new text.
  void begin();
  // The caller calls reserve() before and commit() after each step of the main cache, which has one slice of
  // n_tokens tokens. Queries [first_measured, n_tokens) count. Skips count only if all queries do, and
  // coverage only if they also lie in one page. Errors come from shadow caches.
  Status reserve(int n_tokens, bool is_prompt, int first_measured);
  Status commit();

  // Returns the effects of a recipe. Recipes are numbered in the order in which they were added.
  const LayerEffects& effects(std::size_t recipe) const { return shadows_[recipe].effects; }

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override;
  RowObserver* observer() override { return this; }

 private:
  struct Shadow {
    AttentionBackend* backend = nullptr;
    std::unique_ptr<Cache> cache;
    SequenceId sequence = 0;
    std::unique_ptr<Step> step;
    LayerEffects effects;
  };
  ShownRows wants(const Step& step, int layer) override;
  void see(Step& step, int layer, const LayerRows& rows) override;
  bool measures_mass(const Shadow& shadow, const Step& step, int layer) const;
  void compare_heads(Shadow& shadow, int layer, const LayerRows& rows, int head);
  void run_shadow(Shadow& shadow, const Step& step, int layer, const LayerRows& rows, Team& team);
  void measure_mass(Shadow& shadow, const Step& step, int layer, const LayerRows& rows, Team& team);

  std::vector<Shadow> shadows_;
  int n_tokens_ = 0, first_measured_ = 0;    // numbers of the step
  std::vector<float> out_;                   // [n_rows, n_heads * d]: outputs of one shadow
  std::vector<SkipCount> skipped_;           // The counts of the shadow's backend before its layer.
  std::vector<ListedPages> head_pages_;      // by KV head: pages of the unquantized cache
  std::vector<MassCoverage> head_coverage_;  // by KV head: coverage of one shadow's layer
};

}  // namespace kvant
