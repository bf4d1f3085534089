// Tool calls that a model writes into its text, without the marks that its chat template has for them: as
// JSON, alone, in a fenced block, or between other tags. Small models do so about as often as they use the
// marks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "chat/call_json.h"

namespace kvant {

// The tags that models write around calls.
std::vector<std::string> call_tags();

// Reads a text while it comes. Text that may be a call is held back until it is known to be one or not; text
// that is none comes out as it was, byte for byte. Space beside a call goes with the call.
class UntaggedCalls {
 public:
  // functions: the tools that are offered, as the OpenAI API has them.
  explicit UntaggedCalls(const nlohmann::ordered_json& functions) : json_(functions) {}

  struct Found {
    std::string text;
    std::vector<WrittenCall> calls;
  };
  Found add(const std::string& text);
  // After the last text: what was held back. is_call_next: a call with the template's marks comes, so that a
  // fence that has just been opened was opened for that call.
  Found finish(bool is_call_next);

 private:
  enum class Place {
    text,
    code,     // in a fenced block that is no call
    object,   // in a JSON value that is no call
    wrapper,  // after a call: more calls may follow, and what closes the wrapper
  };

  Found scan(bool is_last);
  // Each returns whether it has moved on; false: more text decides.
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
  std::string held_;   // that has not come out yet
  std::string space_;  // before it: comes out with the next text
  bool at_line_start_ = true;
  bool has_text_ = false;    // some has come out
  bool after_call_ = false;  // none has since
  bool in_fence_ = false;    // the wrapper is a fenced block
  // In the value that is no call:
  int depth_ = 0;
  bool in_string_ = false, after_backslash_ = false, after_newline_ = false;
};

}  // namespace kvant
