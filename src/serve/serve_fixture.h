// FakeEngine is an engine without a model, for tests. The logits depend only on a sequence's length and
// newest token, so a test can compute the expected tokens.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/check.h"
#include "cache/cache_fixture.h"
#include "chat/chat_template.h"
#include "model/engine.h"
#include "model/tokenizer.h"

namespace kvant::testing {

inline constexpr int kFakeVocabulary = 64;
inline constexpr std::int32_t kFakeEnd = 0;
inline constexpr std::int32_t kFakeUnsaid = kFakeVocabulary - 1;  // the engine never predicts this token

// FakeTokenizer spells token t as the letter number t % 26. Encoding is the inverse only for lowercase
// letters.
class FakeTokenizer : public Tokenizer {
 public:
  Result<std::vector<std::int32_t>> encode(const std::string& text, bool, bool) const override {
    std::vector<std::int32_t> tokens;
    for (const char c : text)
      tokens.push_back(c >= 'a' && c <= 'z' ? 26 + c - 'a'
                                            : 1 + static_cast<unsigned char>(c) % (kFakeVocabulary - 1));
    return tokens;
  }
  std::string piece(std::int32_t token) const override { return {static_cast<char>('a' + token % 26)}; }
  bool ends_generation(std::int32_t token) const override { return token == kFakeEnd; }
};

// FakeChatTemplate writes each message as a line "role:content".
class FakeChatTemplate : public ChatTemplate {
 public:
  bool has_tools() const override { return false; }
  Result<TemplatedChat> apply(const nlohmann::ordered_json& messages, const ChatTools&,
                              const nlohmann::ordered_json&, const ThinkingOptions&) const override {
    const ChatText chat = write(messages).value();
    return TemplatedChat{.prompt = chat.text, .tokens = encode(chat, 0).value()};
  }
  Result<ChatText> write(const nlohmann::ordered_json& messages) const override {
    ChatText chat;
    for (const auto& message : messages)
      chat.text += message["role"].get<std::string>() + ":" + message["content"].get<std::string>() + "\n";
    return chat;
  }
  Result<std::vector<std::int32_t>> encode(const ChatText& chat, std::size_t from) const override {
    return FakeTokenizer().encode(chat.text.substr(from), true, true);
  }
};

// FakeEngine appends and seals like the cache's tests. The engine's logits are a function of the sequence's
// length and newest token.
class FakeEngine : public Engine {
 public:
  struct StepRecord {
    int prompt_tokens = 0;
    int decoded = 0;
    bool operator==(const StepRecord&) const = default;
  };

  explicit FakeEngine(Geometry geometry) : geometry_(std::move(geometry)) {}

  const Geometry& geometry() const override { return geometry_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  int n_vocab() const override { return kFakeVocabulary; }
  std::string description() const override { return "fake"; }
  std::int64_t weight_bytes() const override { return 0; }
  std::int64_t host_weight_bytes() const override { return 0; }
  std::string fingerprint() const override { return "0000000000000000"; }
  ModelParts parts() const override { KVANT_CHECK(false, "a fake engine has no weights"); }
  int independent_sequences() const override { return most_decoded; }

  Status step(Cache& cache, AttentionBackend&, std::span<const EngineInput> inputs,
              MatrixView<float> logits) override {
    std::vector<StepSlice> slices;
    StepRecord record;
    for (const EngineInput& input : inputs) {
      slices.push_back({input.sequence, static_cast<int>(input.tokens.size()), input.is_prompt});
      (input.is_prompt ? record.prompt_tokens : record.decoded) += static_cast<int>(input.tokens.size());
      for (const std::int32_t token : input.tokens) {
        if (token == poison) return error("token {} breaks the model", token);
      }
      if (!input.is_prompt && input.sequence == broken) return error("sequence {} is broken", broken);
    }
    auto reserved = cache.reserve(std::move(slices));
    if (!reserved.ok()) return reserved.error();
    // With a device cache, the device library fills the pages.
    const bool on_device = cache.placed().on_device();
    for (int layer = 0; layer < geometry_.n_layers && !on_device; ++layer)
      run_layer_without_attention(**reserved, layer);
    KVANT_RETURN_IF_ERROR((*reserved)->commit());
    steps.push_back(record);
    int row = 0;
    for (const EngineInput& input : inputs) {
      const int n = static_cast<int>(input.tokens.size()), before = cache.length(input.sequence) - n;
      for (int i = input.first_logits; i < n; ++i) fill(logits.row(row++), before + i + 1, input.tokens[i]);
    }
    return {};
  }

  // Computes logits [kFakeVocabulary] for a sequence of `length` tokens that ends with `newest`.
  static void fill(float* logits, int length, std::int32_t newest) {
    std::mt19937 random(length * 1009 + newest);
    std::normal_distribution<float> normal;
    for (int t = 0; t < kFakeVocabulary; ++t) logits[t] = 2 * normal(random);
    logits[kFakeEnd] = logits[kFakeUnsaid] = -100;  // completions end only by their maximum length
  }

  int most_decoded = 31;
  std::int32_t poison = -1;  // a step with this token fails
  SequenceId broken = -1;    // a step that decodes this sequence fails
  std::vector<StepRecord> steps;

 private:
  Geometry geometry_;
  FakeTokenizer tokenizer_;
};

// NoBackend is an attention backend that the fake engine never calls.
class NoBackend : public AttentionBackend {
 public:
  void run_layer(Step&, int, const LayerRows&, Team&) override {}
  std::vector<SkipCount> skip_counts() const override { return {}; }
  PageOrder page_order() const override { return PageOrder::canonical; }
  Result<PlacedPlan> place(std::shared_ptr<const Plan> plan) const override {
    return PlacedPlan(std::move(plan));
  }
  KernelChoice kernel(const Plan&, int, int, Side) const override { return {}; }
  RowObserver* observer() override { return nullptr; }
};

}  // namespace kvant::testing
