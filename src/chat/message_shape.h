// Adapts messages to what a chat template expects: templates follow the OpenAI API except for a few fields.
#pragma once

#include <nlohmann/json.hpp>

#include "chat/template_program.h"

namespace kvant {

// Returns the same conversation with content as text or as parts, arguments of calls as objects or as text,
// and thoughts under the name that the template reads. If the template has no system turn, the system message
// goes before the user's first message. messages: as the OpenAI API has them, with thoughts in
// `reasoning_content`.
nlohmann::ordered_json shape_messages(const nlohmann::ordered_json& messages, const TemplateProgram& program);

}  // namespace kvant
