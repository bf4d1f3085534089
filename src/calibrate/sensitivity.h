// Measures sensitivities: the effect of each format of a recipe's ladder on the model's predictions, in one
// (layer, KV head, side). Bit allocation uses the sensitivities (recipe/bit_allocation.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/result.h"
#include "calibrate/capture.h"
#include "eval/logit_source.h"
#include "model/engine.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// SensitivityUnit describes heads of one layer's side that are measured together.
struct SensitivityUnit {
  int layer = 0;
  int first_head = 0;
  int n_heads = 1;
  Side side = Side::key;
};

// Returns every (layer, KV head, side) as a unit of its own. If there are more than a few hundred places, a
// unit is all heads of a layer's side.
std::vector<SensitivityUnit> sensitivity_units(const Geometry& geometry);

// Returns the recipe in which only the unit's heads are quantized, in the probe format of `recipe`, with the
// recipe's transforms and sink. All other heads have the format `rest`.
Recipe probe_recipe(const Recipe& recipe, const SensitivityUnit& unit, int head_dim,
                    const std::string& rest = "bf16");

// SensitivityProbe compares the model's predictions for two recipes of the cache on one context.
class SensitivityProbe {
 public:
  // Runs the model on `tokens` with the cache of `base`. The predictions of the second half count, or fewer
  // of the last predictions if memory does not hold all of them.
  static Result<std::unique_ptr<SensitivityProbe>> make(Engine& engine, AttentionBackend& backend,
                                                        std::vector<std::int32_t> tokens, int n_threads,
                                                        const Recipe& base = {});

  // Returns the mean KL divergence, in nats, of the predictions with the cache of `recipe` from the
  // predictions with the cache of `base`. `constants` must have everything that the recipe needs.
  Result<double> divergence(const Recipe& recipe, std::shared_ptr<const Constants> constants);

 private:
  SensitivityProbe(Engine& engine, AttentionBackend& backend, std::vector<std::int32_t> tokens,
                   int n_threads);
  Status predict(const Recipe& recipe, std::shared_ptr<const Constants> constants,
                 std::vector<float>& logits);

  Engine& engine_;
  AttentionBackend& backend_;
  std::vector<std::int32_t> tokens_;
  int n_threads_;
  int n_scored_;
  std::vector<float> expected_, got_;  // logits [n_scored, n_vocab]
};

// Returns the squared error of each format of the ladder on the capture's passages, relative to the squared
// error of the probe format. The divergence is proportional to the squared error while both are small.
// `constants` must have everything that the recipe's transforms and formats need.
std::vector<double> error_ratios(const Capture& capture, const Recipe& recipe, const Constants& constants,
                                 int layer, int kv_head, Side side);

}  // namespace kvant
