// Writes the K, V and queries of two KV heads of a layer. Kernels are tested on these values of a real model
// (data/captured) in addition to random ones. `cmake --build build/default --target capture_heads` builds the
// program:
//
//   build/default/capture_heads MODEL.gguf TEXT LAYER OUT
//
// OUT holds rows in bfloat16 with the channels of both heads side by side. The rows are kTokens rows of K
// after RoPE, kTokens rows of V, and queries of the last kQueryTokens tokens. The rows of the first query
// head of each KV head come first, then the rows of the second query heads, and so on.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/float16.h"
#include "eval/quality_eval.h"
#include "model/engine.h"
#include "model/tokenizer.h"

namespace {

using namespace kvant;

constexpr int kTokens = 256, kQueryTokens = 16, kHeads = 2;

// Attends with the reference backend and keeps the rows of one layer.
class KeepingBackend final : public AttentionBackend {
 public:
  KeepingBackend(const Geometry& geometry, int layer)
      : geometry_(geometry), layer_(layer), inner_(make_reference_backend()) {}

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override {
    if (layer == layer_ && team.index() == 0) keep(rows);
    inner_->run_layer(step, layer, rows, team);
  }
  KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const override {
    return inner_->kernel(plan, layer, kv_head, side);
  }
  const std::vector<std::uint16_t>& numbers() const { return numbers_; }

 private:
  void keep(const LayerRows& rows) {
    const int group = geometry_.n_heads / geometry_.n_kv_heads;
    append(rows.k, 0, 0, 1);
    append(rows.v, 0, 0, 1);
    for (int i = 0; i < group; ++i) append(rows.q, kTokens - kQueryTokens, i, group);
  }
  // Appends the rows from first_row on, with the channels of heads first_head, first_head + head_step, and so
  // on.
  void append(const MatrixView<const float>& rows, int first_row, int first_head, int head_step) {
    const int d = geometry_.head_dim;
    for (int row = first_row; row < kTokens; ++row)
      for (int head = 0; head < kHeads; ++head)
        for (int i = 0; i < d; ++i)
          numbers_.push_back(bf16_from_float(rows.row(row)[(first_head + head * head_step) * d + i]));
  }

  Geometry geometry_;
  int layer_;
  std::unique_ptr<AttentionBackend> inner_;
  std::vector<std::uint16_t> numbers_;
};

template <class T>
T& value_or_exit(Result<T>& result) {
  if (result.ok()) return *result;
  std::fprintf(stderr, "capture_heads: %s\n", result.error().message.c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "capture_heads MODEL.gguf TEXT LAYER OUT\n");
    return 2;
  }
  auto loaded = Engine::load(argv[1], {.weights = WeightMode::f32});
  Engine& engine = *value_or_exit(loaded);
  std::ifstream text_file(argv[2]);
  const std::string text{std::istreambuf_iterator<char>(text_file), {}};
  auto tokenized = tokenize_for_eval(engine.tokenizer(), text);
  const EvalText& tokens = value_or_exit(tokenized);
  const Geometry& geometry = engine.geometry();
  const int layer = std::atoi(argv[3]);
  if (tokens.tokens.size() < kTokens || geometry.n_kv_heads < kHeads || layer >= geometry.n_layers) {
    std::fprintf(stderr, "capture_heads: the text is too short, or the model has no such layer or heads\n");
    return 1;
  }
  auto plan = resolve(Recipe{}, geometry, nullptr);
  Cache cache(value_or_exit(plan), /*byte_limit=*/0);
  KeepingBackend backend(geometry, layer);
  const EngineInput input{cache.add(), std::span(tokens.tokens).first(kTokens), true, kTokens};
  if (const Status status = engine.step(cache, backend, {&input, 1}, {}); !status.ok()) {
    std::fprintf(stderr, "capture_heads: %s\n", status.error().message.c_str());
    return 1;
  }
  std::ofstream out(argv[4], std::ios::binary);
  out.write(reinterpret_cast<const char*>(backend.numbers().data()),
            static_cast<std::streamsize>(backend.numbers().size() * sizeof(std::uint16_t)));
  return out.good() ? 0 : 1;
}
