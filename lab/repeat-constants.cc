// Writes a calibration for a model with more layers and KV heads, whose constants repeat those of another
// model. With the result, speed can be measured with one model's bits by layer and head, and the shape of a
// larger model:
//
//   repeat_constants CALIBRATION RESULT LAYERS KV_HEADS
//
// Layer i of the result has the constants of layer i * n / LAYERS of the n layers, and head h those of head h
// modulo the number of heads.
#include <cstdio>
#include <cstdlib>

#include "calibrate/calibration.h"

namespace kvant {
namespace {

Constants repeated(const Constants& from, LayersAndHeads to) {
  const LayersAndHeads numbers = layers_and_heads(from);
  Constants result;
  from.for_each(
      [&](int layer, int kv_head, Side side, const std::string& name, const std::vector<float>& values) {
        for (int i = 0; i < to.layers; ++i) {
          if (i * numbers.layers / to.layers != layer) continue;
          for (int head = kv_head; head < to.kv_heads; head += numbers.kv_heads)
            result.set(i, head, side, name, values);
        }
      });
  return result;
}

}  // namespace
}  // namespace kvant

int main(int argc, char** argv) {
  const kvant::LayersAndHeads to =
      argc == 5 ? kvant::LayersAndHeads{std::atoi(argv[3]), std::atoi(argv[4])} : kvant::LayersAndHeads{};
  if (to.layers < 1 || to.kv_heads < 1) {
    std::fprintf(stderr, "usage: repeat_constants CALIBRATION RESULT LAYERS KV_HEADS\n");
    return 2;
  }
  auto calibration = kvant::read_calibration(argv[1]);
  if (!calibration.ok()) {
    std::fprintf(stderr, "repeat_constants: %s\n", calibration.error().message.c_str());
    return 1;
  }
  calibration->constants = kvant::repeated(calibration->constants, to);
  if (auto status = kvant::write_calibration(*calibration, argv[2]); !status.ok()) {
    std::fprintf(stderr, "repeat_constants: %s\n", status.error().message.c_str());
    return 1;
  }
}
