// ComputeDevice runs a model on something other than the CPU. It has a ggml backend for everything but
// attention, and the device that keeps pages and attends to them. Each may have a stream of its own.
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
  // Orders the two streams: what one is given from now on begins after the other has finished its earlier
  // work. The host does not wait.
  virtual void pages_after_graph() = 0;
  virtual void graph_after_pages() = 0;
};

// Opens the device called "cuda" or "cuda:N". Errors: it does not exist, or this machine or build lacks what
// it needs.
Result<std::shared_ptr<ComputeDevice>> open_device(const std::string& name);

}  // namespace kvant
