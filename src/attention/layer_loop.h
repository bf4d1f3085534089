// LayerLoop is the attention backend of pages in host memory. The loop appends, attends and seals for one
// layer, with any mixture of formats and with the features of all recipes.
#pragma once

#include <memory>

#include "attention/attention.h"
#include "device/cpu/kernels/byte_kernels.h"

namespace kvant {

// Makes the loop with the kernels of an instruction set. Null kernels stand for the reference
// (page_attention.h).
std::unique_ptr<AttentionBackend> make_layer_loop(const cpu::ByteKernels* kernels);

}  // namespace kvant
