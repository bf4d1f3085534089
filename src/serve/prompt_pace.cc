#include "serve/prompt_pace.h"

#include <algorithm>

#include "base/page_size.h"
#include "generate/prompt_steps.h"

namespace kvant {
namespace {

// A device compiles a graph for each step size. A step size therefore grows by at least kLeastGrowth, which
// justifies a new graph. A step size grows by at most kMostGrowth, because the time of a step says little
// about much larger steps.
constexpr double kLeastGrowth = 1.25, kMostGrowth = 2;
// A new step size aims at this share of the time limit, because later steps have a longer context and take
// longer.
constexpr double kAim = 0.95;

}  // namespace

PromptPace::PromptPace(int tokens, double seconds, int most)
    : tokens_(tokens), most_(std::max(tokens, most)), seconds_(seconds) {}

// The estimate assumes that a step's time is proportional to its tokens. If steps also take a constant time,
// several calls lead to the right size. The size shrinks only after a step that was too long, and
// grows only by kLeastGrowth or more. Sizes therefore do not oscillate.
void PromptPace::add(int n_tokens, double seconds) {
  // The time of a short step at the end of a prompt says little about full steps.
  if (seconds_ == 0 || seconds <= 0 || n_tokens < tokens_ / 2) return;
  const double fits = std::min(n_tokens * kAim * seconds_ / seconds, kMostGrowth * tokens_);
  const int unit = fits < kPageTokens ? kMinPromptStep : kPageTokens;
  const int wanted = std::clamp(static_cast<int>(fits) / unit * unit, kMinPromptStep, most_);
  if (seconds > seconds_ ? wanted < tokens_ : wanted >= kLeastGrowth * tokens_) tokens_ = wanted;
}

}  // namespace kvant
