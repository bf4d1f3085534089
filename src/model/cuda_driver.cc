#include "model/cuda_driver.h"

#include "model/shared_library.h"

namespace kvant {

Result<std::shared_ptr<const CudaDriver>> CudaDriver::load() {
  const auto library = SharedLibrary::open("libcuda.so.1", {});
  if (!library.ok())
    return error(
        "--device cuda needs an NVIDIA GPU, but this machine has no driver for one: use --device cpu");
  const SharedLibrary& l = **library;
  auto d = std::make_shared<CudaDriver>();
  const bool complete =
      l.find("cuInit", d->init) && l.find("cuDeviceGetCount", d->device_count) &&
      l.find("cuDeviceGet", d->device_get) && l.find("cuDeviceGetName", d->device_name) &&
      l.find("cuDeviceGetAttribute", d->device_attribute) &&
      l.find("cuDevicePrimaryCtxRetain", d->retain_context) &&
      l.find("cuDevicePrimaryCtxRelease_v2", d->release_context) &&
      l.find("cuCtxSetCurrent", d->set_context) && l.find("cuStreamCreate", d->create_stream) &&
      l.find("cuStreamDestroy_v2", d->destroy_stream) &&
      l.find("cuStreamSynchronize", d->synchronize_stream) && l.find("cuStreamWaitEvent", d->wait_event) &&
      l.find("cuEventRecord", d->record_event) && l.find("cuMemAlloc_v2", d->allocate) &&
      l.find("cuMemFree_v2", d->free) && l.find("cuMemGetInfo_v2", d->memory_info) &&
      l.find("cuMemcpyHtoDAsync_v2", d->upload) && l.find("cuMemcpyDtoHAsync_v2", d->download) &&
      l.find("cuMemcpyDtoDAsync_v2", d->copy) && l.find("cuMemcpy2DAsync_v2", d->copy_2d) &&
      l.find("cuMemsetD2D8Async", d->set_2d) && l.find("cuGetErrorString", d->error_text);
  if (!complete)
    return error("NVIDIA's driver on this machine is too old for --device cuda: install a newer one");
  if (const int failure = d->init(0); failure != 0)
    return error("--device cuda: NVIDIA's driver says '{}': use --device cpu", d->text(failure));
  return std::shared_ptr<const CudaDriver>(std::move(d));
}

const char* CudaDriver::text(int error) const {
  const char* text = nullptr;
  return error_text(error, &text) == 0 && text != nullptr ? text : "unknown error";
}

}  // namespace kvant
