// The report as one self-contained HTML page, with its figures, style and program inside.
#pragma once

#include <string>

namespace kvant {

// document: the JSON text of report_to_json().
std::string report_page(const std::string& document);

}  // namespace kvant
