#include "attention/cuda/prompt/launch.cuh"

namespace kvant::cuda {

template int prompt_block_rows<128>();
template int prompt_tile_bytes<128>();
template std::size_t prompt_half_numbers<128>();
template int prompt_claims<128>();
template cudaError_t launch_prompt<128>(const PromptArgs&, const PromptLaunch&);

}  // namespace kvant::cuda
