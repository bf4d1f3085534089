// ComputeDevice runs a model on something other than the CPU. A ggml backend computes everything except
// attention, and a page device keeps pages and attends to them. Each of the two may have its own stream.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "cache/page_device.h"

struct ggml_backend;

namespace kvant {

class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  virtual ggml_backend* backend() const = 0;
  virtual const std::shared_ptr<PageDevice>& pages() const = 0;
  // pages_after_graph() and graph_after_pages() make one stream wait for the other. Work that one stream gets
  // after the call begins when the other stream has finished its earlier work. The host does not wait.
  virtual void pages_after_graph() = 0;
  virtual void graph_after_pages() = 0;
};

// Opens the device called "cuda" or "cuda:N". Returns an error if the device does not exist, or if this
// machine or build lacks what the device needs.
Result<std::shared_ptr<ComputeDevice>> open_device(const std::string& name);

}  // namespace kvant
