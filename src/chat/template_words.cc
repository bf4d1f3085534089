#include "chat/template_words.h"

#include <jinja/lexer.h>

#include <exception>

namespace kvant {

TemplateWords template_words(const std::string& source) {
  TemplateWords words;
  try {
    jinja::lexer lexer;
    bool after_dot = false;
    for (const jinja::token& token : lexer.tokenize(source).tokens) {
      if (token.t == jinja::token::identifier && !after_dot) words.variables.insert(token.value);
      if (token.t == jinja::token::string_literal) words.literals.insert(token.value);
      after_dot = token.t == jinja::token::dot;
    }
  } catch (const std::exception&) {  // the library reports a syntax error in this way
    return {};
  }
  return words;
}

}  // namespace kvant
