// The options that say how tokens are drafted.
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
  std::string model;  // a GGUF file that drafts; empty: none
  int most = 15;      // tokens of a draft
  int most_drafted() const { return source == kNoDrafts ? 0 : most; }
};

void add_draft_options(CLI::App& command, DraftOptions& options);

// A model that drafts for another one.
struct LoadedDraftModel {
  std::unique_ptr<Session> session;
  std::shared_ptr<DraftModel> model;  // null: there is none. It must not outlive the session.
  std::int64_t bytes = 0;             // of its cache, at most
};

// Loads --draft-model where it is given. context: tokens that a sequence may reach. The cache gets room for
// one such sequence, or for several shorter ones.
Result<LoadedDraftModel> load_draft_model(const DraftOptions& options, const Session& target, int context);

}  // namespace kvant
