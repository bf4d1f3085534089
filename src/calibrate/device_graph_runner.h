// GraphRunner: makes, places and runs ggml graphs on a backend, one after the other in the same memory.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <functional>
#include <memory>

#include "base/result.h"

namespace kvant {

using GgmlContext = std::unique_ptr<ggml_context, void (*)(ggml_context*)>;
using GgmlBuffer = std::unique_ptr<ggml_backend_buffer, void (*)(ggml_backend_buffer*)>;

// For so many tensors whose data lie elsewhere, and a graph of them.
GgmlContext make_graph_context(int n_tensors);
// Memory of a backend for all tensors of a context. An error: it is short.
Result<GgmlBuffer> allocate_tensors(ggml_context* context, ggml_backend* backend);

class GraphRunner {
 public:
  using Make = std::function<ggml_cgraph*(ggml_context*)>;

  // n_tensors: of the largest graph. The backend outlives it.
  GraphRunner(ggml_backend* backend, int n_tensors);

  // Whether the backend can compute the graph; reserves the memory.
  Status check(const Make& make);
  // Makes and computes a graph. Its results are there until the next call.
  Status run(const Make& make);

 private:
  ggml_backend* backend_;
  int n_tensors_;
  GgmlContext context_;
  std::unique_ptr<ggml_gallocr, void (*)(ggml_gallocr*)> memory_;
};

}  // namespace kvant
