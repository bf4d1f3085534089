// The report as one HTML page that needs nothing else: its figures, style and program are inside.
#pragma once

#include <string>

namespace kvant {

// document: the JSON text of report_to_json().
std::string report_page(const std::string& document);

}  // namespace kvant
