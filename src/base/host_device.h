// KVANT_HOST_DEVICE: of functions that run on a GPU as well where nvcc compiles them.
#pragma once

#ifdef __CUDACC__
#define KVANT_HOST_DEVICE __host__ __device__
#else
#define KVANT_HOST_DEVICE
#endif
