#include "calibrate/device_graph_runner.h"

#include "model/library_abort.h"

namespace kvant {
namespace {

constexpr const char* kNoMemory = "the device has no memory left for them";

}  // namespace

GgmlContext make_graph_context(int n_tensors) {
  const std::size_t bytes =
      n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, /*grads=*/false);
  GgmlContext context(ggml_init({bytes, nullptr, /*no_alloc=*/true}), ggml_free);
  KVANT_CHECK(context != nullptr, "no memory for a graph's tensors");
  return context;
}

Result<GgmlBuffer> allocate_tensors(ggml_context* context, ggml_backend* backend) {
  GgmlBuffer buffer(ggml_backend_alloc_ctx_tensors(context, backend), ggml_backend_buffer_free);
  if (buffer == nullptr) return shortage(kNoMemory);
  return buffer;
}

GraphRunner::GraphRunner(ggml_backend* backend, int n_tensors)
    : backend_(backend),
      n_tensors_(n_tensors),
      context_(nullptr, ggml_free),
      memory_(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend)), ggml_gallocr_free) {}

Status GraphRunner::check(const Make& make) {
  context_ = make_graph_context(n_tensors_);
  ggml_cgraph* graph = make(context_.get());
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph, i);
    if (!ggml_backend_supports_op(backend_, node))
      return error("{} has no {} for them", ggml_backend_name(backend_), ggml_op_desc(node));
  }
  return ggml_gallocr_reserve(memory_.get(), graph) ? Status{} : shortage(kNoMemory);
}

Status GraphRunner::run(const Make& make) {
  context_ = make_graph_context(n_tensors_);
  ggml_cgraph* graph = make(context_.get());
  if (!ggml_gallocr_alloc_graph(memory_.get(), graph)) return shortage("gradients: {}", kNoMemory);
  // ggml's CUDA backend ends the process if its own pool finds no memory, or if a kernel fails.
  ggml_status status = GGML_STATUS_SUCCESS;
  const auto aborted = catch_library_abort([&] { status = ggml_backend_graph_compute(backend_, graph); });
  if (aborted) return shortage("gradients: {} ({})", kNoMemory, *aborted);
  if (status == GGML_STATUS_ALLOC_FAILED) return shortage("gradients: {}", kNoMemory);
  if (status != GGML_STATUS_SUCCESS)
    return error("{} failed to compute gradients", ggml_backend_name(backend_));
  return {};
}

}  // namespace kvant
