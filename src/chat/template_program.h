// TemplateProgram: a chat template as a Jinja program, run by llama.cpp's engine.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace kvant {

// Which features a template supports, as found by running it.
struct TemplateAbilities {
  bool system_messages = true;
  bool tools = false;
  bool tool_calls = false;
  bool parallel_tool_calls = false;
  bool text_content = true;       // if false, content must be a list of parts
  bool object_arguments = false;  // arguments of calls are an object; if false, they are JSON text
};

class TemplateProgram {
 public:
  // source: Jinja text. name: for error messages, such as "the model's chat template". bos, eos: the texts of
  // these tokens; empty: the model has none. Errors: the source is not Jinja.
  static Result<std::shared_ptr<const TemplateProgram>> parse(const std::string& source,
                                                              const std::string& name, const std::string& bos,
                                                              const std::string& eos);
  virtual ~TemplateProgram() = default;

  virtual const std::string& source() const = 0;
  virtual const TemplateAbilities& abilities() const = 0;
  // variables: an object whose members become template variables, beside bos_token and eos_token. Errors: the
  // template rejects the variables, or uses what the engine does not support. The message gives place and
  // reason in one sentence.
  virtual Result<std::string> render(const nlohmann::ordered_json& variables) const = 0;
};

}  // namespace kvant
