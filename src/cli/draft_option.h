// Adds the options of speculative decoding and loads the draft model.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "generate/draft_model.h"
#include "task/session.h"

namespace kvant {

inline constexpr const char* kNgramDrafts = "ngram";
inline constexpr const char* kNoDrafts = "off";

struct DraftOptions {
  std::string source = kNgramDrafts;
  // Names the GGUF file of the draft model; an empty name disables the draft model.
  std::string model;
  int most = 15;  // largest number of tokens in a draft
  int most_drafted() const { return source == kNoDrafts ? 0 : most; }
};

void add_draft_options(CLI::App& command, DraftOptions& options);

// Holds a draft model and the session that it runs in.
struct LoadedDraftModel {
  std::unique_ptr<Session> session;
  // The pointer is null if there is no draft model. The draft model must not outlive the session.
  std::shared_ptr<DraftModel> model;
  std::int64_t bytes = 0;  // upper bound of the draft model's cache, in bytes
};

// Loads the model of --draft-model, if the option is given. `context` is the number of tokens that a sequence
// may reach. The draft model's cache has room for one sequence of this length, or for several shorter
// sequences.
Result<LoadedDraftModel> load_draft_model(const DraftOptions& options, const Session& target, int context);

}  // namespace kvant
