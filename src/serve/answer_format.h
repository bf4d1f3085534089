// What an answer may be, as requests say it: `response_format`, llama-server's `json_schema` and `grammar`,
// and the formats of the Responses and the Messages API.
#pragma once

#include <optional>
#include <string>

#include "model/tokenizer.h"
#include "serve/json_fields.h"
#include "serve/request.h"

namespace kvant {

struct AnswerFormat {
  std::string gbnf;            // the rules of the answer; empty: it may be any text
  const char* parameter = "";  // of the request, that has asked for them
};

// What is wrong becomes the error of `fields`.
AnswerFormat read_answer_format(JsonFields& fields);
// A format whose schema stands beside its type: `text.format` and `output_config.format`. parameter: which of
// them it is.
AnswerFormat read_flat_format(const nlohmann::ordered_json& json, const char* parameter, JsonFields& fields);

// Holds the answers to the format. A schema's rules may be more than can be followed, which is the error.
std::optional<ApiError> set_grammar(const AnswerFormat& format, const Tokenizer& tokenizer,
                                    GenerationRequest& request);

}  // namespace kvant
