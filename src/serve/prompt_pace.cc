#include "serve/prompt_pace.h"

#include <algorithm>

#include "base/page_size.h"
#include "generate/prompt_steps.h"

namespace kvant {
namespace {

// A device has a graph for each size of its steps: they grow only where it is worth one, and at most twofold,
// since what one step has taken says little about much larger ones.
constexpr double kLeastGrowth = 1.25, kMostGrowth = 2;
// Of the time, what a step of another size is meant to take: later ones are behind more tokens, and take as
// long as the one before only about.
constexpr double kAim = 0.95;

}  // namespace

PromptPace::PromptPace(int tokens, double seconds, int most)
    : tokens_(tokens), most_(std::max(tokens, most)), seconds_(seconds) {}

// As if all of the time were the tokens': where steps have a constant part, some more of them lead to what
// fits. Steps are made smaller only behind one that was too long, and not larger for less than kAim, so that
// they don't swing between two sizes.
void PromptPace::add(int n_tokens, double seconds) {
  if (seconds_ == 0 || seconds <= 0 || n_tokens < tokens_ / 2) return;  // a prompt's end says little
  const double fits = std::min(n_tokens * kAim * seconds_ / seconds, kMostGrowth * tokens_);
  const int unit = fits < kPageTokens ? kMinPromptStep : kPageTokens;
  const int wanted = std::clamp(static_cast<int>(fits) / unit * unit, kMinPromptStep, most_);
  if (seconds > seconds_ ? wanted < tokens_ : wanted >= kLeastGrowth * tokens_) tokens_ = wanted;
}

}  // namespace kvant
