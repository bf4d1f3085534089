#include "model/repacking.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <memory>
#include <string_view>

namespace kvant {
namespace {

using ListBufferTypes = ggml_backend_buffer_type_t* (*)(ggml_backend_dev_t);

// Returns whether `device` can multiply by `weight` if the weight lies in a buffer of `type`.
bool multiplies(ggml_backend_dev_t device, ggml_backend_buffer_type_t type, const ggml_tensor* weight) {
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(
      ggml_init({4 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}), ggml_free);
  const std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)> empty(
      ggml_backend_buft_alloc_buffer(type, 0), ggml_backend_buffer_free);
  if (empty == nullptr) return false;
  ggml_tensor* w = ggml_dup_tensor(context.get(), weight);
  w->buffer = empty.get();
  ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, weight->ne[0], 512);
  return ggml_backend_dev_supports_op(device, ggml_mul_mat(context.get(), w, x));
}

}  // namespace

ggml_backend_buffer_type* repacked_buffer_type(const ggml_tensor* weight) {
  if (!ggml_is_quantized(weight->type)) return nullptr;
  ggml_backend_reg_t registry = ggml_backend_cpu_reg();
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(registry, 0);
  const auto list = reinterpret_cast<ListBufferTypes>(
      ggml_backend_reg_get_proc_address(registry, "ggml_backend_dev_get_extra_bufts"));
  if (list == nullptr) return nullptr;
  for (ggml_backend_buffer_type_t* type = list(device); type != nullptr && *type != nullptr; ++type) {
    // ggml's AMX code crashes on virtual machines that announce AMX but do not let programs configure it.
    if (std::string_view(ggml_backend_buft_name(*type)) == "AMX") continue;
    if (multiplies(device, *type, weight)) return *type;
  }
  return nullptr;
}

}  // namespace kvant
