// How a chat template wants its messages: templates agree on the OpenAI API's form but for a few fields.
#pragma once

#include <nlohmann/json.hpp>

#include "chat/template_program.h"

namespace kvant {

// The same conversation with content as text or as parts, calls' arguments as objects or as text, thoughts
// under the name that the template reads, and, where the template has no system turn, the system message
// before the user's first. messages: as the OpenAI API has them, with thoughts in `reasoning_content`.
nlohmann::ordered_json shape_messages(const nlohmann::ordered_json& messages, const TemplateProgram& program);

}  // namespace kvant
