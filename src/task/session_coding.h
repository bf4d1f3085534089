// How sessions are coded in their files, and the predictor that this takes: made on first use.
#pragma once

#include <memory>
#include <string>

#include "compact/sequence_coder.h"
#include "session/session_layout.h"
#include "task/session.h"

namespace kvant {

inline constexpr const char* kPlainCoding = "plain";
inline constexpr const char* kCompactCoding = "compact";

// The file in the folder of calibrations that has the predictor of a model, recipe and constants.
std::string predictor_path(const SessionIdentity& identity);

// The coder of that file; null: there is none. One that can't be used is as none, and stderr says why.
std::shared_ptr<const SequenceCoder> find_sequence_coder(const PlacedPlan& plan,
                                                         const SessionIdentity& identity);

// The same, but made now where there is none, from the text that ships with kvant, which stderr says. Null
// where no page of the plan can be coded, which stderr says, too. An error: interrupted; out of memory; the
// file can't be written.
Result<std::shared_ptr<const SequenceCoder>> learned_sequence_coder(const Session& session,
                                                                    const PlacedPlan& plan,
                                                                    const SessionIdentity& identity);

}  // namespace kvant
