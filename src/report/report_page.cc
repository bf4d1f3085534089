#include "report/report_page.h"

#include "base/check.h"
#include "report/page_files.h"

namespace kvant {
namespace {

void replace_once(std::string& page, const std::string& place, const std::string& contents) {
  const std::size_t at = page.find(place);
  KVANT_CHECK(at != std::string::npos, "the page has no such place");
  page.replace(at, place.size(), contents);
}

// Escapes '<' in JSON inside a script element, because "</script>" in a string would end the element.
std::string without_tags(const std::string& document) {
  std::string safe;
  for (const char c : document) safe += c == '<' ? "\\u003c" : std::string(1, c);
  return safe;
}

}  // namespace

std::string report_page(const std::string& document) {
  std::string page = kReportHtml;
  replace_once(page, "/* style.css */", kReportStyle);
  replace_once(page, "/* charts.js */", kReportCharts);
  replace_once(page, "/* report.js */", kReportProgram);
  replace_once(page, "/* figures.json */", without_tags(document));
  return page;
}

}  // namespace kvant
