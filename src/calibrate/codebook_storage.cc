#include "calibrate/codebook_storage.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "calibrate/codebook.h"
#include "calibrate/learn_head.h"

namespace kvant {
namespace {

struct Cost {
  double sum = 0;  // the sum of the relative increases of the error
  int heads = 0;
  bool small() const { return sum < kMaxInt8Cost * heads; }
};

struct Place {
  int layer, kv_head;
  Side side;
  std::string codebook;
};

}  // namespace

void round_codebooks(Constants& constants) {
  const std::string suffix = kErrorsSuffix;
  std::map<std::pair<Side, std::string>, Cost> costs;
  std::vector<Place> places;
  constants.for_each(
      [&](int layer, int kv_head, Side side, const std::string& name, const std::vector<float>& errors) {
        if (!name.ends_with(suffix)) return;
        const std::string codebook = name.substr(0, name.size() - suffix.size());
        places.push_back({layer, kv_head, side, codebook});
        Cost& cost = costs[{side, codebook}];
        ++cost.heads;
        if (errors[1] > 0) cost.sum += errors[2] / errors[1] - 1;
      });
  for (const Place& place : places) {
    const auto found = constants.find(place.layer, place.kv_head, place.side, place.codebook);
    std::vector<float> values(found.begin(), found.end());
    const bool int8 = costs[{place.side, place.codebook}].small();
    constants.set(place.layer, place.kv_head, place.side, place.codebook,
                  int8 ? rounded_to_int8(std::move(values)) : rounded_to_f16(std::move(values)));
  }
}

}  // namespace kvant
