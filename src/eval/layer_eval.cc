#include "eval/layer_eval.h"

#include <algorithm>

namespace kvant {
namespace {

// A prompt runs as one step, so a recipe may treat the prompt as one block. Decode steps have at most
// generated_tokens tokens and cross no page boundary, so all queries of a step read the same sealed pages.
Status run_chunk(std::span<const std::int32_t> tokens, Engine& engine, Cache& cache,
                 OutputErrorBackend& backend, const QualityOptions& options, int generated_tokens,
                 const std::function<void(std::int64_t)>& advance) {
  const int half = options.context / 2;
  const SequenceId sequence = cache.add();
  backend.begin();
  const int prompt = options.all_prompt ? options.context : half;
  for (int start = 0; start < options.context;) {
    const bool is_prompt = start < prompt;
    const int count =
        is_prompt ? prompt
                  : std::min({kPageTokens - start % kPageTokens, options.context - start, generated_tokens});
    KVANT_RETURN_IF_ERROR(backend.reserve(count, is_prompt, /*first_measured=*/is_prompt ? half : 0));
    const EngineInput input{sequence, tokens.subspan(start, count), is_prompt, /*first_logits=*/count};
    KVANT_RETURN_IF_ERROR(engine.step(cache, backend, {&input, 1}, {}));
    KVANT_RETURN_IF_ERROR(backend.commit());
    advance(count);
    start += count;
  }
  cache.free(sequence);
  return {};
}

}  // namespace

Result<LayerResult> evaluate_layers(const EvalText& text, Engine& engine, AttentionBackend& backend,
                                    const LayerCandidate& reference,
                                    std::span<const LayerCandidate> candidates, const QualityOptions& options,
                                    const std::function<void(std::int64_t)>& advance) {
  OutputErrorBackend errors(backend);
  for (const LayerCandidate& candidate : candidates) errors.add(candidate.plan);
  Cache cache(reference.plan, /*byte_limit=*/0);
  const Status status = for_each_chunk(text, options, [&](std::span<const std::int32_t> tokens) {
    return run_chunk(tokens, engine, cache, errors, options, kPageTokens, advance);
  });
  if (!status.ok()) return status.error();
  LayerResult result{options.context, chunks_available(text, options), reference.name, {}};
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    result.rows.push_back({candidates[i].name, /*label=*/"", errors.effects(i)});
  }
  return result;
}

Result<OutputError> compare_outputs(const EvalText& text, Engine& engine, const AttentionSide& own,
                                    const AttentionSide& other, const QualityOptions& options,
                                    const std::function<void(std::int64_t)>& advance) {
  OutputErrorBackend errors(own.backend);
  errors.add(other.plan, other.backend);
  Cache cache(own.plan, /*byte_limit=*/0);
  const Status status = for_each_chunk(text, options, [&](std::span<const std::int32_t> tokens) {
    return run_chunk(tokens, engine, cache, errors, options, /*generated_tokens=*/1, advance);
  });
  if (!status.ok()) return status.error();
  return errors.effects(0).total();
}

}  // namespace kvant
