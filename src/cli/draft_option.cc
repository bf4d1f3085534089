#include "cli/draft_option.h"

namespace kvant {

void add_draft_options(CLI::App& command, DraftOptions& options) {
  command
      .add_option("--draft", options.source,
                  "speculative decoding: 'ngram' drafts tokens from what the sequence holds already, and "
                  "verifies as many in one step as pays; 'off' decodes token by token")
      ->check(CLI::IsMember({kNgramDrafts, kNoDrafts}))
      ->capture_default_str();
  command.add_option("--draft-max", options.most, "max drafted tokens that a step verifies")
      ->check(CLI::Range(1, 63))
      ->capture_default_str();
}

}  // namespace kvant
