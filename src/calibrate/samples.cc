#include "calibrate/samples.h"

#include <algorithm>
#include <random>

#include "calibrate/capture.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

// One of n equal parts of [0, limit], and a random place in it.
int spread_place(int part, int n, int limit, std::mt19937_64& random) {
  const double inside = static_cast<double>(random() >> 11) * 0x1p-53;
  return std::min(limit, static_cast<int>((part + inside) / n * (limit + 1.0)));
}

std::vector<int> shuffled_parts(int n, std::mt19937_64& random) {
  std::vector<int> parts(n);
  for (int i = 0; i < n; ++i) parts[i] = i;
  for (int i = n - 1; i > 0; --i) std::swap(parts[i], parts[random() % (i + 1)]);
  return parts;
}

// Offsets of the training samples, then of the passages; each group is spread over the whole range.
void draw_offsets(const SampleSize& size, int trained_context, std::mt19937_64& random,
                  std::vector<Sample>& samples) {
  const int limit = std::max(0, trained_context - size.length);
  std::size_t next = 0;
  for (const int n : {size.samples, size.passages}) {
    for (const int part : shuffled_parts(n, random))
      samples[next++].position_offset = spread_place(part, n, limit, random);
  }
}

// Where each sample starts. Passages first, so that training samples can keep off them.
std::vector<int> draw_starts(const SampleSize& size, int limit, std::mt19937_64& random) {
  constexpr int kTries = 32;
  std::vector<int> passages;
  for (int i = 0; i < size.passages; ++i) passages.push_back(spread_place(i, size.passages, limit, random));
  std::vector<int> starts;
  for (int i = 0; i < size.samples; ++i) {
    int start = 0;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      start = spread_place(i, size.samples, limit, random);
      if (std::none_of(passages.begin(), passages.end(),
                       [&](int passage) { return std::abs(passage - start) < size.length; })) {
        break;
      }
    }
    starts.push_back(start);
  }
  starts.insert(starts.end(), passages.begin(), passages.end());
  return starts;
}

// The token that a text begins with when the model adds one, or -1.
Result<std::int32_t> beginning_token(const Tokenizer& tokenizer) {
  const auto with = tokenizer.encode("a", /*add_special=*/true, /*parse_special=*/false);
  if (!with.ok()) return with.error();
  const auto without = tokenizer.encode("a", /*add_special=*/false, /*parse_special=*/false);
  if (!without.ok()) return without.error();
  const bool added = with->size() > without->size() && with->front() != without->front();
  return added ? with->front() : -1;
}

// Sequences that one model writes side by side.
class Writing {
 public:
  Writing(Engine& engine, AttentionBackend& backend, std::shared_ptr<const Plan> plan,
          const std::vector<Sample>& starts)
      : engine_(engine), backend_(backend), cache_(std::move(plan), /*byte_limit=*/0), texts_(starts) {
    for (std::size_t i = 0; i < starts.size(); ++i) sequences_.push_back(cache_.add());
  }

  Status add_tokens(std::vector<std::unique_ptr<Sampler>>& samplers) {
    std::vector<EngineInput> inputs;
    for (std::size_t i = 0; i < texts_.size(); ++i)
      inputs.push_back({sequences_[i], std::span(&texts_[i].tokens.back(), 1), false, 0});
    const int n = static_cast<int>(texts_.size());
    logits_.resize(static_cast<std::size_t>(n) * engine_.n_vocab());
    const MatrixView<float> logits(logits_.data(), n, engine_.n_vocab());
    KVANT_RETURN_IF_ERROR(engine_.step(cache_, backend_, inputs, logits));
    for (int i = 0; i < n; ++i)
      texts_[i].tokens.push_back(samplers[i]->pick({logits.row(i), static_cast<std::size_t>(logits.cols)}));
    return {};
  }
  std::vector<Sample> take() { return std::move(texts_); }

 private:
  Engine& engine_;
  AttentionBackend& backend_;
  Cache cache_;
  std::vector<Sample> texts_;
  std::vector<SequenceId> sequences_;
  std::vector<float> logits_;
};

// First tokens of texts to be written: the model's own beginning, or letters where it has none.
Result<std::vector<Sample>> beginnings(const Tokenizer& tokenizer, int n) {
  const auto bos = beginning_token(tokenizer);
  if (!bos.ok()) return bos.error();
  std::vector<Sample> samples(n);
  for (int i = 0; i < n; ++i) {
    samples[i].tokens.assign(1, *bos);
    if (*bos >= 0) continue;
    const auto letter = tokenizer.encode(std::string(1, static_cast<char>('A' + i % 26)), false, false);
    if (!letter.ok()) return letter.error();
    samples[i].tokens.assign(1, letter->front());
  }
  return samples;
}

}  // namespace

Result<std::vector<Sample>> samples_of_text(const Tokenizer& tokenizer, int trained_context,
                                            const std::string& text, const SampleSize& size) {
  const auto tokens = tokenizer.encode(text, /*add_special=*/false, /*parse_special=*/false);
  if (!tokens.ok()) return tokens.error();
  const auto bos = beginning_token(tokenizer);
  if (!bos.ok()) return bos.error();
  const int limit = static_cast<int>(tokens->size()) - size.length;
  if (limit < 0) {
    return error("the calibration text has {} tokens, a sample needs {}: give a longer text or --length",
                 tokens->size(), size.length);
  }
  std::mt19937_64 random(size.seed);
  const std::vector<int> starts = draw_starts(size, limit, random);
  std::vector<Sample> samples(starts.size());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    samples[i].tokens.assign(tokens->begin() + starts[i], tokens->begin() + starts[i] + size.length);
    if (*bos >= 0) samples[i].tokens.front() = *bos;
  }
  draw_offsets(size, trained_context, random, samples);
  return samples;
}

Result<std::vector<Sample>> samples_of_model(Engine& engine, AttentionBackend& backend,
                                             const SampleSize& size,
                                             const std::function<void(std::int64_t)>& advance,
                                             const std::atomic<bool>* stop) {
  const auto plan = resolve(Recipe{}, engine.geometry(), nullptr);
  if (!plan.ok()) return plan.error();
  const int n = size.samples + size.passages;
  auto starts = beginnings(engine.tokenizer(), n);
  if (!starts.ok()) return starts.error();
  std::vector<std::unique_ptr<Sampler>> samplers;
  for (int i = 0; i < n; ++i) {
    const auto seed = static_cast<std::uint32_t>(size.seed * 7919 + i);
    auto sampler =
        Sampler::make({.temperature = 1.0F, .top_k = 0, .top_p = 1.0F, .min_p = 0.0F, .seed = seed});
    if (!sampler.ok()) return sampler.error();
    samplers.push_back(std::move(*sampler));
  }
  Writing writing(engine, backend, *plan, *starts);
  advance(n);
  for (int token = 1; token < size.length; ++token) {
    if (stop != nullptr && *stop) return error("interrupted while the model wrote its samples");
    KVANT_RETURN_IF_ERROR(writing.add_tokens(samplers));
    advance(n);
  }
  std::vector<Sample> samples = writing.take();
  std::mt19937_64 random(size.seed);
  draw_offsets(size, engine.geometry().trained_context, random, samples);
  return samples;
}

}  // namespace kvant
