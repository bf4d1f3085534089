#include "model/plan_transforms.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvant {
namespace {

// AffineMap maps rows x to x A + b.
struct AffineMap {
  std::vector<float> matrix;  // A, [d][d]
  std::vector<float> offset;  // b, [d]
  bool operator==(const AffineMap&) const = default;
};

// Finds the map from its results for the zero row and for the unit rows.
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

// Returns the factors f if the map is x -> (x f) H with the orthonormal Walsh-Hadamard matrix H. Otherwise
// returns an empty list.
std::vector<float> hadamard_factors(const AffineMap& map, int d) {
  constexpr float kRounding = 1e-5F;
  const float size = std::sqrt(static_cast<float>(d));
  std::vector<float> factors(d);
  for (int i = 0; i < d; ++i) {
    factors[i] = map.matrix[i * d] * size;
    for (int j = 0; j < d; ++j) {
      const float sign = std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1.0F : -1.0F;
      if (!(std::abs(map.matrix[i * d + j] * size - sign * factors[i]) <= kRounding * std::abs(factors[i])))
        return {};
    }
    if (factors[i] == 0 || map.offset[i] != 0) return {};
    if (std::abs(factors[i] - 1) < kRounding) factors[i] = 1;
  }
  return factors;
}

bool is_zero(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return x == 0; });
}

}  // namespace

// Maker collects the matrices of all layers and then copies them to the device.
class PlanTransforms::Maker {
 public:
  Maker(PlanTransforms& to, const PlacedPlan& plan) : to_(to), plan_(*plan), on_device_(plan.on_device()) {}

  Status run(ggml_backend* backend) {
    const Geometry& g = plan_.geometry;
    to_.layers_.resize(g.n_layers);
    if (!on_device_) return {};  // if pages lie in host memory, the host transforms rows
    constexpr int kTensorsOfLayer = 8;
    to_.context_ = ggml_init({(g.n_layers * kTensorsOfLayer + 1) * ggml_tensor_overhead(), nullptr,
                              /*no_alloc=*/true});
    KVANT_CHECK(to_.context_ != nullptr, "no memory for the descriptions of transforms");
    for (int layer = 0; layer < g.n_layers; ++layer) add_layer(layer, to_.layers_[layer]);
    if (values_.empty()) return {};
    to_.buffer_ = ggml_backend_alloc_ctx_tensors(to_.context_, backend);
    if (to_.buffer_ == nullptr)
      return error("out of memory: no room for the transforms of {}", label(plan_.recipe));
    for (const auto& [tensor, values] : values_)
      ggml_backend_tensor_set(tensor, values.data(), 0, values.size() * sizeof(float));
    for (const Left& left : left_) {
      left.to->factors = static_cast<const float*>(left.factors->data);
      left.to->inverses = static_cast<const float*>(left.inverses->data);
    }
    return {};
  }

 private:
  void add_layer(int layer, LayerTransforms& to) {
    if (!leave_to_library(layer, Side::key, to.library_k)) {
      add(
          layer, Side::key, [&](int head, MatrixView<float> x) { of(layer, head, Side::key).forward(x); },
          to.k);
      // An offset of q's scores is the same for all keys, so softmax ignores it.
      add(
          layer, Side::key,
          [&](int head, MatrixView<float> x) { of(layer, head, Side::key).query(x, nullptr); }, to.q);
    }
    if (!leave_to_library(layer, Side::value, to.library_v)) {
      add(
          layer, Side::value, [&](int head, MatrixView<float> x) { of(layer, head, Side::value).forward(x); },
          to.v);
      add(
          layer, Side::value, [&](int head, MatrixView<float> x) { of(layer, head, Side::value).inverse(x); },
          to.out);
    }
  }

  const Transform& of(int layer, int head, Side side) const {
    return plan_.head(layer, head).side(side).transform;
  }

  bool leave_to_library(int layer, Side side, LibraryTransform& to) {
    std::vector<float> factors, inverses;
    const int d = plan_.geometry.dim(layer), n = plan_.geometry.kv_heads(layer);
    for (int head = 0; head < n; ++head) {
      const Transform& transform = of(layer, head, side);
      if (transform.identity()) return false;
      const std::vector<float> found =
          hadamard_factors(affine_map(d, [&](MatrixView<float> x) { transform.forward(x); }), d);
      if (found.empty()) return false;
      factors.insert(factors.end(), found.begin(), found.end());
    }
    to.hadamard = true;
    if (std::all_of(factors.begin(), factors.end(), [](float f) { return f == 1; })) return true;
    for (const float f : factors) inverses.push_back(1 / f);
    ggml_tensor* of_rows = keep(std::move(factors), d, n);
    left_.push_back({&to, of_rows, keep(std::move(inverses), d, n)});
    return true;
  }

  // Returns a tensor for [n_kv_heads, d] values.
  ggml_tensor* keep(std::vector<float> values, int d, int n_kv_heads) {
    ggml_tensor* tensor = ggml_new_tensor_2d(to_.context_, GGML_TYPE_F32, d, n_kv_heads);
    values_.emplace_back(tensor, std::move(values));
    return tensor;
  }

  template <class Apply>
  void add(int layer, Side side, const Apply& apply, DeviceTransform& to) {
    const int d = plan_.geometry.dim(layer), n = plan_.geometry.kv_heads(layer);
    bool identity = true;
    for (int head = 0; head < n; ++head)
      identity = identity && plan_.head(layer, head).side(side).transform.identity();
    if (identity) return;
    std::vector<AffineMap> maps;
    for (int head = 0; head < n; ++head)
      maps.push_back(affine_map(d, [&](MatrixView<float> x) { apply(head, x); }));
    const bool alike = std::all_of(maps.begin(), maps.end(),
                                   [&](const AffineMap& map) { return map.matrix == maps[0].matrix; });
    std::vector<float> transposed, offsets;
    for (int head = 0; head < (alike ? 1 : n); ++head) {
      for (int c = 0; c < d; ++c) {
        for (int i = 0; i < d; ++i) transposed.push_back(maps[head].matrix[i * d + c]);
      }
    }
    for (const AffineMap& map : maps) offsets.insert(offsets.end(), map.offset.begin(), map.offset.end());
    to.matrix = ggml_new_tensor_3d(to_.context_, GGML_TYPE_F32, d, d, alike ? 1 : n);
    values_.emplace_back(to.matrix, std::move(transposed));
    if (is_zero(offsets)) return;
    to.offset = ggml_new_tensor_2d(to_.context_, GGML_TYPE_F32, d, n);
    values_.emplace_back(to.offset, std::move(offsets));
  }

  struct Left {
    LibraryTransform* to;
    ggml_tensor *factors, *inverses;
  };

  PlanTransforms& to_;
  const Plan& plan_;
  bool on_device_;
  // These transforms are left to the library, and their factors get addresses once the memory exists.
  std::vector<Left> left_;
  std::vector<std::pair<ggml_tensor*, std::vector<float>>> values_;
};

PlanTransforms::~PlanTransforms() {
  if (buffer_ != nullptr) ggml_backend_buffer_free(buffer_);
  if (context_ != nullptr) ggml_free(context_);
}

Result<std::unique_ptr<PlanTransforms>> PlanTransforms::make(const PlacedPlan& plan, ggml_backend* backend) {
  std::unique_ptr<PlanTransforms> transforms(new PlanTransforms());
  KVANT_RETURN_IF_ERROR(Maker(*transforms, plan).run(backend));
  transforms->plan_ = plan.plan();
  return transforms;
}

}  // namespace kvant
