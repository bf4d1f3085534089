// Describes what a client requests from the scheduler, and why the scheduler may refuse. All APIs build the
// same structure, so the scheduler knows nothing of HTTP or JSON.
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
  int recipe = 0;  // the number of the recipe that serves the request
  std::vector<std::int32_t> prompt;
  int n_answers = 1;  // the prompt is read once; completion i draws with seed + i
  SamplerOptions sampling;
  GenerationOptions generation;
  // `grammar` is in its initial state. If null, any text is valid.
  std::shared_ptr<const Grammar> grammar;
  // Each completion has its own grammar object. clone_grammar() makes the grammar objects that are missing.
  // Cloning a large grammar takes seconds, so the caller clones outside of the scheduler's steps.
  std::vector<std::shared_ptr<Grammar>> answer_grammars;
  // Completions may resemble these tokens, so drafts can come from the tokens.
  std::vector<std::int32_t> expected;
  // With `echo`, a completion begins with the prompt. Probabilities, if wanted, then also cover the prompt.
  bool echo = false;
  bool follows = false;  // the client's request has several prompts, and this is not the first
  bool guard = false;    // the completion is compared with an unquantized cache
  // The request wants only the mean of the prompt's hidden states, scaled to length 1. max_tokens must be 0.
  bool embeds = false;
  std::string client;  // the queue takes clients in turn by this name

  std::string session;                   // the session that the request continues or begins; empty if none
  std::string text;                      // the prompt's text, if the text is known
  bool text_has_special_tokens = false;  // `text` contains the texts of control tokens, which stand for the
                                         // tokens
  int session_tokens = 0;                // the session holds this many tokens of the prompt; the scheduler
                                         // sets the number

  bool wants_prompt_probabilities() const { return echo && generation.wants_probabilities; }

  void clone_grammar() {
    while (grammar != nullptr && std::ssize(answer_grammars) < n_answers)
      answer_grammars.push_back(grammar->clone());
  }
};

// Refusal says why the scheduler refuses a request.
struct Refusal {
  enum class Reason : std::uint8_t {
    wrong,     // the request can never be served
    too_long,  // the prompt does not fit into the context
    busy,      // too many requests wait
    conflict,  // the request's session is in use
  };
  Reason reason = Reason::wrong;
  std::string message;
  int retry_seconds = 0;               // the client should try again after this time; only for busy and
                                       // conflict
  int prompt_tokens = 0, context = 0;  // in tokens; only for too_long
  std::string parameter = {};          // the wrong parameter; empty if no single parameter is wrong
};

}  // namespace kvant
