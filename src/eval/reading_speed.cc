#include "eval/reading_speed.h"

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache.h"

namespace kvant {

Result<ReadingSpeed> measure_reading(Engine& engine, AttentionBackend& backend, const PlacedPlan& plan,
                                     int n_decoded) {
  constexpr int kPrompt = 64;
  Cache cache(plan, /*byte_limit=*/0);
  const SequenceId sequence = cache.add();
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < kPrompt; ++i) tokens.push_back(i % engine.n_vocab());
  const auto seconds_of = [&](int n, bool is_prompt) -> Result<double> {
    const EngineInput input{sequence, std::span(tokens).first(n), is_prompt, /*first_logits=*/n};
    const auto start = std::chrono::steady_clock::now();
    KVANT_RETURN_IF_ERROR(engine.step(cache, backend, {&input, 1}, {}));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto prompt = seconds_of(kPrompt, true);
  if (!prompt.ok()) return prompt.error();
  ReadingSpeed speed{.prompt = *prompt / kPrompt};
  for (int i = 0; i < n_decoded; ++i) {
    const auto decode = seconds_of(1, false);
    if (!decode.ok()) return decode.error();
    speed.decode += *decode / n_decoded;
  }
  return speed;
}

}  // namespace kvant
