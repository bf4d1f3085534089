#include "eval/retrieval/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

namespace kvant {
namespace {

constexpr int kKeys = 5;
constexpr int kChains = 2;
// A chain has kChainLength variables with one value.
constexpr int kChainLength = 4;
// Each candidate gets one of the numbers of votes in kVotes.
constexpr std::array<int, 6> kVotes = {9, 6, 4, 3, 2, 1};
constexpr int kAskedCandidates = 3;

const std::vector<std::string> kPeople = {"Amelia", "Bruno",  "Clara",  "Dmitri", "Esther", "Farid",
                                          "Greta",  "Hamish", "Ingrid", "Jonas",  "Keiko",  "Lorenzo"};
const std::vector<std::string> kCandidates = {"Abernathy", "Bellweather", "Castellan", "Drummond",
                                              "Everard",   "Fairbanks",   "Goldsmith", "Hathaway",
                                              "Ironside",  "Juniper",     "Kingsley",  "Lockhart"};

// The class draws from raw random bits because the distributions of <random> differ between standard
// libraries.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  double depth() { return below(1001) / 1000.0; }

  std::vector<double> ascending_depths(int n) {
    std::vector<double> depths(n);
    for (double& d : depths) d = depth();
    std::sort(depths.begin(), depths.end());
    return depths;
  }
  // Returns a five-digit number that was not drawn before.
  int number() {
    while (true) {
      const int drawn = 10000 + below(90000);
      if (numbers_.insert(drawn).second) return drawn;
    }
  }
  // Returns a name for a variable, different from all names so far.
  std::string variable() {
    while (true) {
      std::string drawn = {static_cast<char>('A' + below(26)), static_cast<char>('A' + below(26))};
      if (variables_.insert(drawn).second) return drawn;
    }
  }
  // Returns n different elements of `from`.
  std::vector<std::string> some(std::vector<std::string> from, int n) {
    for (int i = 0; i < n; ++i) std::swap(from[i], from[i + below(static_cast<int>(from.size()) - i)]);
    from.resize(n);
    return from;
  }

 private:
  std::mt19937_64 random_;
  std::set<int> numbers_;
  std::set<std::string> variables_;
};

std::string listed(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

void add_passkey(double depth, Draw& draw, FactSheet& sheet) {
  const int number = draw.number();
  sheet.facts.push_back(
      {depth, fmt::format("The pass key is {0}. Remember it: {0} is the pass key.", number)});
  sheet.questions.push_back(
      {"passkey", depth, "What is the pass key?", "The pass key is", fmt::format(" {}", number)});
}

void add_keys(Draw& draw, FactSheet& sheet) {
  int i = 0;
  for (const std::string& person : draw.some(kPeople, kKeys)) {
    const double depth = static_cast<double>(i++) / (kKeys - 1);
    const int number = draw.number();
    sheet.facts.push_back({depth, fmt::format("The locker number of {} is {}.", person, number)});
    sheet.questions.push_back({"keys", depth, fmt::format("What is the locker number of {}?", person),
                               fmt::format("The locker number of {} is", person),
                               fmt::format(" {}", number)});
  }
}

void add_variables(Draw& draw, FactSheet& sheet) {
  for (int chain = 0; chain < kChains; ++chain) {
    const int value = draw.number();
    std::vector<std::string> names;
    for (const double depth : draw.ascending_depths(kChainLength)) {
      const std::string name = draw.variable();
      sheet.facts.push_back({depth, names.empty() ? fmt::format("VAR {} = {}.", name, value)
                                                  : fmt::format("VAR {} = VAR {}.", name, names.back())});
      names.push_back(name);
    }
    // The other chains only distract from the chain that the question asks for.
    if (chain > 0) continue;
    sheet.questions.push_back(
        {"variables", -1,
         fmt::format("Which variables hold the value {}? Name them in the order of the text.", value),
         fmt::format("The variables that hold the value {} are", value), " " + listed(names)});
  }
}

void add_votes(Draw& draw, FactSheet& sheet) {
  const auto candidates = draw.some(kCandidates, static_cast<int>(kVotes.size()));
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    for (int vote = 0; vote < kVotes[i]; ++vote)
      sheet.facts.push_back({draw.depth(), fmt::format("One vote for {}.", candidates[i])});
  }
  sheet.questions.push_back(
      {"frequent", -1, "Who got the most votes? Name the first three, the one with the most votes first.",
       "The three with the most votes are",
       " " + listed({candidates.begin(), candidates.begin() + kAskedCandidates})});
}

}  // namespace

FactSheet draw_needles(double passkey_depth, std::uint64_t seed) {
  Draw draw(seed);
  FactSheet sheet;
  add_passkey(passkey_depth, draw, sheet);
  add_keys(draw, sheet);
  return sheet;
}

FactSheet draw_facts(double passkey_depth, std::uint64_t seed) {
  Draw draw(seed);
  FactSheet sheet;
  add_passkey(passkey_depth, draw, sheet);
  add_keys(draw, sheet);
  add_variables(draw, sheet);
  add_votes(draw, sheet);
  return sheet;
}

const std::vector<std::string>& retrieval_tasks() {
  static const std::vector<std::string> kTasks = {"passkey", "keys", "variables", "frequent"};
  return kTasks;
}

}  // namespace kvant
