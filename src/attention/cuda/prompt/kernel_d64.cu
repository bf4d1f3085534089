#include "attention/cuda/prompt/launch.cuh"

namespace kvant::cuda {

template int prompt_block_rows<64>();
template int prompt_tile_bytes<64>();
template std::size_t prompt_half_numbers<64>();
template int prompt_claims<64>();
template cudaError_t launch_prompt<64>(const PromptArgs&, const PromptLaunch&);

}  // namespace kvant::cuda
