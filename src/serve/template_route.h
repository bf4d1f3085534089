// POST /apply-template: {"messages": [...]} to {"prompt": TEXT}, as llama.cpp's server has it.
#pragma once

#include "model/tokenizer.h"

namespace httplib {
class Server;
}

namespace kvant {

// tokenizer outlives the server.
void add_template_route(httplib::Server& server, const Tokenizer& tokenizer);

}  // namespace kvant
