// Transform: an invertible affine map applied to K or V before encoding (design: "transforms own both ends").
//
// One object maps K into the cache and q to match, or V into the cache and the attention output back, so
// that attention with it and without it is equal before quantization. It is composed of steps, applied in
// order; each step x -> x A + b is one file beside this one, listed in transforms.def.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/matrix_view.h"
#include "base/result.h"
#include "transform/constants.h"

namespace kvant {

// One invertible affine map of rows: forward(x) = x A + b, with A [d, d] and b [d].
class TransformStep {
 public:
  virtual ~TransformStep() = default;
  // x <- x A + b, row by row. x: [n, d].
  virtual void forward(MatrixView<float> x) const = 0;
  // x <- (x - b) A^-1.
  virtual void inverse(MatrixView<float> x) const = 0;
  // q <- q A^-T, so that forward(k) . query(q) = k.q + b . query(q). Where offset is not null, offset[r]
  // grows by -b . query(q_r), so that k.q = forward(k) . query(q) + offset. q: [n, d], offset: [n].
  virtual void query(MatrixView<float> q, float* offset) const = 0;
};

// A kind of step. `make` fails when a constant that the step needs is missing or d does not suit it.
struct TransformKind {
  const char* name;     // as written in a recipe
  const char* summary;  // one line for the help
  bool calibrated;      // needs constants from calibration
  // Adds an offset b: softmax drops it on K, unless a soft cap or an absolute correction is in use.
  bool shifts;
  // `constant_name` is what the step's constants are called there: see transform_constant_name.
  Result<std::unique_ptr<TransformStep>> (*make)(int head_dim, const HeadConstants& constants,
                                                 const std::string& constant_name);
  // Numbers in the constants of a calibrated step for a head of `head_dim` channels.
  std::size_t (*constant_size)(int head_dim) = [](int head_dim) {
    return static_cast<std::size_t>(head_dim);
  };
};

// All kinds, in the order of transforms.def.
std::span<const TransformKind* const> transform_kinds();
// The kind called `name`, or null.
const TransformKind* find_transform_kind(const std::string& name);
// All kinds' names, in the same order.
std::vector<std::string> transform_names();

// What the constants of step `index` of `names` are called: the names of the steps up to and including it,
// joined with '+', since a step's constants describe what the steps before it leave. "smooth" when it comes
// first, "hadamard+smooth" after a rotation.
std::string transform_constant_name(std::span<const std::string> names, std::size_t index);

// The steps of one (layer, KV head, side).
class Transform {
 public:
  Transform() = default;  // the identity
  // Builds the steps called `names`, in order. Fails when a name is unknown or constants are missing or
  // don't fit.
  static Result<Transform> make(std::span<const std::string> names, int head_dim,
                                const HeadConstants& constants);

  bool identity() const { return steps_.empty(); }
  // K or V [n, d], in place, into the cache's space.
  void forward(MatrixView<float> x) const;
  // Back: decoded K or V, or attention outputs (weights sum to 1, so the offset of V carries over).
  void inverse(MatrixView<float> x) const;
  // Queries [n, d], in place, to match a transformed K. offset [n] (may be null) is set to what must be
  // added to the transformed scores to get the original ones.
  void query(MatrixView<float> q, float* offset) const;
  // Undoes query(): q <- q A^T, with A of all steps. Made for few rows: A is made anew by each call.
  void inverse_query(MatrixView<float> q) const;

 private:
  std::vector<std::shared_ptr<const TransformStep>> steps_;
};

}  // namespace kvant
