// Finds ggml's repacked weight layouts, in which rows are interleaved and ggml's products are faster. Whether
// a layout exists depends on the type of the weights and on the processor.
#pragma once

struct ggml_backend_buffer_type;
struct ggml_tensor;

namespace kvant {

// Returns a buffer type for the matrix `weight` [n_in, n_out], whose layout this machine multiplies faster
// than the plain layout. Returns null if ggml has none. A tensor in that buffer cannot be read back or used
// in get_rows.
ggml_backend_buffer_type* repacked_buffer_type(const ggml_tensor* weight);

}  // namespace kvant
