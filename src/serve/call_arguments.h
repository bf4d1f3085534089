// Tool calls in a conversation's history, as chat templates need them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvant {

// The text of a JSON object, whatever a client sent, because a refused call would end its conversation.
// An object, or the text of one, stays as it is. Null and an empty text become {}. Anything else, such as the
// text of a call that a token limit has cut, becomes {"arguments": VALUE}: the model still sees what it
// wrote. value: null: the client sent none.
std::string call_arguments(const nlohmann::ordered_json* value);

// The call itself, with these arguments.
nlohmann::ordered_json call_json(const std::string& id, const std::string& name,
                                 const nlohmann::ordered_json* arguments);

}  // namespace kvant
