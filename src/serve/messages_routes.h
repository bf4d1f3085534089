// POST /v1/messages.
#pragma once

#include <span>

#include "chat/chat_template.h"
#include "model/tokenizer.h"
#include "serve/serve_loop.h"
#include "serve/server_info.h"

namespace httplib {
class Server;
}

namespace kvant {

// All outlive the server. chat_template: null: there are no tools.
void add_messages_route(httplib::Server& server, ServeLoop& loop, const Tokenizer& tokenizer,
                        const ChatTemplate* chat_template, std::span<const ServerInfo> served);

}  // namespace kvant
