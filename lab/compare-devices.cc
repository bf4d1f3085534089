// compare_devices MODEL DEVICE TEXT [RECIPE [N]] compares the engine on a device with the engine on the CPU,
// both with weights expanded to F32.
//
// The program compares the logits of the text's first 512 tokens, and greedy completions of N tokens for each
// of the text's first 20 paragraphs. The program prints the relative difference of the logits. For
// comparison, it prints how much the logits of the CPU's engine change when the engine's keys change by a
// rounding of F32. The program also prints every token that the CPU would not have chosen, with the
// difference of the logits.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "attention/device_backend.h"
#include "model/compute_device.h"
#include "model/engine.h"
#include "model/tokenizer.h"

using namespace kvant;

namespace {

// Changes each key by about 1e-7 of its size, which is F32's precision. Another order of summation causes
// changes of this size. Rounding in the cache enlarges these changes. The effect is the smallest difference
// that two engines with different orders can have.
class OtherwiseSummedKeys : public BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override {
    if (!rows.has_kv()) return inner().run_layer(step, layer, rows, team);
    team.once([&] { change(rows.k); });
    LayerRows changed = rows;
    changed.k = {keys_.data(), rows.k.rows, rows.k.cols};
    inner().run_layer(step, layer, changed, team);
  }

 private:
  void change(const MatrixView<const float>& k) {
    keys_.resize(std::size_t{1} * k.rows * k.cols);
    std::normal_distribution<float> normal(1, 1e-7F);
    for (int row = 0; row < k.rows; ++row)
      std::transform(k.row(row), k.row(row) + k.cols, keys_.begin() + std::ptrdiff_t{1} * row * k.cols,
                     [&](float x) { return x * normal(random_); });
  }

  std::vector<float> keys_;  // [n_rows, n_kv_heads * head_dim]
  std::mt19937 random_{1};
};

struct Machine {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<AttentionBackend> backend;
  std::unique_ptr<Cache> cache;

  Machine(const std::string& path, const std::string& recipe, const std::shared_ptr<ComputeDevice>& device)
      : engine(Engine::load(path, {16, WeightMode::f32, 0, device}).value()),
        backend(device == nullptr ? make_backend("cpu").value() : make_device_backend(device->pages())) {
    const auto plan = resolve(parse_recipe(recipe + ",tail=bf16").value(), engine->geometry(), nullptr,
                              backend->page_order());
    cache = std::make_unique<Cache>(backend->place(plan.value()).value(), 0);
  }

  // Returns the logits of the last n tokens.
  std::vector<float> run(SequenceId sequence, std::span<const std::int32_t> tokens, bool is_prompt, int n) {
    return run(sequence, tokens, is_prompt, n, *backend);
  }
  std::vector<float> run(SequenceId sequence, std::span<const std::int32_t> tokens, bool is_prompt, int n,
                         AttentionBackend& attention) {
    std::vector<float> logits(std::size_t{1} * n * engine->n_vocab());
    const EngineInput input{sequence, tokens, is_prompt, static_cast<int>(tokens.size()) - n};
    const Status status = engine->step(*cache, attention, {&input, 1}, {logits.data(), n, engine->n_vocab()});
    if (!status.ok()) fmt::print("{}\n", status.error().message);
    return logits;
  }
};

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, energy = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    energy += std::pow(double{a[i]}, 2);
  }
  return std::sqrt(difference / energy);
}

std::int32_t best(const float* logits, int n) {
  return static_cast<std::int32_t>(std::max_element(logits, logits + n) - logits);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print("usage: compare_devices MODEL DEVICE TEXT [RECIPE [N]]\n");
    return 2;
  }
  const auto device = open_device(argv[2]);
  if (!device.ok()) {
    fmt::print("{}\n", device.error().message);
    return 1;
  }
  const std::string recipe = argc > 4 ? argv[4] : "bf16";
  const int n_generated = argc > 5 ? std::stoi(argv[5]) : 200;
  Machine cpu(argv[1], recipe, nullptr), gpu(argv[1], recipe, *device);
  std::ifstream file(argv[3]);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto tokens = cpu.engine->tokenizer().encode(text, /*add_special=*/true, /*parse_special=*/false).value();
  tokens.resize(std::min<std::size_t>(tokens.size(), 512));
  const int n = static_cast<int>(tokens.size()), n_vocab = cpu.engine->n_vocab();
  const auto expected = cpu.run(cpu.cache->add(), tokens, true, n),
             found = gpu.run(gpu.cache->add(), tokens, true, n);
  OtherwiseSummedKeys otherwise(*cpu.backend);
  fmt::print("{}: {} logits of {} tokens: relative difference {:.2e}, the CPU's from itself {:.2e}\n", recipe,
             n_vocab, n, relative_difference(expected, found),
             relative_difference(expected, cpu.run(cpu.cache->add(), tokens, true, n, otherwise)));

  int n_prompts = 0, n_equal = 0;
  double seconds = 0;  // seconds of the device
  std::istringstream lines(text);
  for (std::string line; n_prompts < 20 && std::getline(lines, line);) {
    if (line.size() < 200) continue;
    ++n_prompts;
    auto all = cpu.engine->tokenizer().encode(line.substr(0, 200), true, false).value();
    const std::size_t n_prompt = all.size();
    const SequenceId sequence = gpu.cache->add();
    const auto start = std::chrono::steady_clock::now();
    auto logits = gpu.run(sequence, all, true, 1);
    for (int i = 0; i < n_generated; ++i) {
      const std::int32_t token = best(logits.data(), n_vocab);
      all.push_back(token);
      logits = gpu.run(sequence, {&token, 1}, false, 1);
    }
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto chosen = cpu.run(cpu.cache->add(), all, true, n_generated + 1);
    bool equal = true;
    for (int i = 0; i < n_generated; ++i) {
      const float* row = chosen.data() + std::size_t{1} * i * n_vocab;
      const std::int32_t choice = best(row, n_vocab), token = all[n_prompt + i];
      if (choice == token) continue;
      equal = false;
      fmt::print("  prompt {}, token {}: the CPU's logit of its own choice is {:.4f} higher\n", n_prompts, i,
                 row[choice] - row[token]);
    }
    n_equal += equal ? 1 : 0;
  }
  fmt::print("{}: {} of {} greedy answers of {} tokens are the CPU's choices throughout\n", recipe, n_equal,
             n_prompts, n_generated);
  return 0;
}
