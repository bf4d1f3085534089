// Makes, places and runs ggml graphs on a backend. All graphs of a GraphRunner use the same memory.
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

// Returns a context for n_tensors tensors, whose data lie elsewhere, and a graph of them.
GgmlContext make_graph_context(int n_tensors);
// Allocates memory of the backend for all tensors of a context. Returns an error if memory is short.
Result<GgmlBuffer> allocate_tensors(ggml_context* context, ggml_backend* backend);

class GraphRunner {
 public:
  using Make = std::function<ggml_cgraph*(ggml_context*)>;

  // n_tensors is the number of tensors in the largest graph. The backend must outlive the object.
  GraphRunner(ggml_backend* backend, int n_tensors);

  // Checks whether the backend can compute the graph, and reserves memory for it.
  Status check(const Make& make);
  // Makes and computes a graph. The results stay valid until the next call.
  Status run(const Make& make);

 private:
  ggml_backend* backend_;
  int n_tensors_;
  GgmlContext context_;
  std::unique_ptr<ggml_gallocr, void (*)(ggml_gallocr*)> memory_;
};

}  // namespace kvant
