// Tests only: how the host's library attends, and what else reads pages.
#pragma once

#include <cstddef>

#include "kvant/kvant.h"

namespace kvant::testing::host {

kvant_status decode_attention(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                              const kvant_decode_layer* layer, void*, std::size_t, kvant_stream);
// Each query as a sequence of the decode kernel, whose tail begins behind the pages that it sees.
kvant_status prompt_attention(const kvant_prompt_shape* shape, const kvant_prompt* prompt, void*, std::size_t,
                              kvant_stream);
// Of one sequence: all that the engine asks for.
kvant_status dequantize(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                        const kvant_decode_layer* layer, const kvant_dequantization* to, kvant_stream);
kvant_status weigh_tokens(const kvant_decode_shape* shape, const kvant_token_weights* w, kvant_stream);

}  // namespace kvant::testing::host
