#include "serve/prompt_pace.h"

#include <algorithm>

#include "base/page_size.h"
#include "generate/prompt_steps.h"

namespace kvant {
namespace {

// A device needs a graph for each step size. So steps grow only by amounts that justify a graph, and at most
// to double, because one step says little about much larger ones.
constexpr double kLeastGrowth = 1.25, kMostGrowth = 2;
// Share of the time limit at which a new step size aims. Later steps have a longer context, so they take
// longer than the one before.
constexpr double kAim = 0.95;

}  // namespace

PromptPace::PromptPace(int tokens, double seconds, int most)
    : tokens_(tokens), most_(std::max(tokens, most)), seconds_(seconds) {}

// This attributes all of the time to tokens. If steps have a constant part, several calls lead to the right
// size. Steps shrink only after one that was too long, and otherwise aim at kAim, which keeps them from
// oscillating between two sizes.
void PromptPace::add(int n_tokens, double seconds) {
  if (seconds_ == 0 || seconds <= 0 || n_tokens < tokens_ / 2) return;  // the end of a prompt says little
  const double fits = std::min(n_tokens * kAim * seconds_ / seconds, kMostGrowth * tokens_);
  const int unit = fits < kPageTokens ? kMinPromptStep : kPageTokens;
  const int wanted = std::clamp(static_cast<int>(fits) / unit * unit, kMinPromptStep, most_);
  if (seconds > seconds_ ? wanted < tokens_ : wanted >= kLeastGrowth * tokens_) tokens_ = wanted;
}

}  // namespace kvant
