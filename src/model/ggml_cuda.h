// Reaches parts of ggml's CUDA backend that ggml's public interface does not show. The code fits one version
// of ggml. CMake checks the version when kvant is configured, and check_ggml() when it runs.
#pragma once

#include <ggml-backend.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "model/cuda_driver.h"

// ggml_cuda.cc knows the private structures of this version of ggml. CMakeLists.txt reads the line.
#define KVANT_GGML_VERSION "0.25"

namespace kvant {

// Returns an error if `version`, the result of ggml_version(), is not the version that kvant was built for.
Status check_ggml(const std::string& version);

// Loads ggml's CUDA backend from the folder of ggml's other libraries, or from the first of `places` that has
// it.
Result<ggml_backend_reg_t> load_ggml_cuda(std::vector<std::string> places);

// Returns the stream on which the backend runs graphs. Work that alternates with graphs should use this
// stream, because streams that wait for each other cost some microseconds each time. Returns null if ggml's
// structures are not as expected.
CudaDriver::Stream stream_of(ggml_backend_t backend);

CudaDriver::Event event_of(ggml_backend_event_t event);

}  // namespace kvant
