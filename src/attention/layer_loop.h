// The loop of every backend that runs on the CPU: append, attend and seal of one layer, for any mixture of
// formats, recipes' features included. How pages are attended is the backend's (page_attention.h).
#pragma once

#include <memory>

#include "attention/attention.h"
#include "attention/page_attention.h"

namespace kvant {

std::unique_ptr<AttentionBackend> make_layer_loop(std::unique_ptr<PageAttention> pages);

}  // namespace kvant
