// The files of page/, embedded into the program by cmake/embedded_files.cmake.
#pragma once

namespace kvant {

extern const char* const kReportHtml;     // page.html
extern const char* const kReportStyle;    // style.css
extern const char* const kReportCharts;   // charts.js
extern const char* const kReportProgram;  // report.js

}  // namespace kvant
