// Measures how far one attention backend deviates from another in predictions and attention outputs. `kvant
// eval --compare-backend` checks fast kernels on a real model with this function.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/quality_eval.h"
#include "task/eval_rows.h"
#include "task/session.h"

namespace kvant {

// Runs the recipe of each row on the backend with the name `name` and on the session's own backend, and
// compares the results. Both backends run quality.step_tokens tokens per step. `show` receives a table.
Result<nlohmann::ordered_json> evaluate_backend(const Session& session, const std::string& name,
                                                const std::vector<EvalRow>& rows, const EvalText& text,
                                                const QualityOptions& quality, const std::string& model,
                                                const std::function<void(const std::string&)>& show);

}  // namespace kvant
