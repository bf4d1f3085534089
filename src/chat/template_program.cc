#include "chat/template_program.h"

#include <chat.h>

#include <algorithm>
#include <exception>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// Returns the position that an error message of the engine names, such as "line 3, column 5". The position is
// empty if there is none.
std::string position_in(const std::string& message) {
  const std::size_t at = message.find("line ");
  const std::size_t column = message.find(", column ", at);
  if (at == std::string::npos || column == std::string::npos) return "";
  const std::size_t end =
      message.find_first_not_of("0123456789", column + std::string_view(", column ").size());
  return message.substr(at, end == std::string::npos ? end : end - at);
}

// Returns the reason at the end of an error message. The source lines that the engine prints before it are of
// no use to users.
std::string reason_in(std::string message) {
  for (const std::string_view before : {"Error: ", "Jinja Exception: "}) {
    if (const std::size_t at = message.rfind(before); at != std::string::npos)
      message.erase(0, at + before.size());
  }
  while (!message.empty() && std::isspace(static_cast<unsigned char>(message.back())) != 0)
    message.pop_back();
  message.erase(0, std::min(message.find_first_not_of(" \n-"), message.size()));
  std::ranges::replace(message, '\n', ' ');
  return message;
}

class EngineProgram : public TemplateProgram {
 public:
  EngineProgram(const std::string& source, std::string name, const std::string& bos, const std::string& eos)
      : name_(std::move(name)), template_(source, bos, eos) {
    const jinja::caps can = template_.original_caps();
    abilities_ = {.system_messages = can.supports_system_role,
                  .tools = can.supports_tools,
                  .tool_calls = can.supports_tool_calls,
                  .parallel_tool_calls = can.supports_parallel_tool_calls,
                  .text_content = can.supports_string_content,
                  .object_arguments = can.supports_object_arguments};
  }

  const std::string& source() const override { return template_.source(); }
  const TemplateAbilities& abilities() const override { return abilities_; }

  Result<std::string> render(const Json& variables) const override {
    try {
      jinja::context context(template_.source());
      common_json values = common_json::parse(variables.dump(-1, ' ', false, Json::error_handler_t::replace));
      values["bos_token"] = template_.bos_token();
      values["eos_token"] = template_.eos_token();
      jinja::global_from_json(context, values, /*mark_input=*/false);
      jinja::runtime runtime(context);
      const jinja::value results = runtime.execute(template_.prog);
      return jinja::runtime::gather_string_parts(results)->as_string().str();
    } catch (const std::exception& e) {
      const std::string what = e.what();
      const std::string where = position_in(what);
      const char* verb =
          what.find("Jinja Exception: ") != std::string::npos ? "refuses these messages" : "fails";
      return error("{} {}{}: {}", name_, verb, where.empty() ? "" : " at " + where, reason_in(what));
    }
  }

 private:
  std::string name_;
  common_chat_template template_;
  TemplateAbilities abilities_;
};

}  // namespace

Result<std::shared_ptr<const TemplateProgram>> TemplateProgram::parse(const std::string& source,
                                                                      const std::string& name,
                                                                      const std::string& bos,
                                                                      const std::string& eos) {
  try {
    return std::shared_ptr<const TemplateProgram>(std::make_shared<EngineProgram>(source, name, bos, eos));
  } catch (const std::exception& e) {
    const std::string where = position_in(e.what());
    return error("{} can't be read{}: {}", name, where.empty() ? "" : " at " + where, reason_in(e.what()));
  }
}

}  // namespace kvant
