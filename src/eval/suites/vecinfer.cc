// Lists VecInfer's ablations (its section 4.4 and appendices D and E). As in the paper, the newest 128 tokens
// stay unquantized.
//
// Two rows of Table 5 are left out. The codebook of d8b16 has 65536 centroids, but calibration keeps only as
// many sub-vectors of a head. No other recipe uses the width of d2b3.
#include <fmt/format.h>

#include "eval/suite.h"

namespace kvant {
namespace {

// Returns a row with vector formats for K and V. The paper smooths and rotates K and applies no transform to
// V.
SuiteRow shapes(const std::string& label, const std::string& k, const std::string& v) {
  return {label, fmt::format("k=smooth+hadamard:vq-{},v=vq-{},window=128", k, v)};
}

SuiteRow transforms(const std::string& label, const std::string& names) {
  return {label, fmt::format("k={}vq-d8b12,v=vq-d8b12,window=128", names)};
}

}  // namespace

std::vector<Suite> vecinfer_suites() {
  return {
      {.name = "vecinfer-transforms",
       .title = "VecInfer, Table 4: transforms of K at 1.5 bits",
       .rows = {transforms("none", ""), transforms("S", "smooth:"), transforms("H", "hadamard:"),
                transforms("H+S", "hadamard+smooth:"), transforms("S+H", "smooth+hadamard:")}},
      {.name = "vecinfer-codebooks",
       .title = "VecInfer, Table 5: codebook shapes at equal bits",
       .rows = {shapes("2 bits d4b8", "d4b8", "d4b8"), shapes("2 bits d2b4", "d2b4", "d2b4"),
                shapes("1.5 bits d8b12", "d8b12", "d8b12"), shapes("1.5 bits d4b6", "d4b6", "d4b6")}},
      {.name = "vecinfer-bits",
       .title = "VecInfer, Table 6: different bits for K and V",
       .rows = {shapes("1.5: K 1.5, V 1.5", "d8b12", "d8b12"), shapes("1.5: K 1, V 2", "d8b8", "d4b8"),
                shapes("1.5: K 2, V 1", "d4b8", "d8b8"), shapes("1.25: K 1.25, V 1.25", "d8b10", "d8b10"),
                shapes("1.25: K 1, V 1.5", "d8b8", "d8b12"), shapes("1.25: K 1.5, V 1", "d8b12", "d8b8")}},
      // With several texts in --calibrate-on, the table has one row for each text.
      {.name = "vecinfer-tasks",
       .title = "VecInfer, Table 7: codebooks learned on different texts (give them with --calibrate-on)",
       .rows = {shapes("2 bits", "d4b8", "d4b8")}},
  };
}

}  // namespace kvant
