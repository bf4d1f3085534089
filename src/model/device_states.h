// DeviceStates: where graphs of delta nets find the states of a step's sequences, side by side, and leave new
// ones. The cache keeps each sequence's state as one run of values: before a step they are copied here,
// unless the step before has left them, and back after it, so that graphs always read and write the same
// places.
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
  // hparams outlives it.
  DeviceStates(const Hparams& hparams, std::shared_ptr<ComputeDevice> device);
  ~DeviceStates();
  DeviceStates(const DeviceStates&) = delete;
  DeviceStates& operator=(const DeviceStates&) = delete;

  bool has_room_for(int n_slices) const { return n_slices <= n_slices_; }
  // Makes room; graphs that have used what there was before must be gone. An error: memory is exhausted.
  Status reserve(int n_slices);
  ggml_backend_buffer* memory() const { return memory_; }  // null: the model has no delta nets

  // Of the step's slices, to where the graph finds them, and from there. The graph is of this memory.
  void load(const Step& step, const DeviceGraph& graph);
  void store(const Step& step, const DeviceGraph& graph);

 private:
  // What a state has of each layer, in two parts: where they are in it, and in the graph's memory.
  struct Part {
    float* in_graph;
    std::ptrdiff_t first;
    std::int64_t n_values;
  };
  std::array<Part, 2> parts_of(const DeviceGraph& graph) const;
  bool holds_states_before(const Step& step) const;
  void copy_in(const Step& step, const DeviceGraph& graph);
  std::size_t state_stride() const;  // bytes from a layer's part to the next one's

  const Hparams& hparams_;
  std::shared_ptr<ComputeDevice> device_;
  ggml_backend_buffer* memory_ = nullptr;
  int n_slices_ = 0;
  // Of the slices of the last step that has ended: copies of these lie here. Empty: unknown.
  std::vector<std::weak_ptr<const float>> held_;
};

}  // namespace kvant
