#include "calibrate/read_samples.h"

#include "base/check.h"
#include "calibrate/capture_backend.h"

namespace kvant {
namespace {

Status read_sample(Engine& engine, CaptureBackend& backend, const Sample& sample, Cache& cache) {
  const std::span<const std::int32_t> tokens(sample.tokens);
  const SequenceId sequence = cache.add();
  const EngineInput start{sequence, tokens.first(kSinkTokens), true, kSinkTokens, 0};
  KVANT_RETURN_IF_ERROR(engine.step(cache, backend, {&start, 1}, {}));
  const auto rest = tokens.subspan(kSinkTokens);
  const EngineInput far{sequence, rest, true, static_cast<int>(rest.size()), sample.position_offset};
  KVANT_RETURN_IF_ERROR(engine.step(cache, backend, {&far, 1}, {}));
  cache.free(sequence);
  return {};
}

}  // namespace

Result<int> read_samples(Engine& engine, AttentionBackend& backend, std::span<const Sample> samples,
                         int first, Capture& capture, const std::function<void(int)>& advance,
                         const std::atomic<bool>* stop) {
  const auto resolved = resolve(Recipe{}, engine.geometry(), nullptr);
  if (!resolved.ok()) return resolved.error();
  const auto plan = backend.place(*resolved);
  if (!plan.ok()) return plan.error();
  CaptureBackend capturing(backend, capture);
  Cache cache(*plan, /*byte_limit=*/0);
  for (int i = first; i < static_cast<int>(samples.size()); ++i) {
    if (stop != nullptr && *stop) return i;
    KVANT_CHECK(static_cast<int>(samples[i].tokens.size()) == capture.length(i),
                "a sample of a different length than the capture expects");
    capturing.set_sequence(i);
    KVANT_RETURN_IF_ERROR(read_sample(engine, capturing, samples[i], cache));
    advance(1);
  }
  return static_cast<int>(samples.size());
}

}  // namespace kvant
