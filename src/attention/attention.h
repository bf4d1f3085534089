// Declares the interface of an attention backend, which appends, attends and seals for one layer inside a
// step. Models call one backend and need not know whether pages lie in host memory or on a device.
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

// Holds the rows of a step for one layer, in batch order. q and k have passed RoPE and norms and are not
// scaled. A layer without a cache of its own has neither k nor v.
struct LayerRows {
  bool has_kv() const { return k.data != nullptr; }
  MatrixView<const float> q;  // [n_rows, n_heads * head_dim]
  MatrixView<const float> k;  // [n_rows, n_kv_heads * head_dim]
  MatrixView<const float> v;  // [n_rows, n_kv_heads * head_dim]
  MatrixView<float> out;      // [n_rows, n_heads * head_dim]
};

// Says which rows of a layer a RowObserver wants. The values ascend by the amount of data that has to be
// copied.
enum class ShownRows : std::uint8_t {
  nothing,  // see() is not called.
  none,     // The contents of the cache are enough.
  queries,
  inputs,   // q, k and v
  outputs,  // q, k, v and out
};

// Sees the rows of layers for which run_layer() is not called, because a device attends to rows that never
// leave the device. One thread calls the observer.
class RowObserver {
 public:
  virtual ~RowObserver() = default;

  // Says which rows of a layer see() needs. The caller asks once for each layer of a step that has a cache of
  // its own, in the order of the layers.
  virtual ShownRows wants(const Step& step, int layer) = 0;
  // Receives the rows of a layer that has attended, unless the step has failed. The caller shows `none` and
  // `queries` after all layers of the step, so nobody waits for the device during the step. The cache keeps
  // the step's data until the step ends. The rows are as in run_layer(), in F32, with the plan's transforms
  // undone. Rows that were not wanted are empty. The observer reports a failure with step.fail().
  virtual void see(Step& step, int layer, const LayerRows& rows) = 0;
};

// Names the kernel that serves the pages of one (layer, KV head, side).
struct KernelChoice {
  std::string name;      // The name that the plan prints, for example "reference".
  std::string fallback;  // The reason why no faster kernel serves the pages. An empty string means that the
                         // kernel is meant for them.
};

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // Appends k and v to the cache, attends, and seals what is due, block by block for every slice of the step.
  // Every thread of the team calls run_layer() with equal arguments, maybe before other threads have computed
  // their part of the rows. So the backend reads no row before all threads have come, and returns when all of
  // `out` is written. The backend reports errors, for example a NaN in k, with step.fail(); `out` is then
  // zero. Each layer must run exactly once in a step, in any order. Rows without k and v attend to the cache
  // of `layer` (Geometry::shared), which has run in the step. Such a row sees what a query of `layer` sees at
  // the row's token.
  virtual void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) = 0;

  // Returns what was skipped since the backend was made, by layer. The list is empty if the backend can skip
  // nothing.
  virtual std::vector<SkipCount> skip_counts() const = 0;

  // Returns the order of codes that the backend reads fast, for resolve().
  virtual PageOrder page_order() const = 0;

  // Returns the plan with its pages where the backend reads them. An error says what a device cannot serve,
  // and what the device can.
  virtual Result<PlacedPlan> place(std::shared_ptr<const Plan> plan) const = 0;

  // Returns the kernel that serves the sealed pages of (layer, KV head, side).
  virtual KernelChoice kernel(const Plan& plan, int layer, int kv_head, Side side) const = 0;

  // Returns the observer of rows for which a device does not call run_layer(), or null if nobody observes
  // them.
  virtual RowObserver* observer() = 0;
};

// Wraps another backend, which serves the pages. Only run_layer and the observer may differ from the inner
// backend. AttentionBackend has no defaults, so a decorator that forgot a function would be abstract.
class BackendDecorator : public AttentionBackend {
 public:
  // `inner` outlives the decorator.
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

// Makes the reference backend: clear code over Format::decode that serves any mixture of formats.
std::unique_ptr<AttentionBackend> make_reference_backend();

// Makes the fast backend, which multiplies codes as integers with the best instructions of this machine.
// `kernels` selects an instruction set of instruction_sets.def instead. Null is returned if this machine
// cannot run the kernels, or if the build contains none that this machine can run.
std::unique_ptr<AttentionBackend> make_cpu_backend();
std::unique_ptr<AttentionBackend> make_cpu_backend(const std::string& kernels);

// Makes the backend called "cpu", "cpu/KERNELS" or "reference". An error says that the name is unknown or
// that this machine cannot run the backend.
Result<std::unique_ptr<AttentionBackend>> make_backend(const std::string& name);

}  // namespace kvant
