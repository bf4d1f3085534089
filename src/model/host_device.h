// HostDevice is a device for tests that consists of host memory and ggml's CPU backend. It uses the same
// graphs, tables, ledgers and calls as a GPU.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpu.h>

#include <memory>

#include "cache/testing/host_pages.h"
#include "model/compute_device.h"

namespace kvant::testing {

class HostDevice final : public ComputeDevice {
 public:
  explicit HostDevice(std::size_t limit = 0)
      : pages_(std::make_shared<HostPages>(limit)), backend_(ggml_backend_cpu_init()) {
    ggml_backend_cpu_set_n_threads(backend_, 1);
  }
  ~HostDevice() override { ggml_backend_free(backend_); }
  ggml_backend* backend() const override { return backend_; }
  const std::shared_ptr<PageDevice>& pages() const override { return pages_; }
  void pages_after_graph() override {}
  void graph_after_pages() override {}
  HostPages& host_pages() { return static_cast<HostPages&>(*pages_); }

 private:
  std::shared_ptr<PageDevice> pages_;
  ggml_backend_t backend_;
};

}  // namespace kvant::testing
