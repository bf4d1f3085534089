#include "eval/tasks/call_match.h"

#include <gtest/gtest.h>

#include "base/json_reader.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

Json parsed(const char* text) {
  return parse_json(text).value();
}

// Checks calls of one problem.
class Checked {
 public:
  Checked(const char* functions, const char* answers)
      : functions_(parsed(functions)), answers_(parsed(answers)) {}
  // Each call is a name and its arguments.
  bool matches(const std::vector<std::pair<const char*, const char*>>& calls) const {
    std::vector<MadeCall> made;
    for (const auto& [name, arguments] : calls) made.push_back({name, parsed(arguments)});
    return calls_match(made, functions_, answers_);
  }

 private:
  Json functions_, answers_;
};

// This is problem simple_python_2 of BFCL v4.
const Checked& hypotenuse() {
  static const Checked kChecked(
      R"([{"name": "math.hypot", "description": "..", "parameters": {"type": "dict", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}, "z": {"type": "integer"}}, "required": ["x", "y"]}}])",
      R"([{"math.hypot": {"x": [4], "y": [5], "z": ["", 0]}}])");
  return kChecked;
}

TEST(CallMatch, ComparesNamesAndParameters) {
  EXPECT_TRUE(hypotenuse().matches({{"math_hypot", R"({"x": 4, "y": 5})"}}));
  EXPECT_TRUE(hypotenuse().matches({{"math_hypot", R"({"y": 5, "x": 4, "z": 0})"}}));
  EXPECT_FALSE(hypotenuse().matches({{"math.hypot", R"({"x": 4, "y": 5})"}}));
  EXPECT_FALSE(hypotenuse().matches({{"hypot", R"({"x": 4, "y": 5})"}}));
  EXPECT_FALSE(hypotenuse().matches({{"math_hypot", R"({"x": 4})"}}));
  EXPECT_FALSE(hypotenuse().matches({{"math_hypot", R"({"x": 4, "y": 5, "w": 1})"}}));
  EXPECT_FALSE(hypotenuse().matches({{"math_hypot", R"({"x": 4, "y": 5, "z": 1})"}}));
  EXPECT_FALSE(hypotenuse().matches({{"math_hypot", R"({"x": "4", "y": 5})"}}));
  EXPECT_FALSE(hypotenuse().matches({{"math_hypot", R"({"x": 4.0, "y": 5})"}}));
  EXPECT_FALSE(hypotenuse().matches({{"math_hypot", "[4, 5]"}}));
  EXPECT_FALSE(hypotenuse().matches({}));
  EXPECT_FALSE(
      hypotenuse().matches({{"math_hypot", R"({"x": 4, "y": 5})"}, {"math_hypot", R"({"x": 4, "y": 5})"}}));
}

TEST(CallMatch, TakesIntegersForReals) {
  // These are problems simple_python_14, simple_python_82 and simple_python_83. Numbers inside of lists must
  // have the type of the description or of the answer.
  const Checked derivative(
      R"([{"name": "calculate_derivative", "parameters": {"type": "dict", "properties": {"function": {"type": "string"}, "x_value": {"type": "float"}}, "required": ["function"]}}])",
      R"([{"calculate_derivative": {"function": ["3x**2 + 2x - 1", "lambda x: 3x**2 + 2x - 1"], "x_value": ["", 0.0]}}])");
  EXPECT_TRUE(derivative.matches({{"calculate_derivative", R"({"function": "3x**2+2x-1"})"}}));
  EXPECT_TRUE(
      derivative.matches({{"calculate_derivative", R"({"function": "3X**2 + 2x - 1", "x_value": 0})"}}));
  EXPECT_FALSE(
      derivative.matches({{"calculate_derivative", R"({"function": "3x**2 + 2x - 1", "x_value": 1})"}}));
  const Checked average(
      R"([{"name": "calculate_average", "parameters": {"type": "dict", "properties": {"numbers": {"type": "array", "items": {"type": "float"}}}, "required": ["numbers"]}}])",
      R"([{"calculate_average": {"numbers": [[12.0, 15.0]]}}])");
  EXPECT_TRUE(average.matches({{"calculate_average", R"({"numbers": [12.0, 15.0]})"}}));
  EXPECT_FALSE(average.matches({{"calculate_average", R"({"numbers": [12, 15]})"}}));
  EXPECT_FALSE(average.matches({{"calculate_average", R"({"numbers": [15.0, 12.0]})"}}));
  const Checked distance(
      R"([{"name": "distance", "parameters": {"type": "dict", "properties": {"at": {"type": "tuple", "items": {"type": "float"}}}, "required": ["at"]}}])",
      R"([{"distance": {"at": [[33.4484, -112.074]]}}])");
  EXPECT_TRUE(distance.matches({{"distance", R"({"at": [33.4484, -112.0740]})"}}));
}

