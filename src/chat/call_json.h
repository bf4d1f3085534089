// A tool call as JSON: {"name": ..., "arguments": {...}}, or a list of these.
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
  // functions: the tools that are offered, as the OpenAI API has them.
  explicit CallJson(const nlohmann::ordered_json& functions);

  enum class Verdict {
    no,       // no text that goes on like this is a call
    unknown,  // more text decides
    yes,
  };
  struct Reading {
    Verdict verdict = Verdict::no;
    std::size_t length = 0;               // yes: of the JSON value, in bytes
    std::vector<WrittenCall> calls = {};  // yes: one at least
  };
  // What the text begins with. A call has the name of an offered tool, an object as `arguments` (or
  // `parameters`), and nothing else but an `id` and a `type`; OpenAI's {"type": "function", "function": CALL}
  // is one, too. A tool's own description is no call.
  Reading read(std::string_view text) const;

 private:
  bool is_offered(const std::string& name) const { return schemas_.contains(name); }
  bool may_be_name(std::string_view beginning) const;
  bool may_be_call(std::string_view object) const;
  bool add_call(const nlohmann::ordered_json& json, std::vector<WrittenCall>& calls) const;

  nlohmann::ordered_json schemas_ = nlohmann::ordered_json::object();  // of the arguments, by the tool's name
};

}  // namespace kvant
