// Adapts messages to what a chat template expects. Most templates follow the OpenAI API's format except for a
// few members.
#pragma once

#include <nlohmann/json.hpp>

#include "chat/template_program.h"

namespace kvant {

// Returns the conversation with the arguments of calls as the template reads them: objects, or JSON texts.
nlohmann::ordered_json read_arguments(const nlohmann::ordered_json& messages, const TemplateProgram& program);

// Returns the conversation in the template's form. Content is a text or a list of parts. Thoughts are in the
// member that the template reads. If the template has no system turn, the system message precedes the user's
// first message. `messages` have the OpenAI API's format, with thoughts in `reasoning_content`, and arguments
// from read_arguments().
nlohmann::ordered_json shape_messages(const nlohmann::ordered_json& messages, const TemplateProgram& program);

}  // namespace kvant