TEST(CallMatch, ComparesTextsWithoutCaseAndPunctuation) {
  const Checked crime(
      R"([{"name": "get_crime_rate", "parameters": {"type": "dict", "properties": {"city": {"type": "string"}, "data": {"type": "any"}}, "required": ["city"]}}])",
      R"([{"get_crime_rate": {"city": ["San Francisco, CA", "SF"], "data": ["it's", 5, ""]}}])");
  EXPECT_TRUE(crime.matches({{"get_crime_rate", R"({"city": "san francisco CA"})"}}));
  EXPECT_TRUE(crime.matches({{"get_crime_rate", R"({"city": "S.F.", "data": "IT\"S"})"}}));
  EXPECT_FALSE(crime.matches({{"get_crime_rate", R"({"city": "San Francisco"})"}}));
}

TEST(CallMatch, LooksIntoObjects) {
  // This is problem simple_python_94.
  const Checked user(
      R"([{"name": "update_user_info", "parameters": {"type": "dict", "properties": {"user_id": {"type": "integer"}, "update_info": {"type": "dict"}, "people": {"type": "array", "items": {"type": "dict"}}}, "required": ["user_id", "update_info"]}}])",
      R"([{"update_user_info": {"user_id": [43523], "update_info": [{"name": ["John Doe"], "email": ["johndoe@email.com"], "age": [3, ""]}], "people": ["", [{"id": [1]}, {"id": [2, 3]}]]}}])");
  EXPECT_TRUE(user.matches(
      {{"update_user_info",
        R"({"user_id": 43523, "update_info": {"email": "johndoe@email.com", "name": "john doe"}})"}}));
  EXPECT_FALSE(
      user.matches({{"update_user_info", R"({"user_id": 43523, "update_info": {"name": "John Doe"}})"}}));
  EXPECT_FALSE(user.matches(
      {{"update_user_info",
        R"({"user_id": 43523, "update_info": {"email": "johndoe@email.com", "name": "John Doe", "age": 4}})"}}));
  const std::string known =
      R"({"user_id": 43523, "update_info": {"email": "johndoe@email.com", "name": "John Doe"}, "people": )";
  EXPECT_TRUE(user.matches({{"update_user_info", (known + R"([{"id": 1}, {"id": 3}]})").c_str()}}));
  EXPECT_FALSE(user.matches({{"update_user_info", (known + R"([{"id": 2}, {"id": 1}]})").c_str()}}));
  EXPECT_FALSE(user.matches({{"update_user_info", (known + R"([{"id": 1}]})").c_str()}}));
}

TEST(CallMatch, IgnoresTheOrderOfCalls) {
  // This is problem parallel_4.
  const Checked bmi(
      R"([{"name": "calculate_bmi", "parameters": {"type": "dict", "properties": {"height": {"type": "float"}, "weight": {"type": "integer"}}, "required": ["height", "weight"]}}])",
      R"([{"calculate_bmi": {"height": [6.0], "weight": [80]}}, {"calculate_bmi": {"height": [5.6], "weight": [60]}}])");
  const char* first = R"({"height": 6, "weight": 80})";
  const char* second = R"({"weight": 60, "height": 5.6})";
  EXPECT_TRUE(bmi.matches({{"calculate_bmi", first}, {"calculate_bmi", second}}));
  EXPECT_TRUE(bmi.matches({{"calculate_bmi", second}, {"calculate_bmi", first}}));
  EXPECT_FALSE(bmi.matches({{"calculate_bmi", first}, {"calculate_bmi", first}}));
  EXPECT_FALSE(bmi.matches({{"calculate_bmi", first}}));
}

}  // namespace
}  // namespace kvant
