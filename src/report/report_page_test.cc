#include "report/report_page.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

TEST(ReportPage, HoldsItsFiguresWithoutEndingTheirElement) {
  const std::string page = report_page("{\"text\": \"</script><b>\"}");
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_NE(page.find("{\"text\": \"\\u003c/script>\\u003cb>\"}"), std::string::npos);
  std::size_t closed = 0;
  for (std::size_t at = page.find("</script>"); at != std::string::npos; at = page.find("</script>", at + 1))
    ++closed;
  // The page has one script element for the figures, and two for programs.
  EXPECT_EQ(closed, 3U);
}

TEST(ReportPage, HasNoPlaceLeftToFill) {
  const std::string page = report_page("{}");
  for (const char* place : {"/* style.css */", "/* charts.js */", "/* report.js */", "/* figures.json */"})
    EXPECT_EQ(page.find(place), std::string::npos) << place;
}

}  // namespace
}  // namespace kvant
