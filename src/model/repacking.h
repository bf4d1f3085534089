// Finds ggml's repacked weight layouts (interleaved rows), which its matrix products read faster.
#pragma once

struct ggml_backend_buffer_type;
struct ggml_tensor;

namespace kvant {

// Returns the buffer type whose layout of matrix `weight` [n_in, n_out] this machine multiplies faster than
// the plain one; null: ggml has none. Such tensors cannot be read back, nor used in get_rows.
ggml_backend_buffer_type* repacked_buffer_type(const ggml_tensor* weight);

}  // namespace kvant
