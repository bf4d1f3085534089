// Figures and plans as JSON text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "attention/plan_report.h"
#include "eval/quality_eval.h"

namespace kvant {

// {"recipe":.., "tail":.., "sink":.., "window":.., "prefill":.., "calibration":.., "rows":[..],
// "fallbacks":[..]}; "calibration_note" where a calibration would help
nlohmann::ordered_json plan_to_json(const PlanReport& report);

// {"schema":"kvant.eval/2","model":..,"context":..,"chunks":..,"results":[..]}; figures that don't exist
// (bits_sealed when nothing is sealed) are null. The first result is the reference.
// Results of a suite have a "label".
nlohmann::ordered_json eval_to_json(const QualityResult& result, const std::string& model);
// As a file's text; bytes that are not UTF-8 are replaced.
std::string json_text(const nlohmann::ordered_json& json);

// The same for a terminal.
std::string eval_table(const QualityResult& result);

}  // namespace kvant
