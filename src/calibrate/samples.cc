#include "calibrate/samples.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <random>

#include "calibrate/capture.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

// Returns a random place in part number `part` of n equal parts of [0, limit].
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

// Group describes the samples of one kind.
struct Group {
  int n = 0;
  int length = 0;
};
// Returns the groups in the order of their samples.
std::array<Group, 3> groups(const SampleSize& size) {
  return {
      Group{size.samples, size.length}, {size.passages, size.length}, {size.contexts, size.context_length}};
}

// Returns a generator of the random numbers of a group, which do not depend on other groups.
std::mt19937_64 random_of(const SampleSize& size, std::size_t group) {
  return std::mt19937_64(size.seed * 31 + group);
}

void set_offsets(const SampleSize& size, int trained_context, std::vector<Sample>& samples) {
  const std::vector<int> offsets = position_offsets(size, trained_context);
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i].position_offset = offsets[i];
}

// Draws the start of each sample of a group in a text of n_tokens, away from the passages if possible.
std::vector<int> draw_starts(const Group& group, int n_tokens, const std::vector<int>& passages,
                             int passage_length, std::mt19937_64 random) {
  constexpr int kTries = 32;
  std::vector<int> starts;
  for (int i = 0; i < group.n; ++i) {
    int start = 0;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      start = spread_place(i, group.n, n_tokens - group.length, random);
      const bool away = std::none_of(passages.begin(), passages.end(), [&](int passage) {
        return start < passage + passage_length && passage < start + group.length;
      });
      if (away) break;
    }
    starts.push_back(start);
  }
  return starts;
}

// Returns the token that the model adds at the start of a text, or -1 if it adds none.
Result<std::int32_t> beginning_token(const Tokenizer& tokenizer) {
  const auto with = tokenizer.encode("a", /*add_special=*/true, /*parse_special=*/false);
  if (!with.ok()) return with.error();
  const auto without = tokenizer.encode("a", /*add_special=*/false, /*parse_special=*/false);
  if (!without.ok()) return without.error();
  const bool added = with->size() > without->size() && with->front() != without->front();
  return added ? with->front() : -1;
}

// Writing generates the tokens of several sequences at the same time.
class Writing {
 public:
  Writing(Engine& engine, AttentionBackend& backend, PlacedPlan plan, const std::vector<Sample>& starts)
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

// Returns the first tokens of the texts to be generated: the model's BOS, or letters if it has none.
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

Result<std::vector<Sample>> write_group(Engine& engine, AttentionBackend& backend, const Group& group,
                                        std::uint64_t seed, const std::function<void(std::int64_t)>& advance,
                                        const std::atomic<bool>* stop) {
  if (group.n == 0) return std::vector<Sample>();
  const auto resolved = resolve(Recipe{}, engine.geometry(), nullptr);
  if (!resolved.ok()) return resolved.error();
  const auto plan = backend.place(*resolved);
  if (!plan.ok()) return plan.error();
  auto starts = beginnings(engine.tokenizer(), group.n);
  if (!starts.ok()) return starts.error();
  std::vector<std::unique_ptr<Sampler>> samplers;
  for (int i = 0; i < group.n; ++i) {
    const auto own_seed = static_cast<std::uint32_t>(seed * 65537 + i);
    auto sampler =
        Sampler::make({.temperature = 1.0F, .top_k = 0, .top_p = 1.0F, .min_p = 0.0F, .seed = own_seed});
    if (!sampler.ok()) return sampler.error();
    samplers.push_back(std::move(*sampler));
  }
  Writing writing(engine, backend, *plan, *starts);
  advance(group.n);
  for (int token = 1; token < group.length; ++token) {
    if (stop != nullptr && *stop) return error("interrupted while the model wrote its samples");
    KVANT_RETURN_IF_ERROR(writing.add_tokens(samplers));
    advance(group.n);
  }
  return writing.take();
}

}  // namespace

Result<std::vector<Sample>> samples_of_text(const Tokenizer& tokenizer, int trained_context,
                                            const std::string& text, const SampleSize& size) {
  const auto tokens = tokenizer.encode(text, /*add_special=*/false, /*parse_special=*/false);
  if (!tokens.ok()) return tokens.error();
  const auto bos = beginning_token(tokenizer);
  if (!bos.ok()) return bos.error();
  return samples_of_tokens(*tokens, *bos, trained_context, size);
}

Result<std::vector<Sample>> samples_of_tokens(std::span<const std::int32_t> tokens, std::int32_t bos,
                                              int trained_context, const SampleSize& size) {
  const int n_tokens = static_cast<int>(tokens.size());
  const int longest = std::max(size.length, size.contexts > 0 ? size.context_length : 0);
  if (n_tokens < longest) {
    return error("the calibration text has {} tokens, and a sample needs {}: give a longer text", n_tokens,
                 longest);
  }
  const auto [training, judging, contexts] = groups(size);
  const std::vector<int> passages = draw_starts(judging, n_tokens, {}, 0, random_of(size, 1));
  std::vector<Sample> samples;
  const auto cut = [&](const std::vector<int>& starts, int length) {
    for (const int start : starts) {
      samples.push_back({{tokens.begin() + start, tokens.begin() + start + length}, 0});
      if (bos >= 0) samples.back().tokens.front() = bos;
    }
  };
  cut(draw_starts(training, n_tokens, passages, size.length, random_of(size, 0)), training.length);
  cut(passages, judging.length);
  cut(draw_starts(contexts, n_tokens, passages, size.length, random_of(size, 2)), contexts.length);
  set_offsets(size, trained_context, samples);
  return samples;
}

// The offsets of each group are spread over the whole range.
std::vector<int> position_offsets(const SampleSize& size, int trained_context) {
  std::vector<int> offsets;
  const auto all = groups(size);
  for (std::size_t g = 0; g < all.size(); ++g) {
    std::mt19937_64 random = random_of(size, g + all.size());
    const int limit = std::max(0, trained_context - all[g].length);
    for (const int part : shuffled_parts(all[g].n, random))
      offsets.push_back(spread_place(part, all[g].n, limit, random));
  }
  return offsets;
}

std::int64_t written_tokens(const SampleSize& size) {
  std::int64_t sum = 0;
  for (const Group& group : groups(size)) sum += static_cast<std::int64_t>(group.n) * group.length;
  return sum;
}

Result<std::vector<Sample>> samples_of_model(Engine& engine, AttentionBackend& backend,
                                             const SampleSize& size,
                                             const std::function<void(std::int64_t)>& advance,
                                             const std::atomic<bool>* stop) {
  std::vector<Sample> samples;
  std::uint64_t seed = size.seed * 7919;
  for (const Group& group : groups(size)) {
    auto written = write_group(engine, backend, group, seed++, advance, stop);
    if (!written.ok()) return written.error();
    std::move(written->begin(), written->end(), std::back_inserter(samples));
  }
  set_offsets(size, engine.geometry().trained_context, samples);
  return samples;
}

}  // namespace kvant
