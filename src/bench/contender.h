// Defines Contender, a row of the engine benchmark: kvant with a recipe, or llama.cpp with a cache type.
// engine_contender.cc and llama_contender.cc implement the two kinds.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "model/compute_device.h"
#include "model/engine.h"

namespace kvant {

// Returns whether a rival's cache stores at least as many bits as a cache of `bits`. The two speeds may then
// be compared. The tolerance of a hundredth allows for free slots of a tail. Caches of more than 16 bits
// count as unquantized and are compared with unquantized caches.
inline bool stores_as_many_bits(double rival_bits, double bits) {
  constexpr double kUnquantizedBits = 16;
  return rival_bits * 1.01 >= std::min(bits, kUnquantizedBits);
}

class Contender {
 public:
  virtual ~Contender() = default;
  virtual const std::string& name() const = 0;
  // Returns the requested name, which differs from name() if the uncalibrated recipe is used.
  virtual std::string asked() const { return name(); }
  // Returns the cache's bits per number of K and V at the depth that was filled last, or 0 at depth 0.
  virtual double bits() const = 0;
  // Fills the cache to `depth` tokens, with a text or with synthetic contents. Depths must not decrease.
  virtual Status fill(int depth) = 0;
  // Runs a prompt of n tokens after the filled tokens of one sequence, then forgets the prompt. Returns
  // seconds.
  virtual Result<double> prompt_seconds(int n) = 0;
  // Generates n tokens of each sequence in single steps after the filled tokens, then forgets the generated
  // tokens. Returns the seconds of each step. One untimed step comes first, because the first step after a
  // prompt also seals the end of the prompt.
  virtual Result<std::vector<double>> token_seconds(int n) = 0;
};

// Holds the tokens that fill the contenders' caches and that are run afterwards. Null means synthetic
// contents and arbitrary tokens. A text affects speed only if kernels can skip values (Sparse V).
using BenchText = std::shared_ptr<const std::vector<std::int32_t>>;

// Holds options that all contenders of a run share.
struct ContenderOptions {
  int prompt_step = 512;  // largest number of tokens of one step of a prompt
  // This many sequences are decoded at a time, each filled to the depth.
  int parallel = 1;
  // If true, llama.cpp's cache is on the model's device. If false, the CPU attends.
  bool kv_offload = true;
  BenchText text;
};

// Returns token i of the tokens that are run at `depth`.
inline std::int32_t bench_token(const BenchText& text, int depth, int i, int n_vocab) {
  return text == nullptr ? (i * 7919 + 11) % n_vocab : (*text)[(depth + i) % text->size()];
}

// Calls run(i) for each i in [1, n], and returns the seconds of each call.
template <class Run>
Result<std::vector<double>> time_tokens(int n, const Run& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  seconds.reserve(n);
  auto before = Clock::now();
  for (int i = 1; i <= n; ++i) {
    KVANT_RETURN_IF_ERROR(run(i));
    const auto now = Clock::now();
    seconds.push_back(std::chrono::duration<double>(now - before).count());
    before = now;
  }
  return seconds;
}

// Makes the contender of kvant's engine with `plan`. `engine` and `backend` must outlive the contender. If
// guard_every is not 0, a QualityGuard checks each layer in one of guard_every steps.
std::unique_ptr<Contender> make_engine_contender(std::string name, Engine& engine, AttentionBackend& backend,
                                                 PlacedPlan plan, ContenderOptions options = {},
                                                 int guard_every = 0);

// Holds a model that llama.cpp has loaded.
class LlamaModelFile;
// Loads a GGUF file as it is. All of the model runs on `device`, or on the CPU if `device` is null.
Result<std::shared_ptr<LlamaModelFile>> open_llama_model(const std::string& path, const Geometry& geometry,
                                                         const ComputeDevice* device = nullptr);
// Makes the contender of llama.cpp. The name gives the cache types and the graph, for example
// "llama.cpp:f16-plain". Each sequence has room for max_depth tokens, and for max_new more tokens in prompts
// and generations.
Result<std::unique_ptr<Contender>> make_llama_contender(const std::string& name,
                                                        std::shared_ptr<LlamaModelFile> model, int max_depth,
                                                        int max_new, int n_threads,
                                                        ContenderOptions options = {});

}  // namespace kvant
