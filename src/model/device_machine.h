// Runs engines with a cache, on the CPU and on test devices, for tests that compare them. Results on a device
// differ from the CPU's only by rounding, for which each device has bounds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "attention/device_backend.h"
#include "cache/cache_fixture.h"
#include "cache/synthetic_sequence.h"
#include "model/engine.h"
#include "model/host_device.h"
#include "model/tiny_model.h"
#include "recipe/recipe.h"

namespace kvant::testing {

// Machine is an engine with a cache, on the CPU or on a device. kv_offload says whether a device's engine
// keeps its cache on the device, too.
class Machine {
 public:
  Machine(const std::string& path, const std::string& recipe, const std::shared_ptr<ComputeDevice>& device,
          bool kv_offload = true)
      : backend_(device == nullptr || !kv_offload ? make_reference_backend()
                                                  : make_device_backend(device->pages())),
        engine_(Engine::load(path, {.n_threads = 1, .device = device}).value()) {
    Recipe parsed = parse_recipe(recipe + ",tail=bf16").value();
    if (device == nullptr || !kv_offload)
      parsed.prompt = PromptAttention::exact;  // the CPU has no kernel for INT8 prompt attention
    const auto plan = resolve(parsed, engine_->geometry(), made_up_constants(parsed, engine_->geometry()));
    EXPECT_TRUE(plan.ok()) << recipe << ": " << plan.error().message;
    const auto placed = backend_->place(plan.value());
    EXPECT_TRUE(placed.ok()) << recipe << ": " << placed.error().message;
    cache_ = std::make_unique<Cache>(placed.value(), 0);
  }

  Cache& cache() { return *cache_; }
  std::size_t n_vocab() const { return engine_->n_vocab(); }

  // Runs one step and returns the logits of every token of all slices.
  std::vector<float> step(const std::vector<EngineInput>& inputs) {
    int n = 0;
    for (const EngineInput& input : inputs) n += static_cast<int>(input.tokens.size());
    std::vector<float> logits(n * n_vocab());
    step(inputs, {logits.data(), n, static_cast<int>(n_vocab())});
    return logits;
  }
  // Runs a step of inputs that request no logits.
  void step_without_logits(const std::vector<EngineInput>& inputs) {
    step(inputs, {nullptr, 0, static_cast<int>(n_vocab())});
  }
  std::vector<float> run(SequenceId sequence, std::span<const std::int32_t> tokens, bool is_prompt,
                         int chunk) {
    std::vector<float> logits;
    for (std::size_t first = 0; first < tokens.size(); first += chunk) {
      const auto some = tokens.subspan(first, std::min<std::size_t>(chunk, tokens.size() - first));
      const std::vector<float> of_step = step({{sequence, some, is_prompt}});
      logits.insert(logits.end(), of_step.begin(), of_step.end());
    }
    return logits;
  }
  // Reads the first n_prompt tokens as a prompt and decodes the others. Returns the logits of all tokens.
  std::vector<float> read_and_decode(SequenceId sequence, std::span<const std::int32_t> tokens, int n_prompt,
                                     int prompt_chunk, int decode_chunk) {
    std::vector<float> logits = run(sequence, tokens.first(n_prompt), true, prompt_chunk);
    const std::vector<float> decoded = run(sequence, tokens.subspan(n_prompt), false, decode_chunk);
    logits.insert(logits.end(), decoded.begin(), decoded.end());
    return logits;
  }

 private:
  void step(const std::vector<EngineInput>& inputs, MatrixView<float> logits) {
    const Status status = engine_->step(*cache_, *backend_, inputs, logits);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  }

  std::unique_ptr<AttentionBackend> backend_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Cache> cache_;
};

inline std::vector<std::int32_t> some_tokens(int n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::int32_t> token(3, TinyModelWriter::kVocabulary - 1);
  std::vector<std::int32_t> tokens(n);
  for (std::int32_t& t : tokens) t = token(random);
  return tokens;
}

inline double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, energy = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    energy += std::pow(double{a[i]}, 2);
  }
  return std::sqrt(difference / energy);
}

