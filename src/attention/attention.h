// One attention backend: runs append, attend and seal of one layer inside a step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/matrix_view.h"
#include "base/team.h"
#include "cache/cache.h"
#include "device/cpu/kernels/skip_count.h"

namespace kvant {

// The rows of a step for one layer, in batch order. q, k after RoPE and norms, unscaled. Without k and v they
// are those of a layer that has no cache of its own.
struct LayerRows {
  bool has_kv() const { return k.data != nullptr; }
  MatrixView<const float> q;  // [n_rows, n_heads * head_dim]
  MatrixView<const float> k;  // [n_rows, n_kv_heads * head_dim]
  MatrixView<const float> v;  // [n_rows, n_kv_heads * head_dim]
  MatrixView<float> out;      // [n_rows, n_heads * head_dim]
};

// What a RowObserver is shown of a layer, in ascending order of what has to be copied for it.
enum class ShownRows : std::uint8_t {
  nothing,  // see() isn't called
  none,     // no rows: what the cache holds is enough
  queries,
  inputs,   // q, k and v
  outputs,  // and out
};

// Sees what a model and its attention make, where run_layer() isn't called for it: a device attends to rows
// that never leave it. One thread calls it.
class RowObserver {
 public:
  virtual ~RowObserver() = default;

  // How much of a layer see() is to be shown. Asked once for each layer of a step, in their order.
  virtual ShownRows wants(const Step& step, int layer) = 0;
  // Of a layer that has attended, unless the step has failed: of `none` and `queries` when all of the step's
  // have, as what the cache holds is there until it ends, and nobody waits for the device in its midst. Rows
  // are as in run_layer(), in F32, transforms of the plan undone; what wasn't wanted has none. Failures go to
  // step.fail().
  virtual void see(Step& step, int layer, const LayerRows& rows) = 0;
};

// What serves the pages of one (layer, KV head, side).
struct KernelChoice {
  std::string name;      // as the plan prints it: "reference"
  std::string fallback;  // why nothing faster serves them; empty: it is the kernel meant for them
};

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // For every slice of the step, block by block: appends k and v to the cache, attends, seals what is due.
  // Every thread of the team calls it with the same arguments, maybe before others have computed their part
  // of the rows: it reads none before all threads have come, and returns when all of `out` is written. Errors
  // (a NaN in k, say) go to step.fail(); `out` is then zero. Each layer must run exactly once in a step;
  // layers may run in any order. Rows without k and v attend to the cache of `layer` (Geometry::shared),
  // which has run in the step: each sees what a query of that layer sees at its token.
  virtual void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) = 0;

  // What was skipped since the backend was made, by layer; empty where nothing can be.
  virtual std::vector<SkipCount> skip_counts() const = 0;

  // The order of codes that it reads fast: for resolve().
  virtual PageOrder page_order() const = 0;

  // The plan with its pages where the backend reads them. An error: a device can't serve it, and what it can.
  virtual Result<PlacedPlan> place(std::shared_ptr<const Plan> plan) const = 0;

  // The kernel that serves the sealed pages of (layer, KV head, side).
  virtual KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const = 0;

  // Whom a device shows the rows for which it doesn't call run_layer(); null: nobody.
  virtual RowObserver* observer() = 0;
};

// A backend around another, which serves the pages: all but run_layer and observer is that one's word. What
// it forgot to pass on would make it abstract: AttentionBackend has no defaults.
class BackendDecorator : public AttentionBackend {
 public:
  // `inner` outlives it.
  explicit BackendDecorator(AttentionBackend& inner) : inner_(inner) {}

  std::vector<SkipCount> skip_counts() const final { return inner_.skip_counts(); }
  PageOrder page_order() const final { return inner_.page_order(); }
  Result<PlacedPlan> place(std::shared_ptr<const Plan> plan) const final {
    return inner_.place(std::move(plan));
  }
  KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const final {
    return inner_.kernel(plan, layer, kv_head, side);
  }
  RowObserver* observer() override { return inner_.observer(); }

 protected:
  AttentionBackend& inner() { return inner_; }

 private:
  AttentionBackend& inner_;
};

// The reference: clear code over Format::decode, for any mixture of formats.
std::unique_ptr<AttentionBackend> make_reference_backend();

// The fast one: products of codes as integers, with this machine's best instructions. kernels: "avx512",
// "avxvnni", "avx2" or "portable" instead of the best; null where this machine cannot run them, or the build
// has none that it can.
std::unique_ptr<AttentionBackend> make_cpu_backend();
std::unique_ptr<AttentionBackend> make_cpu_backend(const std::string& kernels);

// The backend called "cpu", "cpu/KERNELS" or "reference". An error where there is none, or not on this
// machine.
Result<std::unique_ptr<AttentionBackend>> make_backend(const std::string& name);

}  // namespace kvant
