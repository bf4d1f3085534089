// What an answer may be, as requests say it: `response_format`, and llama-server's `json_schema` and
// `grammar`.
#pragma once

#include <string>

#include "serve/json_fields.h"

namespace kvant {

struct AnswerFormat {
  std::string gbnf;            // the rules of the answer; empty: it may be any text
  const char* parameter = "";  // of the request, that has asked for them
};

// What is wrong becomes the error of `fields`.
AnswerFormat read_answer_format(JsonFields& fields);

}  // namespace kvant
