// Finds tool calls that a model writes into its text without the marks of its chat template: as bare JSON, in
// a fenced block, or between other tags. Small models do so about as often as they use the marks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "chat/call_json.h"

namespace kvant {

// Returns the tags that models write around calls.
std::vector<std::string> call_tags();

// Processes a text while it arrives. Text that may be a call is held back until that is decided. Text that is
// not a call comes out unchanged, byte for byte. White space beside a call is removed with it.
class UntaggedCalls {
 public:
  // functions: the offered tools, as the OpenAI API has them.
  explicit UntaggedCalls(const nlohmann::ordered_json& functions) : json_(functions) {}

  struct Found {
    std::string text;
    std::vector<WrittenCall> calls;
  };
  Found add(const std::string& text);
  // Returns the text that was held back, after the last add(). is_call_next: a call with the template's marks
  // follows, so a fence that was just opened belongs to that call.
  Found finish(bool is_call_next);

 private:
  enum class Place {
    text,
    code,     // in a fenced block that is not a call
    object,   // in a JSON value that is not a call
    wrapper,  // after a call: more calls may follow, and the end of the wrapper
  };

  Found scan(bool is_last);
  // Each step returns whether it made progress; false: more text is needed.
  bool step(bool is_last, Found& found);
  bool step_text(bool is_last, Found& found);
  bool step_fence(bool is_last, Found& found);
  bool step_tag(bool is_last, Found& found);
  bool step_json(bool is_last, Found& found);
  bool step_code(bool is_last, Found& found);
  bool step_object(Found& found);
  bool step_wrapper(bool is_last, Found& found);

  CallJson::Verdict take_call(std::size_t begin, bool is_last, Found& found);
  void release(std::size_t length, Found& found);

  CallJson json_;
  Place place_ = Place::text;
  std::string held_;   // text that has not come out yet
  std::string space_;  // white space before it, which comes out with the next text
  bool at_line_start_ = true;
  bool has_text_ = false;    // some text has come out
  bool after_call_ = false;  // a call came, and no text since
  bool in_fence_ = false;    // the wrapper is a fenced block
  // State within a value that is not a call:
  int depth_ = 0;
  bool in_string_ = false, after_backslash_ = false, after_newline_ = false;
};

}  // namespace kvant
