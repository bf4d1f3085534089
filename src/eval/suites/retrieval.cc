// Asks for needles in a haystack. The recipes are likely to lose different things: precision, or tokens that
// Sparse V skips.
#include "eval/suite.h"

namespace kvant {

std::vector<Suite> retrieval_suites() {
  return {{.name = "retrieval",
           .title = "needles, variables and frequent words in long texts, as in RULER",
           .rows = {{"4 bits", "kvant-4bit"},
                    {"2 bits", "kvant-2bit"},
                    {"KIVI, 2 bits", "kivi-2bit"},
                    {"TurboQuant, 3 bits", "turbo3"},
                    {"TurboQuant, 3 bits, Sparse V", "turbo3-sparse-v"}},
           .contexts = {2048, 4096, 8192},
           .chunks = 3,
           .retrieval = true}};
}

}  // namespace kvant
