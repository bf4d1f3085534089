// Splits off thoughts for models whose chat template doesn't handle them: <think>...</think> at the start of
// a completion.
#pragma once

#include <string>

namespace kvant {

// Processes a text while it arrives.
class ThoughtTags {
 public:
  struct Split {
    std::string thought, text;
  };
  Split add(const std::string& text);
  // Returns the text that was held back, after the last add(). A thought without an end tag still counts as a
  // thought.
  Split finish();

 private:
  enum class Place { start, thought, space, text };

  Place place_ = Place::start;
  std::string held_;
};

// Removes the white space that templates and models write around a thought.
class ThoughtEdges {
 public:
  // Both take the next piece and return the part of it to show.
  std::string thought(const std::string& more);
  std::string text(const std::string& more);

 private:
  bool has_thought_ = false, has_text_ = false;
  std::string space_;  // white space at the end of the thought so far
};

}  // namespace kvant
