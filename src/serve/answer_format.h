// Reads the formats that requests demand of completions: `response_format`, llama-server's `json_schema` and
// `grammar`, and the formats of the Responses and Messages APIs. Each format becomes a grammar.
#pragma once

#include <optional>
#include <string>

#include "model/tokenizer.h"
#include "serve/json_fields.h"
#include "serve/request.h"

namespace kvant {

struct AnswerFormat {
  std::string gbnf;  // the grammar of the completion; if empty, any text is valid
  const char* parameter = "";
};

// Reads the format of a chat or text completion. A mistake in the request becomes the error of `fields`.
AnswerFormat read_answer_format(JsonFields& fields);
// Reads a format whose schema is next to its type: `text.format` or `output_config.format`. `parameter` is
// the format's name in error messages.
AnswerFormat read_flat_format(const nlohmann::ordered_json& json, const char* parameter, JsonFields& fields);

// Restricts the completions to the format. Returns an error if the format's schema needs more grammar rules
// than the server allows.
std::optional<ApiError> set_grammar(const AnswerFormat& format, const Tokenizer& tokenizer,
                                    GenerationRequest& request);

}  // namespace kvant
