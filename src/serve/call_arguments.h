// Prepares tool calls in a conversation's history for chat templates.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvant {

// Returns the text of a JSON object, whatever a client sent, because a refused call would end its
// conversation. An object, or the text of one, stays as it is. Null and an empty text become {}. Anything
// else, such as a call that a token limit cut, becomes {"arguments": VALUE}, so the model still sees what it
// wrote. A null `value` means that the client sent none.
std::string call_arguments(const nlohmann::ordered_json* value);

// Returns the call itself, with these arguments.
nlohmann::ordered_json call_json(const std::string& id, const std::string& name,
                                 const nlohmann::ordered_json* arguments);

}  // namespace kvant
