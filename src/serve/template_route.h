// POST /apply-template: {"messages": [...]}, with tools where there are any, to {"prompt": TEXT}, as
// llama.cpp's server has it.
#pragma once

#include "chat/chat_template.h"
#include "model/tokenizer.h"

namespace httplib {
class Server;
}

namespace kvant {

// The template outlives the server; null: the model has none.
void add_template_route(httplib::Server& server, const ChatTemplate* chat_template);

}  // namespace kvant
