// CudaDriver loads the functions of NVIDIA's driver that kvant calls at run time. kvant therefore compiles
// without CUDA and also runs on machines without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"

namespace kvant {

// The driver's ABI is the same in all versions. The name of each function in the library ends in the version
// of its interface.
struct CudaDriver {
  using Address = unsigned long long;
  using Context = void*;
  using Stream = void*;
  using Event = void*;
  static constexpr int kHost = 1, kDevice = 2;  // CUmemorytype
  static constexpr unsigned kNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
  static constexpr int kCapabilityMajor = 75;   // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  static constexpr int kCapabilityMinor = 76;
  struct Copy2d {  // CUDA_MEMCPY2D
    std::size_t from_x, from_y;
    int from_type;
    const void* from_host;
    Address from_device;
    void* from_array;
    std::size_t from_pitch, to_x, to_y;
    int to_type;
    void* to_host;
    Address to_device;
    void* to_array;
    std::size_t to_pitch, width, height;
  };

  // Each function returns 0 or an error number of the driver.
  int (*init)(unsigned flags);
  int (*device_count)(int* n);
  int (*device_get)(int* device, int ordinal);
  int (*device_name)(char* name, int bytes, int device);
  int (*device_attribute)(int* value, int attribute, int device);
  int (*retain_context)(Context* context, int device);
  int (*release_context)(int device);
  int (*set_context)(Context context);
  int (*create_stream)(Stream* stream, unsigned flags);
  int (*destroy_stream)(Stream stream);
  int (*synchronize_stream)(Stream stream);
  int (*wait_event)(Stream stream, Event event, unsigned flags);
  int (*record_event)(Event event, Stream stream);
  int (*allocate)(Address* memory, std::size_t bytes);
  int (*free)(Address memory);
  int (*memory_info)(std::size_t* free, std::size_t* total);
  int (*upload)(Address to, const void* from, std::size_t bytes, Stream stream);
  int (*download)(void* to, Address from, std::size_t bytes, Stream stream);
  int (*copy)(Address to, Address from, std::size_t bytes, Stream stream);
  int (*copy_2d)(const Copy2d* copy, Stream stream);
  int (*set_2d)(Address to, std::size_t pitch, unsigned char value, std::size_t width, std::size_t height,
                Stream stream);
  int (*error_text)(int error, const char** text);

  // Loads the driver. Returns an error if this machine has no driver, or if the driver lacks a function.
  static Result<std::shared_ptr<const CudaDriver>> load();
  // Returns the text of an error number, such as "out of memory".
  const char* text(int error) const;
};

}  // namespace kvant
