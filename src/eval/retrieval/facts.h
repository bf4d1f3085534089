// Needles: facts that a needle-in-a-haystack test puts into a text, and its questions about them, in English.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvant {

// A sentence at a place in the text, 0: its start, 1: its end.
struct Fact {
  double depth = 0;
  std::string sentence;
};

struct FactQuestion {
  std::string task;
  double depth = -1;     // of the one fact that answers it; -1: several do
  std::string question;  // "What is the pass key?"
  std::string cue;       // how the answer begins: "The pass key is"
  std::string answer;    // how it must go on: " 48213"
};

struct FactSheet {
  std::vector<Fact> facts;
  std::vector<FactQuestion> questions;
};

// Draws the facts of all tasks. "passkey": one number, hidden at passkey_depth. "keys": a locker's number for
// each of five people, at depths 0, 25, 50, 75 and 100 %. "variables": which of two chains' variables hold a
// value. "frequent": who is named most often. The same seed gives the same sheet on every machine.
FactSheet draw_facts(double passkey_depth, std::uint64_t seed);
// Draws only the facts of "passkey" and "keys", which fill less of the sheet.
FactSheet draw_needles(double passkey_depth, std::uint64_t seed);

// Returns the names of the tasks in the order of result tables.
const std::vector<std::string>& retrieval_tasks();

}  // namespace kvant
