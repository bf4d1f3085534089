// ComputeDevice: what runs a model beside the CPU: a ggml backend for all but attention, and the device that
// keeps pages and attends to them. Each may have a stream of its own.
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
  // What one of them is given from now on begins when the other has done what it was given so far. The host
  // doesn't wait.
  virtual void pages_after_graph() = 0;
  virtual void graph_after_pages() = 0;
};

// The device called "cuda" or "cuda:N". An error: there is none, or this machine or this build lacks what it
// needs.
Result<std::shared_ptr<ComputeDevice>> open_device(const std::string& name);

}  // namespace kvant
