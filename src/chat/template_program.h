// TemplateProgram is a chat template as a Jinja program, which llama.cpp's engine runs. The interface has
// only texts and JSON values, and reports every error of the engine in one sentence.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace kvant {

// TemplateAbilities says which features a template supports. Running the template with examples finds that
// out.
struct TemplateAbilities {
  bool system_messages = true;
  bool tools = false;
  bool tool_calls = false;
  bool parallel_tool_calls = false;
  bool text_content = true;       // if false, content must be a list of parts
  bool object_arguments = false;  // if false, arguments of calls must be JSON texts
};

class TemplateProgram {
 public:
  // Parses the source of a template. `source` is a Jinja text. Error messages call the template `name`, such
  // as "the model's chat template". `bos` and `eos` are the texts of the tokens, empty if the model has none.
  // Returns an error if the source is not Jinja.
  static Result<std::shared_ptr<const TemplateProgram>> parse(const std::string& source,
                                                              const std::string& name, const std::string& bos,
                                                              const std::string& eos);
  virtual ~TemplateProgram() = default;

  virtual const std::string& source() const = 0;
  virtual const TemplateAbilities& abilities() const = 0;
  // Renders the template. The members of `variables` become template variables, in addition to bos_token and
  // eos_token. Returns an error, in one sentence with place and reason, if the template rejects the variables
  // or uses what the engine does not support.
  virtual Result<std::string> render(const nlohmann::ordered_json& variables) const = 0;
};

}  // namespace kvant
