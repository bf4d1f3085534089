// Splits off thoughts if the chat template does not handle them. A thought is <think>...</think> at the start
// of a completion.
#pragma once

#include <string>

namespace kvant {

// ThoughtTags processes a completion while it arrives.
class ThoughtTags {
 public:
  struct Split {
    std::string thought, text;
  };
  Split add(const std::string& text);
  // Returns the text that was held back. Call finish() after the last add(). A thought without an end tag
  // still counts as a thought.
  Split finish();

 private:
  enum class Place { start, thought, space, text };

  Place place_ = Place::start;
  std::string held_;
};

// ThoughtEdges removes the white space that templates and models write around a thought.
class ThoughtEdges {
 public:
  // thought() and text() take the next piece of a thought or of a text, and return the part of the piece that
  // can be shown.
  std::string thought(const std::string& more);
  std::string text(const std::string& more);

 private:
  bool has_thought_ = false, has_text_ = false;
  std::string space_;  // white space at the end of the thought so far
};

}  // namespace kvant
