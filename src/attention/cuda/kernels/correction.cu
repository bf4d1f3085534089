#include <algorithm>

#include "attention/cuda/correction/correction_kernel.cuh"
#include "attention/cuda/correction/correction_update.cuh"

namespace kvant::cuda {
namespace {

// As the decode kernels are launched: the end of one kernel overlaps with the set-up of the next.
cudaError_t launch_overlapping(const void* kernel, dim3 grid, int threads, CorrectionArgs args,
                               const Gpu& gpu, cudaStream_t stream) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = gpu.overlap_attributes();
  void* arguments[] = {&args};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

template <int D>
cudaError_t attend(const CorrectionArgs& args, const Gpu& gpu, cudaStream_t stream) {
  const int n_heads = args.n_kv_heads * args.group;
  const int blocks = std::clamp(gpu.multiprocessors / n_heads, 1, (args.n_seqs + kMapSeqs - 1) / kMapSeqs);
  const cudaError_t error = launch_overlapping(reinterpret_cast<const void*>(&map_queries_kernel<D>),
                                               dim3(n_heads, blocks), kMapThreads, args, gpu, stream);
  if (error != cudaSuccess) return error;
  return launch_overlapping(reinterpret_cast<const void*>(&read_states_kernel<D>),
                            dim3(args.n_kv_heads * (D / kStateChannels), args.n_seqs), kStateThreads, args,
                            gpu, stream);
}

template <int D>
cudaError_t update(const StateUpdateArgs& args, const Gpu& gpu, cudaStream_t stream) {
  const int bytes = static_cast<int>(gpu.is_hopper ? sizeof(StateUpdateShared<D, kPageTokens>)
                                                   : sizeof(StateUpdateShared<D, kFewTokens>));
  const cudaError_t error =
      cudaFuncSetAttribute(update_states_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  update_states_kernel<D><<<dim3(args.seal.n_seqs, args.seal.heads.n), kUpdateThreads, bytes, stream>>>(args);
  return cudaPeekAtLastError();
}

}  // namespace

cudaError_t attend_to_states(const CorrectionArgs& args, int head_dim, const Gpu& gpu, cudaStream_t stream) {
  return head_dim == 64 ? attend<64>(args, gpu, stream) : attend<128>(args, gpu, stream);
}

cudaError_t add_sealed_to_states(const SealArgs& args, int head_dim, const Gpu& gpu, const float* key_maps,
                                 const CorrectionStates& states, cudaStream_t stream) {
  const StateUpdateArgs update_args{args, key_maps, states};
  return head_dim == 64 ? update<64>(update_args, gpu, stream) : update<128>(update_args, gpu, stream);
}

}  // namespace kvant::cuda
