// These options control speculative decoding.
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
  std::string model;  // GGUF file of the draft model; empty: none
  int most = 15;      // most tokens of one draft
  int most_drafted() const { return source == kNoDrafts ? 0 : most; }
};

void add_draft_options(CLI::App& command, DraftOptions& options);

// A draft model together with what it must keep alive.
struct LoadedDraftModel {
  std::unique_ptr<Session> session;
  std::shared_ptr<DraftModel> model;  // null without a draft model; must not outlive the session
  std::int64_t bytes = 0;             // upper bound of its cache's size
};

// Loads the model of --draft-model, if it is given. `context` is the number of tokens that a sequence may
// reach. The cache has room for one such sequence or for several shorter ones.
Result<LoadedDraftModel> load_draft_model(const DraftOptions& options, const Session& target, int context);

}  // namespace kvant
