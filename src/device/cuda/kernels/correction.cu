// Launches the kernels of KVLinC's correction (device/cuda/correction), for heads of 64 and 128 channels.
// States of fixed size collect the rounding errors of sealed keys, and queries read the states.
#include <algorithm>

#include "device/cuda/correction/correct_prompt.cuh"
#include "device/cuda/correction/correction_kernel.cuh"
#include "device/cuda/correction/correction_update.cuh"

namespace kvant::cuda {
namespace {

// Launches a kernel whose setup overlaps the end of the previous kernel, as in decode attention.
template <class Args>
cudaError_t launch_overlapping(void (*kernel)(Args), dim3 grid, int threads, const Args& args, const Gpu& gpu,
                               cudaStream_t stream) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = gpu.overlap_attributes();
  return cudaLaunchKernelEx(&config, kernel, args);
}

template <int D>
cudaError_t map_queries(const CorrectionArgs& args, const Gpu& gpu, cudaStream_t stream) {
  const int n_heads = args.n_kv_heads * args.group;
  const int blocks = std::clamp(gpu.multiprocessors / n_heads, 1, (args.n_seqs + kMapSeqs - 1) / kMapSeqs);
  return launch_overlapping(map_queries_kernel<D>, dim3(n_heads, blocks), kMapThreads, args, gpu, stream);
}

template <int D>
cudaError_t attend(const CorrectionArgs& args, const Gpu& gpu, cudaStream_t stream) {
  if (const cudaError_t error = map_queries<D>(args, gpu, stream); error != cudaSuccess) return error;
  return launch_overlapping(read_states_kernel<D>, dim3(args.n_kv_heads * (D / kStateChannels), args.n_seqs),
                            kStateThreads, args, gpu, stream);
}

// Returns the arguments for `n` rows from row `first` on.
PromptCorrection some_rows(PromptCorrection c, int first, int n) {
  CorrectionArgs& queries = c.queries;
  queries.n_seqs = n;
  queries.q = static_cast<const char*>(queries.q) + first * queries.q_seq_stride * bytes_of(queries.q_type);
  if (queries.states.state_of_seq != nullptr) {
    queries.states.state_of_seq += first;
  } else {
    queries.states.states += first * queries.states.seq_stride;
  }
  c.sums += std::int64_t{first} * queries.n_kv_heads * queries.group;
  c.out = static_cast<char*>(c.out) + first * c.out_token_stride * bytes_of(c.out_type);
  if (c.lse != nullptr) c.lse += first * c.lse_token_stride;
  return c;
}

template <int D>
cudaError_t correct(const PromptCorrection& correction, const Gpu& gpu, cudaStream_t stream) {
  const int n_rows = correction.queries.n_seqs;
  const int at_once =
      PromptCorrection::rows_at_once(correction.queries.n_kv_heads * correction.queries.group);
  for (int first = 0; first < n_rows; first += at_once) {
    const PromptCorrection rows = some_rows(correction, first, std::min(at_once, n_rows - first));
    cudaError_t error = map_queries<D>(rows.queries, gpu, stream);
    if (error != cudaSuccess) return error;
    const dim3 grid(rows.queries.n_kv_heads * (D / kStateChannels),
                    (rows.queries.n_seqs + kCorrectedRows - 1) / kCorrectedRows);
    error = launch_overlapping(correct_rows_kernel<D>, grid, kStateThreads, rows, gpu, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <int D>
cudaError_t update(const StateUpdateArgs& args, const Gpu& gpu, cudaStream_t stream) {
  const int bytes = static_cast<int>(gpu.has.large_shared_memory ? sizeof(StateUpdateShared<D, kPageTokens>)
                                                                 : sizeof(StateUpdateShared<D, kFewTokens>));
  const cudaError_t error =
      cudaFuncSetAttribute(update_states_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int n_seqs = args.n_seqs, n_heads = args.heads.n;
  const bool is_by_page = args.page_stride != 0;
  update_states_kernel<D>
      <<<dim3(n_seqs, 2 * n_heads, is_by_page ? args.due.max_pages : 1), kUpdateThreads, bytes, stream>>>(
          args);
  constexpr int kPieces = (kFeatures * (D + 1) / 4 + kUpdateThreads - 1) / kUpdateThreads;
  if (is_by_page)
    add_up_states_kernel<D><<<dim3(kPieces, n_seqs, n_heads), kUpdateThreads, 0, stream>>>(args);
  return cudaPeekAtLastError();
}

}  // namespace

cudaError_t attend_to_states(const CorrectionArgs& args, int head_dim, const Gpu& gpu, cudaStream_t stream) {
  return head_dim == 64 ? attend<64>(args, gpu, stream) : attend<128>(args, gpu, stream);
}

cudaError_t correct_prompt(const PromptCorrection& correction, int head_dim, const Gpu& gpu,
                           cudaStream_t stream) {
  return head_dim == 64 ? correct<64>(correction, gpu, stream) : correct<128>(correction, gpu, stream);
}

cudaError_t add_sealed_to_states(const StateUpdateArgs& args, int head_dim, const Gpu& gpu,
                                 cudaStream_t stream) {
  return head_dim == 64 ? update<64>(args, gpu, stream) : update<128>(args, gpu, stream);
}

}  // namespace kvant::cuda
