// Records that a text hides and a model is asked to repeat as JSON, and where JSON ends in what it writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvant {

struct Record {
  double depth = 0;      // in the text, 0: its start, 1: its end
  std::string sentence;  // of the text, with the whole record in it
  std::string question;
  std::string cue;   // how the answer begins: the record's first field, which names it
  std::string json;  // the record: cue and answer
};

// A customer's order at the start of the text and a call of a tool in its middle; names and numbers are
// drawn. The same seed gives the same records on every machine.
std::vector<Record> draw_records(std::uint64_t seed);

// The end of the JSON object that `text` begins with: behind the brace that closes it. npos where none does,
// or `text` begins with none.
std::size_t json_object_end(const std::string& text);

}  // namespace kvant
