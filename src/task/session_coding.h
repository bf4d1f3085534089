// Finds or learns the predictor with which compact session files are coded. A predictor belongs to one model,
// recipe and set of constants, and is learned on first use.
#pragma once

#include <memory>
#include <string>

#include "compact/sequence_coder.h"
#include "session/session_layout.h"
#include "task/session.h"

namespace kvant {

inline constexpr const char* kPlainCoding = "plain";
inline constexpr const char* kCompactCoding = "compact";

// Returns the path of a predictor in the folder of calibrations. The path depends on the model, recipe and
// constants.
std::string predictor_path(const SessionIdentity& identity);

// Returns the coder of the predictor in the file that predictor_path() names, or null if the file does not
// exist. An unusable file also gives null, and stderr says why.
std::shared_ptr<const SequenceCoder> find_sequence_coder(const PlacedPlan& plan,
                                                         const SessionIdentity& identity);

// Returns the coder of the predictor's file. If there is no file, the function learns the predictor from the
// text that ships with kvant and prints this on stderr. Returns null and prints a message if the plan has no
// page that can be coded. Returns an error if interrupted, if memory is too short, or if the file cannot be
// written.
Result<std::shared_ptr<const SequenceCoder>> learned_sequence_coder(const Session& session,
                                                                    const PlacedPlan& plan,
                                                                    const SessionIdentity& identity);

}  // namespace kvant
