// Tests only: how the host's library turns rows into the basis of the cache and appends them to the tail.
#pragma once

#include "kvant/kvant.h"

namespace kvant::testing::host {

kvant_status transform(const kvant_transformation* t, kvant_stream);
kvant_status append(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                    const kvant_new_rows* rows, kvant_stream);
// Rows that come with a call of decode_attention.
kvant_status append_last(const kvant_decode_shape& shape, const kvant_decode_lengths& lengths,
                         const kvant_decode_layer& layer);

}  // namespace kvant::testing::host
