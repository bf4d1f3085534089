// Records that a text hides and a model must repeat as JSON, and the detection of where such JSON ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvant {

struct Record {
  double depth = 0;      // position in the text, 0: start, 1: end
  std::string sentence;  // a sentence of the text that contains the whole record
  std::string question;
  std::string cue;   // the start of the answer: the record's first field, which names it
  std::string json;  // the record, including the cue
};

// Draws a customer's order for the start of the text and a tool call for its middle, with random names and
// numbers. The same seed gives the same records on every machine.
std::vector<Record> draw_records(std::uint64_t seed);

// Returns the index after the brace that closes the JSON object at the start of `text`. Returns npos if no
// brace closes it or `text` does not begin with an object.
std::size_t json_object_end(const std::string& text);

}  // namespace kvant
