// How far an attention backend is from another, in predictions and in attention outputs: kvant eval
// --compare-backend.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/eval_rows.h"
#include "cli/session.h"
#include "eval/quality_eval.h"

namespace kvant {

// Every row's recipe on the backend called `name`, one token at a time, against the same recipe on the
// session's own. Prints a table; returns its document.
Result<nlohmann::ordered_json> evaluate_backend(const Session& session, const std::string& name,
                                                const std::vector<EvalRow>& rows, const EvalText& text,
                                                const QualityOptions& quality, const std::string& model);

}  // namespace kvant
