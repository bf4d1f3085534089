#include "model/device_states.h"

#include <ggml-backend.h>

namespace kvant {

DeviceStates::DeviceStates(const Hparams& hparams, std::shared_ptr<ComputeDevice> device)
    : hparams_(hparams), device_(std::move(device)) {}

DeviceStates::~DeviceStates() {
  if (memory_ != nullptr) ggml_backend_buffer_free(memory_);
}

Status DeviceStates::reserve(int n_slices) {
  if (hparams_.n_recurrent() == 0 || has_room_for(n_slices)) return {};
  if (memory_ != nullptr) {
    KVANT_RETURN_IF_ERROR(device_->pages()->finish());  // copies of the previous step may still run
    ggml_backend_buffer_free(memory_);
  }
  n_slices_ = 0;
  held_.clear();
  memory_ = ggml_backend_alloc_buffer(device_->backend(), DeviceGraph::state_memory(hparams_, n_slices));
  if (memory_ == nullptr) {
    return shortage(
        "out of memory on the device: no room for the recurrent states of {} sequences; process fewer in one "
        "step",
        n_slices);
  }
  n_slices_ = n_slices;
  return {};
}

std::array<DeviceStates::Part, 2> DeviceStates::parts_of(const DeviceGraph& graph) const {
  const DeltaNet& net = hparams_.delta_net;
  return {{{graph.conv_states(), 0, net.conv_values()},
           {graph.matrix_states(), net.conv_values(), net.matrix_values()}}};
}

std::size_t DeviceStates::state_stride() const {
  return hparams_.delta_net.state_values() * sizeof(float);
}

// The weak pointer of a freed state has expired, even if another state now lies at its address.
bool DeviceStates::holds_states_before(const Step& step) const {
  if (held_.size() != step.slices().size()) return false;
  for (int i = 0; i < std::ssize(held_); ++i) {
    const RecurrentState state = held_[i].lock();
    if (state == nullptr || state != step.held_state_before(i)) return false;
  }
  return true;
}

void DeviceStates::load(const Step& step, const DeviceGraph& graph) {
  const bool holds = holds_states_before(step);
  held_.clear();  // the graph overwrites the held states
  if (!holds) copy_in(step, graph);
  device_->graph_after_pages();  // this call also waits for copies of the previous step
}

void DeviceStates::copy_in(const Step& step, const DeviceGraph& graph) {
  const int n_slices = graph.shape().n_slices(), n_layers = hparams_.n_recurrent();
  PageDevice& pages = *device_->pages();
  for (const Part& part : parts_of(graph)) {
    const std::size_t bytes = part.n_values * sizeof(float), stride = n_slices * bytes;
    for (int i = 0; i < n_slices; ++i) {
      float* to = part.in_graph + i * part.n_values;
      if (const float* from = step.state_before(i)) {
        pages.copy_rows(to, stride, from + part.first, state_stride(), bytes, n_layers);
      } else {
        pages.clear_rows(to, stride, bytes, n_layers);
      }
    }
  }
}

void DeviceStates::store(const Step& step, const DeviceGraph& graph) {
  const int n_slices = graph.shape().n_slices(), n_layers = hparams_.n_recurrent();
  device_->pages_after_graph();
  for (int i = 0; i < n_slices; ++i) held_.push_back(step.held_state_after(i));
  for (const Part& part : parts_of(graph)) {
    const std::size_t bytes = part.n_values * sizeof(float), stride = n_slices * bytes;
    for (int i = 0; i < n_slices; ++i)
      device_->pages()->copy_rows(step.state_after(i) + part.first, state_stride(),
                                  part.in_graph + i * part.n_values, stride, bytes, n_layers);
  }
}

}  // namespace kvant
