// ggml's repacked weight layouts (interleaved rows), which its matrix products read faster.
#pragma once

struct ggml_backend_buffer_type;
struct ggml_tensor;

namespace kvant {

// The buffer type that holds matrix `weight` [n_in, n_out] in a layout which this machine multiplies faster
// than the plain one, or null when ggml has none. Such tensors cannot be read back, nor serve get_rows.
ggml_backend_buffer_type* repacked_buffer_type(const ggml_tensor* weight);

}  // namespace kvant
