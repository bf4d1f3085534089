// Formats evaluation results and plans as JSON, and evaluation results as a table for a terminal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "attention/plan_report.h"
#include "eval/quality_eval.h"

namespace kvant {

// Returns {"asked":.., "recipe":.., "tail":.., "sink":.., "window":.., "prefill":.., "calibration":..,
// "rows":[..], "fallbacks":[..]}. "calibration_note" is present if a calibration would help, and "encoder" if
// the errors of K are weighted.
nlohmann::ordered_json plan_to_json(const PlanReport& report);

// Returns {"schema":"kvant.eval/2","model":..,"context":..,"chunks":..,"results":[..]}. Figures that do not
// exist are null, for example bits_sealed if nothing is sealed. The first result is the reference. Results of
// a suite have a "label".
nlohmann::ordered_json eval_to_json(const QualityResult& result, const std::string& model);
// Returns the JSON as the text of a file. Bytes that are not UTF-8 are replaced.
std::string json_text(const nlohmann::ordered_json& json);

// Formats the result for a terminal.
std::string eval_table(const QualityResult& result);

}  // namespace kvant
