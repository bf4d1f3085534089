// Gives tests a source whose predictions are known.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "eval/logit_source.h"

namespace kvant {

inline constexpr int kScriptedVocab = 5;

// Predicts token (t + shift) mod kScriptedVocab with logit 1 after token t. The source also records all
// calls.
class ScriptedSource : public LogitSource {
 public:
  ScriptedSource(std::string name, int shift) : name_(std::move(name)), shift_(shift) {}
  const std::string& name() const override { return name_; }
  Status begin() override {
    calls += "begin ";
    return {};
  }
  Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) override {
    calls += (is_prompt ? "prompt" : "decode") + std::to_string(tokens.size()) + " ";
    first_tokens.push_back(tokens.front());
    const int skipped = static_cast<int>(tokens.size()) - logits.rows;
    for (int r = 0; r < logits.rows; ++r) {
      std::fill_n(logits.row(r), kScriptedVocab, 0.0F);
      logits.row(r)[(tokens[skipped + r] + shift_) % kScriptedVocab] = 1.0F;
    }
    return {};
  }
  Status mark() override {
    calls += "mark ";
    return {};
  }
  Status rewind() override {
    calls += "rewind ";
    return {};
  }
  CacheBits bits() const override { return {4, 5}; }
  PlanReport plan() const override { return {}; }

  std::string calls;
  std::vector<std::int32_t> first_tokens;

 private:
  std::string name_;
  int shift_;
};

}  // namespace kvant
