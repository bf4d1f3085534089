// Prepares tool calls in a conversation's history for chat templates. Clients store the arguments of calls in
// many forms, and templates need a JSON object.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvant {

// Returns the arguments of a tool call as the text of a JSON object. A client may send anything, and a
// refused call would end its conversation. An object, or the text of an object, stays as it is. Null, an
// empty string and a missing value (null pointer) become {}. Any other VALUE, such as arguments that a token
// limit cut off, becomes {"arguments": VALUE}, so the value still reaches the model.
std::string call_arguments(const nlohmann::ordered_json* value);

// Returns the JSON of a tool call with this id, name and arguments, as chat templates read it.
nlohmann::ordered_json call_json(const std::string& id, const std::string& name,
                                 const nlohmann::ordered_json* arguments);

}  // namespace kvant
