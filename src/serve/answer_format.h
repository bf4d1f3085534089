// The formats that requests demand of completions: `response_format`, llama-server's `json_schema` and
// `grammar`, and the formats of the Responses and the Messages API.
#pragma once

#include <optional>
#include <string>

#include "model/tokenizer.h"
#include "serve/json_fields.h"
#include "serve/request.h"

namespace kvant {

struct AnswerFormat {
  std::string gbnf;            // grammar of the completion; empty: any text is valid
  const char* parameter = "";  // the request's parameter that demands the format
};

// Reads the format. A mistake becomes the error of `fields`.
AnswerFormat read_answer_format(JsonFields& fields);
// Reads a format whose schema is next to its type: `text.format` and `output_config.format`. `parameter` says
// which of the two it is.
AnswerFormat read_flat_format(const nlohmann::ordered_json& json, const char* parameter, JsonFields& fields);

// Restricts the completions to the format. The error says that a schema needs more rules than the server
// allows.
std::optional<ApiError> set_grammar(const AnswerFormat& format, const Tokenizer& tokenizer,
                                    GenerationRequest& request);

}  // namespace kvant
