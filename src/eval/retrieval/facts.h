// Draws the facts that a needle-in-a-haystack test puts into a text, and the questions about them, in
// English.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvant {

// Describes a fact and its place in the text. Depth 0 is the start, and depth 1 is the end.
struct Fact {
  double depth = 0;
  std::string sentence;
};

struct FactQuestion {
  std::string task;
  // `depth` is the depth of the one fact that answers the question, or -1 if several facts answer the
  // question.
  double depth = -1;
  // An example is "What is the pass key?".
  std::string question;
  // The answer begins with the cue, for example "The pass key is".
  std::string cue;
  // The right answer continues the cue, for example " 48213".
  std::string answer;
};

struct FactSheet {
  std::vector<Fact> facts;
  std::vector<FactQuestion> questions;
};

// Draws the facts of all tasks. "passkey" hides one number at passkey_depth. "keys" hides a locker's number
// for each of five people, at depths 0, 25, 50, 75 and 100 %. "variables" asks which variables of two chains
// hold a value. "frequent" asks who is named most often. A seed gives the same sheet on every machine.
FactSheet draw_facts(double passkey_depth, std::uint64_t seed);
// Draws only the facts of "passkey" and "keys", which take little room in a text.
FactSheet draw_needles(double passkey_depth, std::uint64_t seed);

// Returns the names of the tasks in the order of result tables.
const std::vector<std::string>& retrieval_tasks();

}  // namespace kvant
