#include "model/ggml_cuda.h"

#include <ggml.h>

#include <cstdlib>

#include "model/library_log.h"
#include "model/shared_library.h"

namespace kvant {
namespace {

// ggml's public interface does not show the CUDA stream of a backend or the CUDA event of a ggml event.
// GgmlEvent, GgmlBackend and GgmlCudaContext copy the first members of ggml's own structures, from
// ggml-backend-impl.h and ggml-cuda/common.cuh in version KVANT_GGML_VERSION. The `context` of a CUDA
// backend's event is the CUDA event.
struct GgmlEvent {
  void* device;
  void* context;
};
struct GgmlBackend {
  void* guid;
  void* functions[16];
  void* device;
  void* context;
};
struct GgmlCudaContext {
  int device;
  std::string name;
  void* copy_event;
  CudaDriver::Stream streams[16][8];  // streams of each device; graphs run on the first one
};

}  // namespace

Status check_ggml(const std::string& version) {
  if (version == KVANT_GGML_VERSION || version.starts_with(KVANT_GGML_VERSION ".")) return {};
  return error(
      "--device cuda needs ggml {}, which kvant was built for, but the loaded ggml has version {}: rebuild "
      "kvant with its own ggml (scripts/setup.sh), or use --device cpu",
      KVANT_GGML_VERSION, version);
}

Result<ggml_backend_reg_t> load_ggml_cuda(std::vector<std::string> places) {
  KVANT_RETURN_IF_ERROR(check_ggml(ggml_version()));
  places.insert(places.begin(), place_of(reinterpret_cast<const void*>(&ggml_time_us)));
  const std::string path = find_library("libggml-cuda.so", places);
  if (path.empty()) {
    return error(
        "--device cuda needs ggml's CUDA backend, libggml-cuda.so, which is not in '{}': KVANT_GPU=1 "
        "scripts/setup.sh compiles it if nvcc is installed; or use --device cpu",
        places.front());
  }
  quiet_library_log();
  // Without this variable, cuBLAS multiplies F32 in TF32, which has 10 bits of mantissa. Evaluations expand
  // weights to F32 in order to be exact. ggml does not show its cuBLAS handle, so NVIDIA's variable is the
  // only switch.
  setenv("NVIDIA_TF32_OVERRIDE", "0", /*overwrite=*/0);
  ggml_backend_reg_t registered = ggml_backend_load(path.c_str());
  if (registered != nullptr) return registered;
  return error(
      "'{}' can't be loaded: it is from another ggml than kvant's, or CUDA's libraries (libcudart, "
      "libcublas) are not where the system looks",
      path);
}

CudaDriver::Stream stream_of(ggml_backend_t backend) {
  ggml_backend_synchronize(backend);  // synchronizing creates the stream
  const auto* b = reinterpret_cast<const GgmlBackend*>(backend);
  if (b->device != ggml_backend_get_device(backend)) return nullptr;
  const auto* context = static_cast<const GgmlCudaContext*>(b->context);
  if (context->name.c_str() != ggml_backend_name(backend)) return nullptr;
  return context->streams[context->device][0];
}

CudaDriver::Event event_of(ggml_backend_event_t event) {
  return reinterpret_cast<const GgmlEvent*>(event)->context;
}

}  // namespace kvant
