// Writes a calibration for a model with more layers and KV heads, whose constants repeat those of another
// model. With the result, speed can be measured with one model's bits by layer and head, and the shape of a
// larger model:
//
//   repeat_constants CALIBRATION RESULT LAYERS KV_HEADS
//
// Layer i of the result has the constants of layer i * n / LAYERS of the n layers, and head h those of head h
// modulo the number of heads.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "calibrate/calibration.h"

namespace kvant {
namespace {

struct Shape {
  int layers = 0, kv_heads = 0;
};

Shape shape_of(const Constants& constants) {
  Shape shape;
  constants.for_each([&](int layer, int kv_head, Side, const std::string&, const auto&) {
    shape = {std::max(shape.layers, layer + 1), std::max(shape.kv_heads, kv_head + 1)};
  });
  return shape;
}

Constants repeated(const Constants& from, Shape to) {
  const Shape shape = shape_of(from);
  Constants result;
  from.for_each(
      [&](int layer, int kv_head, Side side, const std::string& name, const std::vector<float>& values) {
        for (int i = 0; i < to.layers; ++i) {
          if (i * shape.layers / to.layers != layer) continue;
          for (int head = kv_head; head < to.kv_heads; head += shape.kv_heads)
            result.set(i, head, side, name, values);
        }
      });
  return result;
}

}  // namespace
}  // namespace kvant

int main(int argc, char** argv) {
  const kvant::Shape to = argc == 5 ? kvant::Shape{std::atoi(argv[3]), std::atoi(argv[4])} : kvant::Shape{};
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
