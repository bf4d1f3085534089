// Parses the completions of a request with llama.cpp's parser for the template's own format. The parser also
// recognizes thoughts and calls that models write outside of that format.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "chat/completion_parser.h"

struct common_chat_params;

namespace kvant {

struct CompletionReading {
  bool splits_thoughts = true;  // if false, thoughts stay in the text with their tags
  bool one_call = false;        // further calls are not reported
  bool calls_alone = false;     // the grammar allows nothing but calls after the thoughts
  bool continues = false;       // the prompt contains the start of the message, which clients already have
  // These tools may also be called without the template's marks. The list may be empty.
  nlohmann::ordered_json untagged_functions = nlohmann::ordered_json::array();
};

// Returns a format whose completions llama.cpp's library parses. `params` come from rendering the template
// with the same choice about thoughts.
std::shared_ptr<const ToolFormat> read_by_library(const common_chat_params& params,
                                                  CompletionReading reading);

}  // namespace kvant
