// The options that say how tokens are drafted.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace kvant {

inline constexpr const char* kNgramDrafts = "ngram";
inline constexpr const char* kNoDrafts = "off";

struct DraftOptions {
  std::string source = kNgramDrafts;
  int most = 15;  // tokens of a draft
  int most_drafted() const { return source == kNoDrafts ? 0 : most; }
};

void add_draft_options(CLI::App& command, DraftOptions& options);

}  // namespace kvant