// Returns the relative difference of each row, in ascending order.
inline std::vector<double> row_differences(const std::vector<float>& a, const std::vector<float>& b,
                                           std::size_t n_columns) {
  std::vector<double> differences;
  for (std::size_t at = 0; at < std::min(a.size(), b.size()); at += n_columns) {
    const auto row = [&](const std::vector<float>& rows) {
      return std::vector<float>(rows.begin() + static_cast<std::ptrdiff_t>(at),
                                rows.begin() + static_cast<std::ptrdiff_t>(at + n_columns));
    };
    differences.push_back(relative_difference(row(a), row(b)));
  }
  std::sort(differences.begin(), differences.end());
  return differences;
}

// Place is a device for tests, with bounds for the relative difference of logits. between_ways bounds two
// ways to the same result, because a GPU multiplies batches of different sizes with different kernels.
// from_cpu bounds the difference from the CPU. On a device, queries and unsealed rows are BF16, so some codes
// differ, and a GPU searches trellises in another way.
struct Place {
  const char* name;
  double between_ways, from_cpu;
};
inline constexpr Place kPlaces[] = {{"host", 1e-3, 0.15}, {"cuda", 0.1, 0.15}};

// Returns the place with larger bounds where the recipe needs them. Short chunks use the decode kernel, and
// the INT8 prompt kernel writes BF16. With query-weighted errors, one different code of a row changes the
// codes after it.
inline Place with_recipe(Place place, const std::string& recipe) {
  const bool shaped = recipe.starts_with("kvant") || recipe.find("encode=shaped") != std::string::npos;
  if (recipe.ends_with("flashq")) place.between_ways = std::max(place.between_ways, shaped ? 0.15 : 0.02);
  if (shaped) place.from_cpu = std::max(place.from_cpu, 0.25);
  return place;
}

// Returns the device, or null if this machine does not have it.
inline std::shared_ptr<ComputeDevice> device_at(const Place& place) {
  if (place.name == std::string("host")) return std::make_shared<HostDevice>();
  static const auto gpu = open_device(place.name);  // starting a GPU takes a second
  return gpu.ok() ? *gpu : nullptr;
}

// Returns the model with a number of delta-net heads that a GPU has kernels for: CUDA requires a multiple of
// 128 channels.
inline TinyModel with_whole_blocks(TinyModel model) {
  const int n_heads = 128 / model.delta_head_dim;
  model.n_delta_value_heads = (model.n_delta_value_heads + n_heads - 1) / n_heads * n_heads;
  return model;
}

// HostAndDevice runs one model and recipe on the CPU and on a device, as a base of fixtures.
class HostAndDevice {
 protected:
  // Each fixture needs a `file` name of its own, because tests run at the same time.
  explicit HostAndDevice(const std::string& file) : file_(file) {}

  // Returns false if this machine does not have the device.
  bool load(const Place& place, const TinyModel& model, const std::string& recipe) {
    const auto device = device_at(place);
    if (device == nullptr) return false;
    TinyModelWriter(model).write(file_.path());
    host_ = std::make_unique<Machine>(file_.path(), recipe, nullptr);
    device_ = std::make_unique<Machine>(file_.path(), recipe, device);
    return true;
  }

  // Compares the logits of a prompt and of n_decoded tokens after it with the CPU's logits. The prompt is
  // read in steps of each size in `chunks`. The first size is the whole prompt. `close` bounds the difference
  // from the CPU, and `same` the difference between the step sizes (Place).
  void expect_logits_of_the_cpu(std::initializer_list<int> chunks, int n_decoded, double close, double same) {
    const int n_prompt = *chunks.begin();
    const auto tokens = some_tokens(n_prompt + n_decoded, 1);
    const std::vector<float> expected =
        host_->read_and_decode(host_->cache().add(), tokens, n_prompt, n_prompt, 1);
    std::vector<float> first;
    for (const int chunk : chunks) {
      const SequenceId sequence = device_->cache().add();
      const std::vector<float> found = device_->read_and_decode(sequence, tokens, n_prompt, chunk,
                                                                /*decode_chunk=*/chunk == n_prompt ? 30 : 1);
      EXPECT_LT(relative_difference(expected, found), close) << chunk;
      if (first.empty()) first = found;
      EXPECT_LT(relative_difference(first, found), same) << chunk;
      EXPECT_EQ(device_->cache().length(sequence), n_prompt + n_decoded);
    }
  }

