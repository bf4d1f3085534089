// Tests `kvant report` from a user's view: exit codes, messages and files.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/testing/cli.h"

namespace kvant::cli_test {
namespace {

TEST_F(Cli, ReportIsOnePageThatLoadsNothing) {
  const std::string page = read_file(report_page());
  ASSERT_NE(page, "");
  EXPECT_LT(page.size(), 2U << 20);
  for (const char* loads : {"src=", "<link rel=\"stylesheet\"", "@import", "fetch(", "url("})
    EXPECT_EQ(page.find(loads), std::string::npos) << loads;
  const auto json = nlohmann::json::parse(read_file(path("report.json")));
  EXPECT_EQ(json["schema"], "kvant.report/2");
  EXPECT_EQ(json["quality"]["results"].size(), 3U);
  // One recipe skips V, so three contexts are measured.
  EXPECT_EQ(json["layers"].size(), 3U);
  EXPECT_EQ(json["memory"]["results"][0]["bytes"].size(), json["memory"]["contexts"].size());
}

TEST_F(Cli, ReportDrawsItsChartsInABrowser) {
  const std::string browser = find_browser();
  if (browser.empty()) GTEST_SKIP() << "no Chromium on this system";
  const std::string page = report_page();
  ASSERT_NE(page, "");
  // Tests may lack the rights that the browser's sandbox needs. The page comes from kvant itself, so no
  // sandbox is needed.
  const std::string command = "timeout 60 " + browser +
                              " --headless --no-sandbox --disable-gpu --enable-logging=stderr "
                              "--virtual-time-budget=5000 "
                              "--dump-dom " +
                              quoted("file://" + page) + " >" + path("dom.html") + " 2>" +
                              path("browser.log");
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string dom = read_file(path("dom.html"));
  EXPECT_NE(dom.find("data-ready=\"true\""), std::string::npos);
  for (const char* id : {"summary", "tradeoff", "tail", "drift", "agreement", "memory", "greedy", "speed",
                         "heat", "skip", "plans"})
    EXPECT_NE(dom.find("<section id=\"" + std::string(id) + "\""), std::string::npos) << id;
  std::size_t charts = 0;
  for (std::size_t at = dom.find("<svg"); at != std::string::npos; at = dom.find("<svg", at + 1)) ++charts;
  // There are 7 charts of sections, 1 of skip rates and 2 heat maps.
  EXPECT_EQ(charts, 7U + 1 + 2);
  EXPECT_EQ(dom.find("NaN"), std::string::npos);
  EXPECT_EQ(read_file(path("browser.log")).find("CONSOLE"), std::string::npos)
      << read_file(path("browser.log"));
}

}  // namespace
}  // namespace kvant::cli_test
