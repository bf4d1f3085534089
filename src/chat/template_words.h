// What a chat template's source names: to see which switches the template has.
#pragma once

#include <set>
#include <string>

namespace kvant {

struct TemplateWords {
  std::set<std::string> variables;  // and functions, tests and filters; no members of values
  std::set<std::string> literals;   // texts in quotes
};

// Empty for a source that is no template.
TemplateWords template_words(const std::string& source);

}  // namespace kvant
