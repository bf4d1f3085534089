#include "serve/parameter_rule.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "serve/server_log.h"

namespace kvant::parameter_rule_test {
namespace {

using Json = nlohmann::ordered_json;

// LogFile is a log whose lines a test can read.
class LogFile {
 public:
  LogFile() : file_(std::tmpfile()), log_(LogFormat::text, fileno(file_)) {}
  ~LogFile() { std::fclose(file_); }
  ServerLog& log() { return log_; }
  std::string text() const {
    std::rewind(file_);
    std::string text(1 << 16, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file_));
    return text;
  }

 private:
  std::FILE* file_;
  ServerLog log_;
};

std::optional<ApiError> apply(const Json& body, ServerLog* log = nullptr) {
  JsonFields fields(body);
  fields.value("model");
  apply_parameter_rule(fields, log);
  return fields.error();
}

TEST(ParameterRule, RefusesWhatChangesTheMeaningByItsName) {
  const auto error = apply({{"model", "m"}, {"store", true}, {"tfs_z", 0.5}});
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->parameter, "tfs_z");
  EXPECT_EQ(error->code, kUnsupportedParameter);
  EXPECT_NE(error->message.find("'tfs_z'"), std::string::npos);
}

// Other servers have these parameters, and each would change the completion.
TEST(ParameterRule, RefusesOtherSamplersAndEnds) {
  const Json refused = {{"dry_multiplier", 0.8},     {"mirostat", 2},
                        {"min_tokens", 5},           {"stop_token_ids", {1, 2}},
                        {"t_max_predict_ms", 500},   {"tools", {{{"type", "function"}}}},
                        {"tool_choice", "required"}, {"n", 2}};
  const Json harmless = {{"dry_multiplier", 0},    {"mirostat", 0},
                         {"min_tokens", 0},        {"stop_token_ids", Json::array()},
                         {"t_max_predict_ms", -1}, {"tools", Json::array()},
                         {"tool_choice", "auto"},  {"n", 1}};
  for (const auto& [name, value] : refused.items()) {
    const auto error = apply({{name, value}});
    ASSERT_TRUE(error.has_value()) << name;
    EXPECT_EQ(error->parameter, name);
    EXPECT_FALSE(apply({{name, harmless[name]}})) << name;
  }
}

TEST(ParameterRule, TakesValuesThatAskForNothing) {
  EXPECT_FALSE(apply({{"tfs_z", 1}, {"top_a", 0.0}, {"images", Json::array()}, {"echo", false}}));
  EXPECT_FALSE(apply({{"suffix", ""}, {"audio", nullptr}, {"structured_outputs", Json::object()}}));
  EXPECT_TRUE(apply({{"suffix", "x"}}));
  EXPECT_TRUE(apply({{"top_a", 0.1}}));
}

TEST(ParameterRule, NamesAHintOnceInTheLog) {
  LogFile file;
  for (int i = 0; i < 3; ++i)
    EXPECT_FALSE(apply({{"model", "m"}, {"store", i}, {"nobody\nknows", 1}}, &file.log()));
  EXPECT_EQ(file.text(),
            "kvant: requests have 'store', which has no effect here\n"
            "kvant: requests have 'nobody\\x0aknows', which has no effect here\n");
}

TEST(ParameterRule, ABoundedNumberOfHintsIsRemembered) {
  Json many = Json::object();
  for (int i = 0; i < 500; ++i) many[std::string(1000, 'x') + std::to_string(i)] = i;
  many.update({{"a", 1}});
  JsonFields fields(many);
  fields.leave_others();
  EXPECT_LT(fields.hints().size(), 100U);
  for (const std::string& hint : fields.hints()) EXPECT_LT(hint.size(), 100U);
  const Json list = {{"b", 1}};
  JsonFields first(list, "tools[0]"), second(list, "tools[17]"), both(many);
  first.leave_others();
  second.leave_others();
  both.take(first);
  both.take(second);
  EXPECT_EQ(both.hints(), std::vector<std::string>{"tools[].b"});
}

}  // namespace
}  // namespace kvant::parameter_rule_test
