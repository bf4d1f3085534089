// Completions read by the parser that llama.cpp's chat library makes of a chat template.
#pragma once

#include <memory>

#include "chat/completion_parser.h"

struct common_chat_params;

namespace kvant {

// one_call: later calls of a completion are left out, as not all of the library's grammars prevent them.
std::shared_ptr<const ToolFormat> read_by_library(const common_chat_params& params, bool one_call);

}  // namespace kvant
