// How completions to a request are read: by llama.cpp's parser of the template's own format, with what models
// write beside it.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "chat/completion_parser.h"

struct common_chat_params;

namespace kvant {

struct CompletionReading {
  bool splits_thoughts = true;  // else thoughts stay in the text, with their tags
  bool one_call = false;        // clients aren't told of more
  bool continues = false;       // the prompt has the message's beginning, which clients have
  // The tools that may be called without the template's marks as well; empty: none.
  nlohmann::ordered_json untagged_functions = nlohmann::ordered_json::array();
};

// params: of the template that was filled in, with the same choice about thoughts.
std::shared_ptr<const ToolFormat> read_by_library(const common_chat_params& params,
                                                  CompletionReading reading);

}  // namespace kvant
