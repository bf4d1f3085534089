// Tests only: how the host's library seals pages and protects tokens.
#pragma once

#include "kvant/kvant.h"

namespace kvant::testing::host {

kvant_status seal_pages(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                        const kvant_seal_range* range, kvant_stream);
kvant_status protect(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                     const kvant_protected_rows* rows, kvant_stream);

}  // namespace kvant::testing::host
