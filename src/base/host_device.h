// KVANT_HOST_DEVICE marks functions that also run on a GPU when nvcc compiles them.
#pragma once

#ifdef __CUDACC__
#define KVANT_HOST_DEVICE __host__ __device__
#else
#define KVANT_HOST_DEVICE
#endif
