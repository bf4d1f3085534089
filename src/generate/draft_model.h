// DraftModel: a smaller model with the same tokenizer that drafts tokens for speculative decoding (Leviathan
// et al. 2023). Its cache is unquantized: any number of tokens can be taken back.
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
  // engine and backend outlive this. plan: unquantized, for the engine. byte_limit: of the cache; 0: none.
  // Errors: a model with recurrent layers, whose state cannot be taken back; another tokenizer than target's.
  static Result<std::shared_ptr<DraftModel>> make(Engine& engine, AttentionBackend& backend,
                                                  std::shared_ptr<const Plan> plan, const Engine& target,
                                                  std::int64_t byte_limit);

  // A source of drafts for one sequence. It keeps the model alive.
  static std::unique_ptr<DraftSource> source(std::shared_ptr<DraftModel> model);

 private:
  friend class ModelDraft;

  // Tokens that the cache holds, for a sequence that begins with the same ones.
  struct Held {
    SequenceId sequence = 0;
    std::vector<std::int32_t> tokens;
  };

  DraftModel(Engine& engine, AttentionBackend& backend, std::shared_ptr<const Plan> plan, int n_target_vocab,
             std::int64_t byte_limit);

  Held take(std::span<const std::int32_t> tokens);
  void keep(Held held);
  // Makes the sequence hold `tokens` but for the last one. False: there is no memory.
  bool catch_up(Held& held, std::span<const std::int32_t> tokens);
  bool step(Held& held, std::span<const std::int32_t> tokens, bool is_prompt, bool wants_logits);

  Engine& engine_;
  AttentionBackend& backend_;
  Cache cache_;
  int n_target_vocab_;
  std::list<Held> kept_;       // of sequences that have ended, the newest first
  std::vector<float> logits_;  // of the newest token
};

}  // namespace kvant
