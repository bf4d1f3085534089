// Describes what a client requests from the scheduler.
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
  int recipe = 0;  // number of the recipe that serves it
  std::vector<std::int32_t> prompt;
  int n_answers = 1;  // the prompt is read once; completion i draws with seed + i
  SamplerOptions sampling;
  GenerationOptions generation;
  std::shared_ptr<const Grammar> grammar;  // in its initial state; null: a completion may be any text
  // Each completion has its own grammar. clone_grammar() makes them if there are none. A large one takes
  // seconds, so this must not hold up a step.
  std::vector<std::shared_ptr<Grammar>> answer_grammars;
  std::vector<std::int32_t>
      expected;  // tokens that completions may resemble; drafts are taken from them, too
  // Completions begin with the prompt, and with its probabilities if those of the completion are wanted.
  bool echo = false;
  bool follows = false;  // it is a later prompt of a request that has several
  bool guard = false;    // compares one completion with an unquantized cache
  // The request wants only the mean of the prompt's hidden states, scaled to length 1; max_tokens is 0.
  bool embeds = false;
  std::string client;  // clients take turns by this name

  std::string session;                   // the session that it continues or begins; empty: none
  std::string text;                      // the prompt's text, if it is known
  bool text_has_special_tokens = false;  // the text has special tokens written out
  int session_tokens = 0;                // prompt tokens that the session holds; the scheduler sets it

  bool wants_prompt_probabilities() const { return echo && generation.wants_probabilities; }

  void clone_grammar() {
    while (grammar != nullptr && std::ssize(answer_grammars) < n_answers)
      answer_grammars.push_back(grammar->clone());
  }
};

// Says why a request is refused.
struct Refusal {
  enum class Reason : std::uint8_t {
    wrong,     // it can never be served
    too_long,  // the prompt does not fit into the context
    busy,      // too many requests wait
    conflict,  // its session is in use
  };
  Reason reason = Reason::wrong;
  std::string message;
  int retry_seconds = 0;               // for busy and conflict: when to ask again
  int prompt_tokens = 0, context = 0;  // for too_long
};

}  // namespace kvant
