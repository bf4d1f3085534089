// Recognizes tool calls that are written as JSON: {"name": ..., "arguments": {...}}, or a list of these.
// UntaggedCalls uses the class for models that write calls without the marks of their chat template.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kvant {

struct WrittenCall {
  std::string name;
  std::string arguments;  // the text of a JSON object
};

class CallJson {
 public:
  // `functions` are the offered tools, in the OpenAI API's format.
  explicit CallJson(const nlohmann::ordered_json& functions);

  enum class Verdict {
    no,       // no continuation of the text is a call
    unknown,  // more text is needed to decide
    yes,
  };
  struct Reading {
    Verdict verdict = Verdict::no;
    std::size_t length = 0;               // bytes of the JSON value; only for `yes`
    std::vector<WrittenCall> calls = {};  // at least one call; only for `yes`
  };
  // Decides whether the text begins with a call. A call has the name of an offered tool, an object as
  // `arguments` (or `parameters`), and otherwise only an `id` and a `type`. OpenAI's {"type": "function",
  // "function": CALL} is also a call, but a tool's own description is not.
  Reading read(std::string_view text) const;

 private:
  bool is_offered(const std::string& name) const { return schemas_.contains(name); }
  bool may_be_name(std::string_view beginning) const;
  bool may_be_call(std::string_view object) const;
  bool add_call(const nlohmann::ordered_json& json, std::vector<WrittenCall>& calls) const;

  // Maps a tool's name to the schema of its arguments.
  nlohmann::ordered_json schemas_ = nlohmann::ordered_json::object();
};

}  // namespace kvant
