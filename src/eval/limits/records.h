// Makes records that a text hides and that a model must repeat as JSON. The file also finds the end of a JSON
// object, because a model may continue after the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvant {

struct Record {
  // `depth` is the position in the text, from 0 (the start) to 1 (the end).
  double depth = 0;
  // One sentence holds the whole record.
  std::string sentence;
  std::string question;
  // The answer starts with the cue, the record's first field, which identifies the record.
  std::string cue;
  // Holds the whole record including the cue.
  std::string json;
};

// Draws a customer's order for the start of the text and a tool call for its middle, with random names and
// numbers. A seed gives the same records on every machine.
std::vector<Record> draw_records(std::uint64_t seed);

// Returns the index after the brace that closes the JSON object at the start of `text`. Returns npos if the
// object is not closed, or if `text` does not begin with an object.
std::size_t json_object_end(const std::string& text);

}  // namespace kvant
