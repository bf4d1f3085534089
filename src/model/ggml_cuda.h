// What kvant needs of ggml's CUDA backend beyond ggml's public interface, in one place: it holds for one
// version of ggml, which is checked when kvant is configured and when it runs.
#pragma once

#include <ggml-backend.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "model/cuda_driver.h"

// The version of ggml whose private structures ggml_cuda.cc knows. CMakeLists.txt reads this line.
#define KVANT_GGML_VERSION "0.25"

namespace kvant {

// An error: ggml's version, as ggml_version() gives it, is not the one that kvant is built for.
Status check_ggml(const std::string& version);

// Loads the backend, which set-up puts into the folder of ggml's other libraries, or which lies in one of
// these places.
Result<ggml_backend_reg_t> load_ggml_cuda(std::vector<std::string> places);

// The stream on which the backend runs graphs: work that takes turns with them is best given to it, as
// streams that wait for each other cost some microseconds each time. Null: ggml's structures are not those
// that kvant knows.
CudaDriver::Stream stream_of(ggml_backend_t backend);

CudaDriver::Event event_of(ggml_backend_event_t event);

}  // namespace kvant
