// Measures how far one attention backend is from another, in predictions and in attention outputs. `kvant
// eval --compare-backend` uses it to check fast kernels on a real model.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/quality_eval.h"
#include "task/eval_rows.h"
#include "task/session.h"

namespace kvant {

// Runs each row's recipe on the backend called `name`, one token at a time, and on the session's own backend,
// and compares them. `show` receives a table.
Result<nlohmann::ordered_json> evaluate_backend(const Session& session, const std::string& name,
                                                const std::vector<EvalRow>& rows, const EvalText& text,
                                                const QualityOptions& quality, const std::string& model,
                                                const std::function<void(const std::string&)>& show);

}  // namespace kvant
