/* kvant.h as it was in version 1.0, without its comments. caller_1_0.c is compiled against this file, which
 * must never change. */
#ifndef KVANT_KVANT_H
#define KVANT_KVANT_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define KVANT_API __attribute__((visibility("default")))
#else
#define KVANT_API
#endif
#define KVANT_VERSION 1000
KVANT_API int kvant_version(void);
typedef enum kvant_status {
  KVANT_OK = 0,
  KVANT_INVALID_ARGUMENT = 1,
  KVANT_UNSUPPORTED = 2,
  KVANT_WORKSPACE_TOO_SMALL = 3,
  KVANT_CUDA_ERROR = 4
} kvant_status;
KVANT_API const char* kvant_status_text(kvant_status status);
KVANT_API const char* kvant_last_error(void);
KVANT_API kvant_status kvant_check_device(void);
typedef enum kvant_side { KVANT_KEY = 0, KVANT_VALUE = 1 } kvant_side;
typedef enum kvant_type { KVANT_BF16 = 0, KVANT_F32 = 1 } kvant_type;
typedef void* kvant_stream;
KVANT_API size_t kvant_page_bytes(const char* format, int head_dim);
typedef struct kvant_pages {
  const int32_t* table;
  int64_t seq_stride, layer_stride, head_stride, side_stride;
  const void* pool;
  int64_t page_stride, layer_offset, head_offset, side_offset;
} kvant_pages;
typedef struct kvant_decode_shape {
  size_t struct_size;
  int32_t n_seqs;
  int32_t n_kv_heads;
  int32_t group;
  int32_t head_dim;
  float softmax_scale;
  const char* key_format;
  const char* value_format;
  int32_t corrected;
  const char* const* head_key_formats;
  const char* const* head_value_formats;
  int32_t sas;
  float skip_threshold;
} kvant_decode_shape;
typedef struct kvant_decode_lengths {
  size_t struct_size;
  const int32_t* sealed_pages;
  const int32_t* tail_tokens;
  const int32_t* protected_tokens;
  int64_t protected_seq_stride, protected_head_stride;
} kvant_decode_lengths;
typedef struct kvant_correction {
  size_t struct_size;
  const float* query_maps;
  const float* key_maps;
  float* states;
  int64_t state_seq_stride, state_head_stride;
  const int32_t* state_of_seq;
  int32_t absolute;
  int32_t reserved;
} kvant_correction;
typedef struct kvant_decode_layer {
  size_t struct_size;
  int32_t layer;
  kvant_pages sealed, tail, protected_pages;
  int32_t sink;
  const uint32_t* masks;
  int64_t mask_seq_stride, mask_head_stride;
  const void* key_codebooks;
  const void* value_codebooks;
  int64_t key_codebook_stride, value_codebook_stride;
  const void* q;
  int64_t q_seq_stride, q_head_stride;
  void* out;
  kvant_type out_type;
  int64_t out_seq_stride, out_head_stride;
  int32_t settled;
  float* lse;
  const kvant_correction* correction;
  int32_t reproducible;
  uint64_t* skip_counts;
  uint32_t* pages_out_of_range;
} kvant_decode_layer;
KVANT_API const char* kvant_decode_kernel(const kvant_decode_shape* shape);
KVANT_API kvant_status kvant_decode_workspace(const kvant_decode_shape* shape, size_t* bytes);
KVANT_API kvant_status kvant_decode_schedule(const kvant_decode_shape* shape,
                                             const kvant_decode_lengths* lengths, void* workspace,
                                             size_t workspace_bytes, kvant_stream stream);
KVANT_API kvant_status kvant_decode_attention(const kvant_decode_shape* shape,
                                              const kvant_decode_lengths* lengths,
                                              const kvant_decode_layer* layer, void* workspace,
                                              size_t workspace_bytes, kvant_stream stream);
typedef struct kvant_new_rows {
  size_t struct_size;
  int32_t n_rows;
  const int32_t* seq;
  const int32_t* tail_token;
  const void* keys;
  int64_t key_row_stride, key_head_stride;
  const void* values;
  int64_t value_row_stride, value_head_stride;
  const float* key_factors;
  const float* value_factors;
  int32_t key_hadamard, value_hadamard;
} kvant_new_rows;
KVANT_API kvant_status kvant_append(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                                    const kvant_new_rows* rows, kvant_stream stream);
KVANT_API int kvant_can_seal(const char* format);
KVANT_API kvant_status kvant_seal(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                                  const int32_t* tail_page, const int32_t* sealed_page, kvant_stream stream);
typedef struct kvant_seal_range {
  size_t struct_size;
  const int32_t* tail_page;
  const int32_t* sealed_page;
  const int32_t* n_pages;
  int32_t max_pages;
  int32_t reserved;
} kvant_seal_range;
KVANT_API kvant_status kvant_seal_pages(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                                        const kvant_seal_range* range, kvant_stream stream);
typedef struct kvant_dequantization {
  size_t struct_size;
  int32_t n_seqs;
  const int32_t* seqs;
  int32_t first_page, n_pages;
  int32_t first_head, n_heads;
  void* keys;
  void* values;
  int64_t seq_stride, token_stride, head_stride;
} kvant_dequantization;
KVANT_API kvant_status kvant_dequantize(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                                        const kvant_decode_layer* layer,
                                        const kvant_dequantization* dequantization, kvant_stream stream);
typedef struct kvant_partial {
  size_t struct_size;
  void* out;
  kvant_type out_type;
  int64_t seq_stride, token_stride, head_stride;
  float* lse;
  int64_t lse_seq_stride, lse_token_stride, lse_head_stride;
} kvant_partial;
KVANT_API kvant_status kvant_merge(int32_t n_seqs, int32_t n_tokens, int32_t n_heads, int32_t head_dim,
                                   const kvant_partial* into, const kvant_partial* other,
                                   kvant_stream stream);
typedef struct kvant_transformation {
  size_t struct_size;
  int32_t n_rows, n_heads, head_dim;
  void* rows;
  kvant_type type;
  int64_t row_stride, head_stride;
  const float* factors;
  const float* factors_after;
  int32_t heads_of_factors;
  int32_t hadamard;
} kvant_transformation;
KVANT_API kvant_status kvant_transform(const kvant_transformation* transformation, kvant_stream stream);
#ifdef __cplusplus
}
#endif
#endif
