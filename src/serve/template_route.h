// Routes POST /apply-template, as llama.cpp's server has it. The route turns {"messages": [...]}, with
// optional tools, into {"prompt": TEXT}.
#pragma once

#include "chat/chat_template.h"
#include "model/tokenizer.h"

namespace httplib {
class Server;
}

namespace kvant {

// The template must outlive the server. The template is null if the model has none.
void add_template_route(httplib::Server& server, const ChatTemplate* chat_template);

}  // namespace kvant
