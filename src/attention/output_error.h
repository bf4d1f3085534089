// What recipes do to attention outputs, layer by layer, on the unquantized model's own Q, K and V, so that
// errors don't add up over the layers (VQuant section 6.2: the error of the input of o_proj).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "attention/mass_coverage.h"

namespace kvant {

// Sums over output values.
struct OutputError {
  double difference = 0;  // squared
  double energy = 0;      // of the exact outputs, squared
  std::int64_t values = 0;

  void add(const OutputError& other) {
    difference += other.difference;
    energy += other.energy;
    values += other.values;
  }
  double mse() const;       // mean squared error
  double relative() const;  // relative RMS error: root of difference / energy
};

// What was measured of one recipe.
struct LayerEffects {
  int n_layers = 0, n_heads = 0;
  std::vector<OutputError> errors;  // [n_layers, n_heads]: query heads
  std::vector<SkipCount> skips;     // [n_layers]; empty: the recipe skips nothing, or it was not counted
  // [n_layers]; empty: the recipe protects nothing by scores, or as above.
  std::vector<MassCoverage> coverage;

  OutputError of_layer(int layer) const;
  OutputError total() const;
};

// Runs a cache through another backend, whose outputs go on to the model: an unquantized one, to measure
// recipes, or a recipe's own, to measure a backend. Recipes that were added keep shadow caches of the same Q,
// K and V, and their outputs are compared. Plans that are placed on a device have their caches there, which
// attend to the rows that this is shown.
class OutputErrorBackend final : public BackendDecorator, private RowObserver {
 public:
  // `inner` outlives this.
  explicit OutputErrorBackend(AttentionBackend& inner) : BackendDecorator(inner) {}

  // On `inner`, or on a backend of its own, which outlives this.
  void add(PlacedPlan plan) { add(std::move(plan), inner()); }
  void add(PlacedPlan plan, AttentionBackend& backend);
  // The next step starts a new text.
  void begin();
  // Around each step of the cache that is run through, which has one slice of n_tokens tokens. Queries
  // [first_measured, n_tokens) count; skips only where all do, and coverage where they lie within one page
  // as well. An error from a shadow cache.
  Status reserve(int n_tokens, bool is_prompt, int first_measured);
  Status commit();

  // Of each recipe, in the order in which they were added.
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
  int n_tokens_ = 0, first_measured_ = 0;    // of the step
  std::vector<float> out_;                   // [n_rows, n_heads * d], of one shadow
  std::vector<SkipCount> skipped_;           // by the shadow's backend before its layer
  std::vector<ListedPages> head_pages_;      // by KV head, of the unquantized cache
  std::vector<MassCoverage> head_coverage_;  // likewise, of one shadow's layer
};

}  // namespace kvant
