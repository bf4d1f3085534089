// The names that a chat template's source uses, which show the switches that it has.
#pragma once

#include <set>
#include <string>

namespace kvant {

struct TemplateWords {
  std::set<std::string> variables;  // also functions, tests and filters, but no members of values
  std::set<std::string> literals;   // string literals
};

// Returns empty sets for a source that is not a template.
TemplateWords template_words(const std::string& source);

}  // namespace kvant
