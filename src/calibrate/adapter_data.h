// Makes the training data for a head's adapters from captured contexts. Training compares a corrected low-bit
// attention with the exact one, so the data hold both kinds of scores for each captured query.
#pragma once

#include <vector>

#include "calibrate/adapter_loss.h"
#include "calibrate/capture.h"
#include "recipe/recipe.h"
#include "transform/transform.h"

namespace kvant {

// CorrectedKeys describes how a head's K is stored and corrected.
struct CorrectedKeys {
  int layer = 0;
  int kv_head = 0;
  const Format* format = nullptr;
  Transform transform;
  PageContext context;  // contains the format's constants
  int protected_tokens = 0;
  Correction correction = Correction::relative;
};

// Adapters are trained for a window of this many tokens, as in KVLinC's recipes.
inline constexpr int kAdapterWindow = 128;
// With this window, a query before token kFirstCorrectedQuery reads no sealed page.
inline constexpr int kFirstCorrectedQuery = kPageTokens + kAdapterWindow;

// Returns captured context c as attention reads it. Query t reads page j in sealed form if t >= 128 (j + 1) +
// window, because the newest `window` tokens stay unquantized. `relative` sets M to the row's largest score
// and c to 1, and `absolute` sets M to max(largest, 0) and c to e^-M. A batch consists of at most
// `batch_queries` neighbouring queries, and batches with short contexts come first. Each batch has only the
// keys that its last query reads.
std::vector<AdapterContext> adapter_contexts(const Capture& capture, const CorrectedKeys& keys, int c,
                                             int batch_queries);

}  // namespace kvant
