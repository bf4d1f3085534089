// Finds tool calls that a model writes without the marks of its chat template, namely as bare JSON, in a
// fenced block, or between other tags. Small models write such calls about as often as calls with marks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "chat/call_json.h"

namespace kvant {

// Returns the tags that models write around calls outside of the template's format.
std::vector<std::string> call_tags();
bool begins_with_call_tag(std::string_view text);

// UntaggedCalls processes a completion while it arrives. Text that may be a call is held back until more text
// decides. Any other text comes out unchanged, byte for byte. White space next to a call is removed.
class UntaggedCalls {
 public:
  // `functions` are the offered tools, in the OpenAI API's format.
  explicit UntaggedCalls(const nlohmann::ordered_json& functions) : json_(functions) {}

  struct Found {
    std::string text;
    std::vector<WrittenCall> calls;
  };
  Found add(const std::string& text);
  // Returns the text that was held back. Call finish() after the last add(). With is_call_next, a call with
  // the template's marks follows, so a fence that was just opened belongs to that call.
  Found finish(bool is_call_next);

 private:
  enum class Place {
    text,
    code,     // within a fenced block that is not a call
    object,   // within a JSON value that is not a call
    wrapper,  // a call has ended, and more calls or the end of the tags or fence around the call may follow
  };

  Found scan(bool is_last);
  // Each step returns whether it made progress. False means that more text is needed.
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
  std::string held_;   // the text that has not come out yet
  std::string space_;  // white space before held_, which comes out together with the next text
  bool at_line_start_ = true;
  bool has_text_ = false;    // some text has come out
  bool after_call_ = false;  // a call has come, and no text after the call
  bool in_fence_ = false;    // the call's wrapper is a fenced block
  // These members describe the place within a value that is not a call.
  int depth_ = 0;
  bool in_string_ = false, after_backslash_ = false, after_newline_ = false;
};

}  // namespace kvant
