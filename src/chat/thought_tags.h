// Thoughts of models whose chat template doesn't know them: <think>...</think> at the start of a completion.
#pragma once

#include <string>

namespace kvant {

// Reads a text while it comes.
class ThoughtTags {
 public:
  struct Split {
    std::string thought, text;
  };
  Split add(const std::string& text);
  // After the last text: what was held back. A thought that has no end is a thought all the same.
  Split finish();

 private:
  enum class Place { start, thought, space, text };

  Place place_ = Place::start;
  std::string held_;
};

// Takes away the space that templates and models write around a thought.
class ThoughtEdges {
 public:
  // Both: what comes next. Returns what to show of it.
  std::string thought(const std::string& more);
  std::string text(const std::string& more);

 private:
  bool has_thought_ = false, has_text_ = false;
  std::string space_;  // at the thought's end, so far
};

}  // namespace kvant
