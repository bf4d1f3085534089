#include <algorithm>

#include "attention/cuda/correction_kernel.cuh"
#include "attention/cuda/correction_update.cuh"

namespace kvant::cuda {
namespace {

// As the decode kernels are launched: the end of one kernel overlaps with the set-up of the next.
cudaError_t launch_overlapping(const void* kernel, dim3 grid, int threads, CorrectionArgs args,
                               cudaStream_t stream) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  void* arguments[] = {&args};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

template <int D>
cudaError_t attend(const CorrectionArgs& args, cudaStream_t stream) {
  constexpr int kMapCtas = 132;  // that an H200 runs at once
  const int n_heads = args.n_kv_heads * args.group;
  const int blocks = std::clamp(kMapCtas / n_heads, 1, (args.n_seqs + kMapSeqs - 1) / kMapSeqs);
  const cudaError_t error = launch_overlapping(reinterpret_cast<const void*>(&map_queries_kernel<D>),
                                               dim3(n_heads, blocks), kMapThreads, args, stream);
  if (error != cudaSuccess) return error;
  return launch_overlapping(reinterpret_cast<const void*>(&read_states_kernel<D>),
                            dim3(args.n_kv_heads * (D / kStateChannels), args.n_seqs), kStateThreads, args,
                            stream);
}

template <int D>
cudaError_t update(const StateUpdateArgs& args, cudaStream_t stream) {
  const int bytes = sizeof(StateUpdateShared<D>);
  const cudaError_t error =
      cudaFuncSetAttribute(update_states_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  update_states_kernel<D><<<dim3(args.seal.n_seqs, args.seal.heads.n), kUpdateThreads, bytes, stream>>>(args);
  return cudaPeekAtLastError();
}

}  // namespace

cudaError_t attend_to_states(const CorrectionArgs& args, int head_dim, cudaStream_t stream) {
  return head_dim == 64 ? attend<64>(args, stream) : attend<128>(args, stream);
}

cudaError_t add_sealed_to_states(const SealArgs& args, int head_dim, const float* key_maps,
                                 const CorrectionStates& states, cudaStream_t stream) {
  const StateUpdateArgs update_args{args, key_maps, states};
  return head_dim == 64 ? update<64>(update_args, stream) : update<128>(update_args, stream);
}

}  // namespace kvant::cuda
