// A Transform is an invertible affine map that is applied to K or V before encoding. One object maps K into
// the cache and q to match, or V into the cache and the attention output back. Without quantization,
// attention with a transform therefore equals attention without one.
//
// A transform is composed of steps x -> x A + b, applied in order. Each kind of step is one file in this
// folder, listed in transforms.def.
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

// TransformStep is an invertible affine map of rows: forward(x) = x A + b, with A [d, d] and b [d].
class TransformStep {
 public:
  virtual ~TransformStep() = default;
  // Computes x <- x A + b for each row of x [n, d].
  virtual void forward(MatrixView<float> x) const = 0;
  // Computes x <- (x - b) A^-1.
  virtual void inverse(MatrixView<float> x) const = 0;
  // Computes q <- q A^-T, so forward(k) . query(q) = k.q + b . query(q). If offset is not null, the function
  // adds -b . query(q_r) to offset[r], which gives k.q = forward(k) . query(q) + offset. The shapes are
  // q [n, d] and offset [n].
  virtual void query(MatrixView<float> q, float* offset) const = 0;
};

// Describes a kind of step. `make` returns an error if a constant is missing or if the step does not support
// head_dim.
struct TransformKind {
  const char* name;     // the name in a recipe
  const char* summary;  // one line for the help
  bool calibrated;      // whether the step has constants from calibration
  // `shifts` says whether the step adds an offset b. On K, softmax ignores the offset unless a soft cap or an
  // absolute correction is in use.
  bool shifts;
  // `constant_name` is the name of the step's constants (transform_constant_name).
  Result<std::unique_ptr<TransformStep>> (*make)(int head_dim, const HeadConstants& constants,
                                                 const std::string& constant_name);
  // Returns the size of a calibrated step's constants for a head of `head_dim` channels.
  std::size_t (*constant_size)(int head_dim) = [](int head_dim) {
    return static_cast<std::size_t>(head_dim);
  };
};

// Returns all kinds, in the order of transforms.def.
std::span<const TransformKind* const> transform_kinds();
// Returns the kind called `name`, or null.
const TransformKind* find_transform_kind(const std::string& name);
// Returns the names of all kinds, in the order of transforms.def.
std::vector<std::string> transform_names();

// Returns the name of the constants of step `index`: names[0] to names[index], joined with '+'. The name
// contains the earlier steps because the constants describe their output. For example, the constants of
// `smooth` are called "smooth" as a first step and "hadamard+smooth" after a rotation.
std::string transform_constant_name(std::span<const std::string> names, std::size_t index);

// Holds the steps of one (layer, KV head, side).
class Transform {
 public:
  Transform() = default;  // the identity
  // Builds the steps called `names`, in order. Returns an error if a name is unknown, or if constants are
  // missing or have the wrong size.
  static Result<Transform> make(std::span<const std::string> names, int head_dim,
                                const HeadConstants& constants);

  bool identity() const { return steps_.empty(); }
  // Maps K or V [n, d], in place, into the cache's space.
  void forward(MatrixView<float> x) const;
  // Maps decoded K, decoded V or attention outputs back in place. Attention weights sum to 1, so the offset
  // of V is removed from outputs too.
  void inverse(MatrixView<float> x) const;
  // Maps queries [n, d], in place, to match a transformed K. Sets offset [n], which may be null, to what must
  // be added to the transformed scores to get the original scores.
  void query(MatrixView<float> q, float* offset) const;
  // Undoes query(): q <- q A^T, with A of all steps. The function suits only rare calls, because each call
  // computes A again.
  void inverse_query(MatrixView<float> q) const;

 private:
  std::vector<std::shared_ptr<const TransformStep>> steps_;
};

}  // namespace kvant
