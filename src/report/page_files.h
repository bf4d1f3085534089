// Declares the files of page/, which cmake/embedded_files.cmake embeds into the program.
#pragma once

namespace kvant {

extern const char* const kReportHtml;     // page.html
extern const char* const kReportStyle;    // style.css
extern const char* const kReportCharts;   // charts.js
extern const char* const kReportProgram;  // report.js

}  // namespace kvant
