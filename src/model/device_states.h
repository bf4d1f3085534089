// DeviceStates keeps the states of a step's sequences side by side, where graphs of delta nets read and write
// them. The cache keeps each sequence's state as one run of values. It is copied here before a step, unless
// the previous step left it, and back after the step. So graphs always use the same addresses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cache.h"
#include "model/compute_device.h"
#include "model/device_graph.h"

struct ggml_backend_buffer;

namespace kvant {

class DeviceStates {
 public:
  // `hparams` must outlive it.
  DeviceStates(const Hparams& hparams, std::shared_ptr<ComputeDevice> device);
  ~DeviceStates();
  DeviceStates(const DeviceStates&) = delete;
  DeviceStates& operator=(const DeviceStates&) = delete;

  bool has_room_for(int n_slices) const { return n_slices <= n_slices_; }
  // Makes room. Graphs that use the old memory must be destroyed first. Error: memory is exhausted.
  Status reserve(int n_slices);
  ggml_backend_buffer* memory() const { return memory_; }  // null: the model has no delta nets

  // Copies the states of the step's slices to and from the graph's memory. The graph must use this memory.
  void load(const Step& step, const DeviceGraph& graph);
  void store(const Step& step, const DeviceGraph& graph);

 private:
  // The two parts of a layer's state: their offsets in the state and in the graph's memory.
  struct Part {
    float* in_graph;
    std::ptrdiff_t first;
    std::int64_t n_values;
  };
  std::array<Part, 2> parts_of(const DeviceGraph& graph) const;
  bool holds_states_before(const Step& step) const;
  void copy_in(const Step& step, const DeviceGraph& graph);
  std::size_t state_stride() const;  // bytes from one layer's part to the next

  const Hparams& hparams_;
  std::shared_ptr<ComputeDevice> device_;
  ggml_backend_buffer* memory_ = nullptr;
  int n_slices_ = 0;
  // States whose copies lie here, for the slices of the last completed step. Empty: unknown.
  std::vector<std::weak_ptr<const float>> held_;
};

}  // namespace kvant
