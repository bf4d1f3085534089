// Makes the report's HTML page. The page contains its figures, style and program, so it works without a
// network.
#pragma once

#include <string>

namespace kvant {

// Returns the HTML page of a report. `document` is the text of the JSON document that report_to_json()
// returns.
std::string report_page(const std::string& document);

}  // namespace kvant
