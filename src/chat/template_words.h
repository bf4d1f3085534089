// Finds the names that a chat template's source uses. The names show which switches the template has.
#pragma once

#include <set>
#include <string>

namespace kvant {

struct TemplateWords {
  std::set<std::string> variables;  // also functions, tests and filters, but no members of values
  std::set<std::string> literals;
};

// Returns the names in a template's source. Both sets are empty if the source is not a template.
TemplateWords template_words(const std::string& source);

}  // namespace kvant
