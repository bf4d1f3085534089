// Makes the report's HTML page. The page contains its figures, style and program, so it works without a
// network.
#pragma once

#include <string>

namespace kvant {

// `document` is the JSON text of report_to_json().
std::string report_page(const std::string& document);

}  // namespace kvant
