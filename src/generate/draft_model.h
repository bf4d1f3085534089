// DraftModel is a smaller model with the target model's tokenizer, which drafts tokens for speculative
// decoding (Leviathan et al. 2023). The draft model's cache is unquantized, so any number of tokens can be
// rolled back.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "cache/cache.h"
#include "generate/draft_source.h"
#include "model/engine.h"

namespace kvant {

class DraftModel {
 public:
  // Makes a draft model for the engine `target`. `engine` and `backend` must outlive the object. `plan` is an
  // unquantized plan for `engine`. byte_limit bounds the cache in bytes; 0 means no limit. Returns an error
  // if the model has recurrent layers, whose state cannot be rolled back, or if its tokenizer differs from
  // the tokenizer of `target`.
  static Result<std::shared_ptr<DraftModel>> make(Engine& engine, AttentionBackend& backend, PlacedPlan plan,
                                                  const Engine& target, std::int64_t byte_limit);

  // Returns a source of drafts for one sequence. The source keeps the model alive.
  static std::unique_ptr<DraftSource> source(std::shared_ptr<DraftModel> model);

 private:
  friend class ModelDraft;

  // Held is a sequence of the cache with the tokens that it holds. A later sequence with the same prefix
  // reuses the held sequence.
  struct Held {
    SequenceId sequence = 0;
    std::vector<std::int32_t> tokens;
  };

  DraftModel(Engine& engine, AttentionBackend& backend, PlacedPlan plan, int n_target_vocab,
             std::int64_t byte_limit);

  Held take(std::span<const std::int32_t> tokens);
  void keep(Held held);
  // Makes the sequence hold all of `tokens` except the last. Returns false if memory is too short.
  bool catch_up(Held& held, std::span<const std::int32_t> tokens);
  bool step(Held& held, std::span<const std::int32_t> tokens, bool is_prompt, bool wants_logits);

  Engine& engine_;
  AttentionBackend& backend_;
  Cache cache_;
  int n_target_vocab_;
  std::list<Held> kept_;  // ended sequences, the newest first
  std::vector<float> logits_;
};

}  // namespace kvant
