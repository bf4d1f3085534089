// Contender: one row of the engine benchmark, kvant with a recipe or llama.cpp with a cache type.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "model/compute_device.h"
#include "model/engine.h"

namespace kvant {

// Returns whether a rival's cache stores at least as many bits as one of `bits`, so their speeds may be
// compared. The tolerance of a hundredth allows for free slots of a tail. Caches of more than 16 bits count
// as unquantized and are compared with unquantized ones.
inline bool stores_as_many_bits(double rival_bits, double bits) {
  constexpr double kUnquantizedBits = 16;
  return rival_bits * 1.01 >= std::min(bits, kUnquantizedBits);
}

class Contender {
 public:
  virtual ~Contender() = default;
  virtual const std::string& name() const = 0;
  // The name that was asked for. It differs where the uncalibrated recipe is used.
  virtual std::string asked() const { return name(); }
  // Cache bits per element of K and V at the depth filled last; 0 at depth 0.
  virtual double bits() const = 0;
  // Fills the cache to `depth` tokens, with a text or with synthetic contents. Depths must not decrease.
  virtual Status fill(int depth) = 0;
  // Runs a prompt of n tokens after the filled ones of one sequence, then forgets it. Returns seconds.
  virtual Result<double> prompt_seconds(int n) = 0;
  // Generates n tokens of each sequence one by one after the filled ones, then forgets them. Returns the
  // seconds of each step. Work done once at the start of decoding (sealing the end of the prompt) happens
  // before the clock starts.
  virtual Result<std::vector<double>> token_seconds(int n) = 0;
};

// The tokens that fill the contenders' caches and are run after them. Null: synthetic contents and arbitrary
// tokens. A text only affects speed by what can be skipped (Sparse V).
using BenchText = std::shared_ptr<const std::vector<std::int32_t>>;

// Options that all contenders of a run share.
struct ContenderOptions {
  int prompt_step = 512;   // tokens of one step of a prompt, at most
  int parallel = 1;        // sequences that are decoded at a time, each filled to the depth
  bool kv_offload = true;  // llama.cpp's cache is on the model's device; else the CPU attends
  BenchText text;
};

// Returns token i of those that are run at `depth`.
inline std::int32_t bench_token(const BenchText& text, int depth, int i, int n_vocab) {
  return text == nullptr ? (i * 7919 + 11) % n_vocab : (*text)[(depth + i) % text->size()];
}

// Calls run(i) for tokens 1 to n and returns the seconds of each.
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

// kvant's engine with `plan`. engine and backend must outlive it. guard_every: a QualityGuard checks each
// layer in one of this many steps; 0: no guard.
std::unique_ptr<Contender> make_engine_contender(std::string name, Engine& engine, AttentionBackend& backend,
                                                 PlacedPlan plan, ContenderOptions options = {},
                                                 int guard_every = 0);

// llama.cpp with the cache types and graph that a row's name says ("llama.cpp:f16-plain"), on the GGUF file
// as it is. max_depth: tokens to make room for in each sequence, beyond max_new for prompts and generations.
class LlamaModelFile;
// device: runs all of the model; null: the CPU.
Result<std::shared_ptr<LlamaModelFile>> open_llama_model(const std::string& path, const Geometry& geometry,
                                                         const ComputeDevice* device = nullptr);
Result<std::unique_ptr<Contender>> make_llama_contender(const std::string& name,
                                                        std::shared_ptr<LlamaModelFile> model, int max_depth,
                                                        int max_new, int n_threads,
                                                        ContenderOptions options = {});

}  // namespace kvant
