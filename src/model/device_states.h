// DeviceStates keeps the recurrent states of a step's sequences side by side, where graphs of delta nets read
// and write them. The cache keeps each sequence's state in one piece. Before a step, load() copies the states
// here, unless the previous step left them; afterwards, store() copies them back. Graphs can therefore use
// fixed addresses.
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
  // `hparams` must outlive the object.
  DeviceStates(const Hparams& hparams, std::shared_ptr<ComputeDevice> device);
  ~DeviceStates();
  DeviceStates(const DeviceStates&) = delete;
  DeviceStates& operator=(const DeviceStates&) = delete;

  bool has_room_for(int n_slices) const { return n_slices <= n_slices_; }
  // Makes room for n_slices slices. Graphs that use the old memory must be destroyed first. Returns an error
  // if memory is exhausted.
  Status reserve(int n_slices);
  ggml_backend_buffer* memory() const { return memory_; }  // null if the model has no delta nets

  // load() and store() copy the states of the step's slices to and from memory(). `graph` must use that
  // memory.
  void load(const Step& step, const DeviceGraph& graph);
  void store(const Step& step, const DeviceGraph& graph);

 private:
  // Part is one of the two parts of a layer's state. The members say where the part lies in the graph's
  // memory and in the sequence's state.
  struct Part {
    float* in_graph;
    std::ptrdiff_t first;
    std::int64_t n_values;
  };
  std::array<Part, 2> parts_of(const DeviceGraph& graph) const;
  bool holds_states_before(const Step& step) const;
  void copy_in(const Step& step, const DeviceGraph& graph);
  std::size_t state_stride() const;  // the number of bytes from one layer's part to the next layer's

  const Hparams& hparams_;
  std::shared_ptr<ComputeDevice> device_;
  ggml_backend_buffer* memory_ = nullptr;
  int n_slices_ = 0;
  // This list names the states that memory() holds, for the slices of the last completed step. The list is
  // empty if the contents are unknown.
  std::vector<std::weak_ptr<const float>> held_;
};

}  // namespace kvant
