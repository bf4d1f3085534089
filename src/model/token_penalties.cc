#include "model/token_penalties.h"

namespace kvant {

void TokenPenalties::begin(std::span<const std::int32_t> prompt) {
  generated_.clear();
  recent_.clear();
  last_.clear();
  for (const std::int32_t token : prompt) remember(token);
}

void TokenPenalties::accept(std::int32_t token) {
  if (options_.presence != 0 || options_.frequency != 0) ++generated_[token];
  remember(token);
}

void TokenPenalties::remember(std::int32_t token) {
  if (!options_.repeats()) return;
  ++recent_[token];
  if (options_.repeat_last_n < 0) return;
  last_.push_back(token);
  if (std::ssize(last_) <= options_.repeat_last_n) return;
  const auto oldest = recent_.find(last_.front());
  if (--oldest->second == 0) recent_.erase(oldest);
  last_.pop_front();
}

void TokenPenalties::apply(std::span<float> logits) const {
  for (const auto& [token, count] : recent_) {
    float& logit = logits[token];
    logit = logit > 0 ? logit / options_.repeat : logit * options_.repeat;
  }
  for (const auto& [token, count] : generated_)
    logits[token] -= options_.presence + static_cast<float>(count) * options_.frequency;
}

}  // namespace kvant
