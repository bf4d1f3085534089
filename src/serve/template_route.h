// Routes POST /apply-template, in the format of llama.cpp's server. The route turns {"messages": [...]}, with
// optional tools, into {"prompt": TEXT}.
#pragma once

#include "chat/chat_template.h"
#include "model/tokenizer.h"

namespace httplib {
class Server;
}

namespace kvant {

// Adds the route that renders chats to the server. The template must outlive the server. A null template
// means that the model has none.
void add_template_route(httplib::Server& server, const ChatTemplate* chat_template);

}  // namespace kvant
