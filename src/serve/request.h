// What a client wants of the scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "generate/generation.h"
#include "model/grammar.h"
#include "model/sampler.h"

namespace kvant {

struct GenerationRequest {
  int recipe = 0;  // that its cache has: its number among those of the server
  std::vector<std::int32_t> prompt;
  int n_answers = 1;  // the prompt is read once; answer i draws with seed + i
  SamplerOptions sampling;
  GenerationOptions generation;
  std::shared_ptr<const Grammar> grammar;  // at its start; null: an answer may be anything
  // One for each answer: clone_grammar() makes them where there are none. It takes up to seconds for a large
  // one, so nobody should wait for it.
  std::vector<std::shared_ptr<Grammar>> answer_grammars;
  std::vector<std::int32_t>
      expected;  // tokens that completions may resemble: drafts are taken from them, too
  // The prompt begins each completion, with its probabilities where those of the completion are wanted.
  bool echo = false;
  bool follows = false;  // one request of a client has several prompts, and this is not the first
  bool guard = false;    // compare with an unquantized cache: for one answer
  // The mean of the prompt's hidden states, of length 1, is all that is wanted; max_tokens is 0.
  bool embeds = false;
  std::string client;    // whose turn it is goes round by this

  std::string session;                   // that it goes on with, or begins; empty: none
  std::string text;                      // of the prompt, where it is known
  bool text_has_special_tokens = false;  // are written out in it
  int session_tokens = 0;  // at the prompt's start, that the session holds: set by the scheduler

  bool wants_prompt_probabilities() const { return echo && generation.wants_probabilities; }

  void clone_grammar() {
    while (grammar != nullptr && std::ssize(answer_grammars) < n_answers)
      answer_grammars.push_back(grammar->clone());
  }
};

// Why a request is not taken.
struct Refusal {
  enum class Reason : std::uint8_t {
    wrong,     // it can never be served
    too_long,  // its prompt has no room in the context
    busy,      // too many wait already
    conflict,  // its session is in use
  };
  Reason reason = Reason::wrong;
  std::string message;
  int retry_seconds = 0;               // busy, conflict: when to ask again
  int prompt_tokens = 0, context = 0;  // too_long
};

}  // namespace kvant