  // Moves a sequence of n tokens, with a checkpoint after 200, from the CPU to the device. The sequence must
  // continue there as on the CPU. Returns the device's sequence.
  SequenceId expect_import_goes_on(int n, int n_decoded, double close) {
    const auto tokens = some_tokens(n, 11), other = some_tokens(n_decoded, 12);
    const SequenceId expected = host_->cache().add();
    host_->run(expected, std::span(tokens).first(200), true, 200);
    EXPECT_TRUE(host_->cache().checkpoint(expected).ok());
    host_->run(expected, std::span(tokens).subspan(200), true, n - 200);
    const std::vector<std::byte> image = host_->cache().export_sequence(expected).value();
    const SequenceId sequence = device_->cache().import_sequence(image).value();
    EXPECT_TRUE(device_->cache().export_sequence(sequence).value() == image);
    const SequenceId branch = device_->cache().fork(sequence).value();
    EXPECT_LT(
        relative_difference(host_->run(expected, other, false, 1), device_->run(branch, other, false, 1)),
        close);
    return sequence;
  }

  // Forks a sequence at n_prompt of its n tokens. The fork must take no pages, and its n_branch further
  // tokens must not change the first sequence.
  void expect_forks_share(int n_prompt, int n, int n_branch, double same) {
    const auto tokens = some_tokens(n, 4);
    const auto prompt = std::span(tokens).first(n_prompt), rest = std::span(tokens).subspan(n_prompt);
    Cache& cache = device_->cache();
    const SequenceId whole = cache.add(), trunk = cache.add();
    device_->run(whole, prompt, true, n_prompt);
    const std::vector<float> expected = device_->run(whole, rest, false, 1);
    device_->run(trunk, prompt, true, n_prompt);
    const std::int64_t before = cache.page_bytes_in_use();
    const SequenceId branch = cache.fork(trunk).value();
    EXPECT_EQ(cache.page_bytes_in_use(), before);
    device_->run(branch, some_tokens(n_branch, 5), false, 1);
    EXPECT_LT(relative_difference(expected, device_->run(trunk, rest, false, 1)), same);
    for (const SequenceId id : {branch, trunk, whole}) cache.free(id);
    EXPECT_EQ(cache.page_bytes_in_use(), 0);
  }

  // Fills a sequence with n made-up tokens, as benchmarks do in place of a prompt, and decodes from there.
  void expect_fills_for_benchmarks(int n) {
    Cache& cache = device_->cache();
    const SequenceId sequence = cache.add();
    ASSERT_TRUE(fill_synthetic(cache, sequence, n, 1).ok());
    EXPECT_EQ(cache.length(sequence), n);
    for (const float x : device_->run(sequence, some_tokens(2, 9), false, 1)) ASSERT_TRUE(std::isfinite(x));
    EXPECT_EQ(cache.length(sequence), n + 2);
  }

  // Gives up a step of 180 tokens that was reserved after 120 tokens. The sequence must continue as if the
  // step had never begun.
  void expect_abort_changes_nothing(double same) {
    const auto tokens = some_tokens(300, 8);
    const auto before_it = std::span(tokens).first(120), after_it = std::span(tokens).subspan(120);
    Cache& cache = device_->cache();
    const SequenceId whole = cache.add(), sequence = cache.add();
    device_->run(whole, before_it, true, 120);
    const std::vector<float> expected = device_->run(whole, after_it, true, 180);
    device_->run(sequence, before_it, true, 120);
    const std::int64_t bytes = cache.page_bytes_in_use();
    cache.reserve({{sequence, 180, true}}).value()->abort();
    EXPECT_EQ(cache.page_bytes_in_use(), bytes);
    EXPECT_LT(relative_difference(expected, device_->run(sequence, after_it, true, 180)), same);
  }

  TinyFile file_;
  std::unique_ptr<Machine> host_, device_;
};

}  // namespace kvant::testing
