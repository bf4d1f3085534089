#include "model/plan_transforms.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>

namespace kvant {
namespace {

// A map of rows x -> x A + b.
struct AffineMap {
  std::vector<float> matrix;  // A, [d][d]
  std::vector<float> offset;  // b, [d]
  bool operator==(const AffineMap&) const = default;
};

// From what it makes of the zero row and of the unit rows.
template <class Apply>
AffineMap affine_map(int d, const Apply& apply) {
  AffineMap map{std::vector<float>(static_cast<std::size_t>(d) * d), std::vector<float>(d)};
  apply(MatrixView<float>(map.offset.data(), 1, d));
  for (int i = 0; i < d; ++i) map.matrix[i * d + i] = 1;
  apply(MatrixView<float>(map.matrix.data(), d, d));
  for (int i = 0; i < d; ++i) {
    for (int c = 0; c < d; ++c) map.matrix[i * d + c] -= map.offset[c];
  }
  return map;
}

bool is_zero(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return x == 0; });
}

}  // namespace

// Collects matrices, then puts them into memory.
class PlanTransforms::Maker {
 public:
  Maker(PlanTransforms& to, const Plan& plan) : to_(to), plan_(plan), d_(plan.geometry.head_dim) {}

  Status run(ggml_backend* backend) {
    const Geometry& g = plan_.geometry;
    constexpr int kTensorsOfLayer = 8;
    to_.context_ = ggml_init({(g.n_layers * kTensorsOfLayer + 1) * ggml_tensor_overhead(), nullptr,
                              /*no_alloc=*/true});
    KVANT_CHECK(to_.context_ != nullptr, "no memory for the descriptions of transforms");
    to_.layers_.resize(g.n_layers);
    for (int layer = 0; layer < g.n_layers; ++layer) add_layer(layer, to_.layers_[layer]);
    if (values_.empty()) return {};
    to_.buffer_ = ggml_backend_alloc_ctx_tensors(to_.context_, backend);
    if (to_.buffer_ == nullptr)
      return error("out of memory: no room for the transforms of {}", label(plan_.recipe));
    for (const auto& [tensor, values] : values_)
      ggml_backend_tensor_set(tensor, values.data(), 0, values.size() * sizeof(float));
    return {};
  }

 private:
  void add_layer(int layer, LayerTransforms& to) {
    const auto transform = [&](Side side, int head) -> const Transform& {
      return plan_.head(layer, head).side(side).transform;
    };
    add(
        layer, Side::key, [&](int head, MatrixView<float> x) { transform(Side::key, head).forward(x); },
        to.k);
    // An offset of the scores is the same for all keys.
    add(
        layer, Side::key,
        [&](int head, MatrixView<float> x) { transform(Side::key, head).query(x, nullptr); }, to.q);
    add(
        layer, Side::value, [&](int head, MatrixView<float> x) { transform(Side::value, head).forward(x); },
        to.v);
    add(
        layer, Side::value, [&](int head, MatrixView<float> x) { transform(Side::value, head).inverse(x); },
        to.out);
  }

  template <class Apply>
  void add(int layer, Side side, const Apply& apply, DeviceTransform& to) {
    const int n = plan_.geometry.n_kv_heads;
    bool identity = true;
    for (int head = 0; head < n; ++head)
      identity = identity && plan_.head(layer, head).side(side).transform.identity();
    if (identity) return;
    std::vector<AffineMap> maps;
    for (int head = 0; head < n; ++head)
      maps.push_back(affine_map(d_, [&](MatrixView<float> x) { apply(head, x); }));
    const bool alike = std::all_of(maps.begin(), maps.end(),
                                   [&](const AffineMap& map) { return map.matrix == maps[0].matrix; });
    std::vector<float> transposed, offsets;
    for (int head = 0; head < (alike ? 1 : n); ++head) {
      for (int c = 0; c < d_; ++c) {
        for (int i = 0; i < d_; ++i) transposed.push_back(maps[head].matrix[i * d_ + c]);
      }
    }
    for (const AffineMap& map : maps) offsets.insert(offsets.end(), map.offset.begin(), map.offset.end());
    to.matrix = ggml_new_tensor_3d(to_.context_, GGML_TYPE_F32, d_, d_, alike ? 1 : n);
    values_.emplace_back(to.matrix, std::move(transposed));
    if (is_zero(offsets)) return;
    to.offset = ggml_new_tensor_2d(to_.context_, GGML_TYPE_F32, d_, n);
    values_.emplace_back(to.offset, std::move(offsets));
  }

  PlanTransforms& to_;
  const Plan& plan_;
  int d_;
  std::vector<std::pair<ggml_tensor*, std::vector<float>>> values_;
};

PlanTransforms::~PlanTransforms() {
  if (buffer_ != nullptr) ggml_backend_buffer_free(buffer_);
  if (context_ != nullptr) ggml_free(context_);
}

Result<std::unique_ptr<PlanTransforms>> PlanTransforms::make(std::shared_ptr<const Plan> plan,
                                                             ggml_backend* backend) {
  std::unique_ptr<PlanTransforms> transforms(new PlanTransforms());
  KVANT_RETURN_IF_ERROR(Maker(*transforms, *plan).run(backend));
  transforms->plan_ = std::move(plan);
  return transforms;
}

}  // namespace kvant
