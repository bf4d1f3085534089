/* The interface of a device that keeps low-bit pages of a KV cache and attends to them. Two libraries have
 * it: libkvant_cuda (NVIDIA, compute capability 8.0 and up) and libkvant_cpu.
 *
 * Memory. The library allocates no device memory, does not wait for the device and keeps no state: all memory
 * is the caller's. On a GPU all work goes to the caller's stream, and every call can be captured into a CUDA
 * graph. Lengths and page tables are read on the device, so a captured step can be replayed as sequences
 * grow. On a CPU device memory is any memory, the stream is null, and a call has ended when it returns. It
 * uses threads of its own, and several threads may call at a time.
 *
 * Pages. A page is 128 consecutive tokens of one KV head, one side (keys or values). Sealed pages are
 * low-bit. Unquantized tokens are BF16: sink and other protected tokens lie in protected pages, and tokens
 * that are not sealed yet in "tail" pages. On a GPU pages have the byte order of docs/dev/gpu.md. On a CPU a
 * sealed page has the bytes of its format, with the codes in the order of format/code_order.h if there is one
 * for its side (token_lanes for keys, token_octets for values), and an unquantized page is [128][head_dim].
 *
 * Units. Strides and offsets of rows count numbers of the row's type, strides of page tables count entries,
 * and strides and offsets of pools count bytes. Dimensions stand in brackets, the outermost first.
 *
 * Versions. Structures begin with their size, which the caller sets to sizeof. Later versions only append
 * members, and take members that an older caller does not have for zero. (kvant_pages, a part of other
 * structures, stays as it is.) A program compiled with one version runs with every later one of the same
 * major number (kvant_check_version).
 *
 * Errors. A call that is refused launches nothing and changes nothing. KVANT_INVALID_ARGUMENT means that an
 * argument breaks a rule of this header, KVANT_UNSUPPORTED that the device lacks something. Every call that
 * launches may also return KVANT_DEVICE_ERROR on a GPU, and KVANT_OUT_OF_MEMORY on a CPU. kvant_last_error
 * then says which argument is wrong and why.
 */
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

/* The version of this header: 1000 * major + minor. */
#define KVANT_VERSION 1000

/* Returns the KVANT_VERSION that the library was built with. */
KVANT_API int kvant_version(void);

typedef enum kvant_status {
  KVANT_OK = 0,
  KVANT_INVALID_ARGUMENT = 1,    /* A size, stride or pointer is out of range. */
  KVANT_UNSUPPORTED = 2,         /* The device has no kernel for these formats or this head size. */
  KVANT_WORKSPACE_TOO_SMALL = 3, /* The workspace is smaller than the function for its size says. */
  KVANT_DEVICE_ERROR = 4,        /* A CUDA call failed. */
  KVANT_OUT_OF_MEMORY = 5        /* Memory was short on a CPU. The call may have been done in part. */
} kvant_status;

/* Returns one sentence in English. It is never null. */
KVANT_API const char* kvant_status_text(kvant_status status);

/* Returns why this thread's last refused call was refused: the argument and what it must be, or CUDA's own
 * text. Calls that succeed leave it. It is never null, and never freed. */
KVANT_API const char* kvant_last_error(void);

/* Returns KVANT_OK if the library serves a program whose header has this KVANT_VERSION: the major numbers are
 * equal, and the library's minor number is not smaller. Otherwise it returns KVANT_UNSUPPORTED, and the
 * program may call no other function but kvant_last_error, which says why. */
KVANT_API kvant_status kvant_check_version(int version);

/* Returns KVANT_OK if the kernels run on the current device. KVANT_UNSUPPORTED says that the device's compute
 * capability is less than 8.0, or that the library has no code for the device. KVANT_DEVICE_ERROR says that
 * there is no device, or that the driver is too old. Every call that launches checks the device, too. On a
 * CPU the result is always KVANT_OK. */
KVANT_API kvant_status kvant_check_device(void);

typedef enum kvant_side { KVANT_KEY = 0, KVANT_VALUE = 1 } kvant_side;
/* The type of the numbers in rows of queries, keys, values and outputs. */
typedef enum kvant_type { KVANT_BF16 = 0, KVANT_F32 = 1, KVANT_F16 = 2 } kvant_type;
typedef void* kvant_stream; /* cudaStream_t of the current device; null for the default stream */

/* Returns the bytes of a page of one KV head and side in device memory, a multiple of 16. It returns 0 if the
 * library reads no pages of `format` ("ch4g128", "bf16", ...) with heads of head_dim channels. */
KVANT_API size_t kvant_page_bytes(const char* format, int head_dim);

/* Says where pages lie. For a page of a sequence, layer, KV head and side:
 *
 *   id = table[seq * seq_stride + layer * layer_stride + head * head_stride + side * side_stride + page]
 *   address = pool + id * page_stride + layer * layer_offset + head * head_offset + side * side_offset
 *
 * Strides of the table count entries; page_stride and offsets count bytes. Each may be 0. Addresses must be
 * multiples of 16. */
typedef struct kvant_pages {
  const int32_t* table;
  int64_t seq_stride, layer_stride, head_stride, side_stride;
  const void* pool;
  int64_t page_stride, layer_offset, head_offset, side_offset;
} kvant_pages;

/* Describes what does not change from step to step. On a CPU, n_kv_heads and group have no upper limit, and
 * head_dim is any multiple of 16 from 16 to 512. */
typedef struct kvant_decode_shape {
  size_t struct_size;
  int32_t n_seqs;
  int32_t n_kv_heads; /* at most 64 on a GPU */
  int32_t group;      /* query heads of a KV head: 1 to 16 on a GPU, where more than 8 read all pages twice */
  /* 64, 128, 256, or 512 with one query of a sequence, and neither a correction nor
   * kvant_weigh_tokens and kvant_protect. Heads of another size, such as 80 or 96, are served as ones of the
   * next larger of these whose last channels are zeros, which pages have and rows need not have: q_channels,
   * out_channels, key_channels, value_channels, row_channels, source_channels, channels (multiples of 16 at
   * heads of 512). */
  int32_t head_dim;
  float softmax_scale;    /* scores are softmax_scale * q.k */
  const char* key_format; /* of sealed pages; with "bf16", all tokens are in the tail */
  const char* value_format;
  /* If not 0, layers may have a correction, and the workspace has room for it. Heads must be 64 or 128, and
   * groups at most 8. */
  int32_t corrected;
  /* Formats that differ by KV head: n_kv_heads names with at most 8 different pairs. Null means key_format
   * and value_format for all heads. Pages of all heads share a pool. page_stride may be a unit that divides
   * pages of every size, or a layer's sealed_offsets say where the pages of each head lie. */
  const char* const* head_key_formats;
  const char* const* head_value_formats;
  /* If not 0, the exponential is SAS, TurboAttention's approximation by a cubic polynomial. SAS is 0 if a
   * score is more than 6 below the largest score so far. That is the largest up to the end of the score's
   * sealed page, or of its 16 unquantized tokens. */
  int32_t sas;
  /* Sparse V. If greater than 0, the values of a sealed page may stay unread if no token of the page has a
   * weight above this for any query head, relative to the largest weight so far. Kernels whose name ends in
   * "skipping values" leave such values unread; other kernels read all. */
  float skip_threshold;
  /* If c > 0, scores become c * tanh(score / c), with few kernels but the generic one. 0 leaves scores
   * unchanged. A correction requires 0. */
  float score_softcap;
  /* Queries of a sequence, at most: 1 to 8, 0: 1. They are its last tokens (drafts, the end of a
   * prompt): the last one sees all tokens, each before it one less at the end of the tail. A sequence's pages
   * are read once for as many of them as have up to 32 columns, with the query heads of a KV head (8 of a
   * group of 4). Not with a correction. */
  int32_t max_queries;
  /* Names the kernels that attend on a CPU, and is null on a GPU. On a CPU, null selects the best kernels
   * that the processor runs. "avx512", "avxvnni", "avx2" and "portable" select an instruction set.
   * "reference" selects attention in double precision, with which kernels are compared. */
  const char* kernels;
} kvant_decode_shape;

/* Says what the sequences of a step hold, equally for all layers. Arrays are in device memory. */
typedef struct kvant_decode_lengths {
  size_t struct_size;
  const int32_t* sealed_pages; /* [n_seqs], or null: none */
  const int32_t* tail_tokens;  /* [n_seqs], or null: none */
  /* Sequence i and KV head h have protected_tokens[i * protected_seq_stride + h * protected_head_stride].
   * Null means that there are none. */
  const int32_t* protected_tokens;
  int64_t protected_seq_stride, protected_head_stride;
  /* For sliding windows: [n_seqs], 0 to 127, or null. This many tokens at the beginning of a sequence's first
   * page are masked out; the page is sealed, or in the tail if no page is sealed. Tables begin with the first
   * page that the window reaches, and counts begin there too, so pages before the window are not read. Layers
   * with different windows need lengths, tables and a schedule of their own. Only kvant_decode_attention
   * reads this array. */
  const int32_t* first_tokens;
  /* About how many tail tokens the longest sequence has; 0 means unknown. With up to 2048 of them, and
   * neither sealed nor protected tokens (null), a smaller kernel without a schedule serves a few sequences.
   * This number decides which kernel runs, and not what the kernel computes. For each sequence, tables of the
   * tail have entries for the pages of this many tokens. */
  int32_t max_tail_tokens;
  /* About how many sealed pages the longest sequence has; 0 means unknown. With up to 32 of them, a smaller
   * kernel serves a few sequences with sealed pages, too, on a Hopper GPU. Tables of sealed pages have this
   * many entries for each sequence. */
  int32_t max_sealed_pages;
  /* Rows of q, out and lse by sequence: [n_seqs + 1], not decreasing, of which sequence i has
   * query_begins[i] to query_begins[i + 1] - 1, up to max_queries; or null: sequence i has max_queries rows,
   * from i * max_queries on. All of a sequence's queries see its sealed pages: where they lie on both sides
   * of a page's end, they are two sequences of the same pages. With several queries, max_tail_tokens is not
   * read, and first_tokens are those of the last query (up to 126 + max_queries): each before it sees a token
   * more there, and tables begin with the page that the first query's window reaches. */
  const int32_t* query_begins;
} kvant_decode_lengths;

/* Describes KVLinC's linear correction of a layer, from feature maps phi(x) = [softmax(x W1), softmax(x W2)]
 * of 256 features. The output is out = (sum e^(s - m) v + c phi(q) S) / (sum e^(s - m) + c phi(q) z), where s
 * are the scores and m is the largest score. Arrays are F32, from 16-byte aligned addresses. */
typedef struct kvant_correction {
  size_t struct_size;
  const float* query_maps; /* W1, then W2, of each query head: [n_kv_heads * group][2][head_dim][128] */
  /* W1, then W2, of each KV head, for the rounding errors of its keys. kvant_seal then adds the pages that it
   * seals to the states. If null, the caller updates the states. */
  const float* key_maps;
  /* S [256][head_dim], then z [256]: sums of phi_k(k - sealed k)^T (sealed v) and of phi_k over the sealed
   * tokens that are not protected. A new sequence has zeros. The state of sequence i and a KV head lies at
   * states + (state_of_seq ? state_of_seq[i] : i) * state_seq_stride + head * state_head_stride. Strides
   * count numbers and are multiples of 4. */
  float* states;
  int64_t state_seq_stride, state_head_stride;
  const int32_t* state_of_seq; /* [n_seqs], in device memory, or null */
  /* If 0, c = 1. Otherwise c = e^-m, and a negative m counts as 0 throughout. */
  int32_t absolute;
  int32_t reserved; /* 0 */
  /* For kvant_seal_pages. If 0, the pages of a sequence are added to its sums. Otherwise the stride is a
   * multiple of 4, and the earlier sums stay. The sums after the nth page of the sequence, counted from 1,
   * are written n * state_page_stride numbers after them. */
  int64_t state_page_stride;
} kvant_correction;

/* Describes one layer of a step: its pages, its queries and where outputs go. */
typedef struct kvant_decode_layer {
  size_t struct_size;
  int32_t layer;
  kvant_pages sealed, tail, protected_pages;
  /* The first `sink` tokens of a sequence, 0 to 128, are masked out of its first sealed page (they are
   * protected tokens). */
  int32_t sink;
  /* Protected tokens of sealed pages are masked out. A page has 128 bits, and token t is bit t % 32 of word t
   * / 32. Null means that there are none. */
  const uint32_t*
      masks; /* 16-byte aligned; page p: masks + 4 * (seq * mask_seq_stride + head * mask_head_stride + p) */
  int64_t mask_seq_stride, mask_head_stride;
  /* Codebooks of vector formats: half-precision centroids for [n_kv_heads], with this many numbers between
   * heads. A head of a pq format has the centroids of all sub-spaces in turn. */
  const void* key_codebooks;
  const void* value_codebooks;
  int64_t key_codebook_stride, value_codebook_stride;
  /* Of q_type: [n_seqs][n_kv_heads * group][head_dim], rows q_seq_stride, q_head_stride apart: multiples of
   * 8, from a 16-byte aligned address. With several queries of a sequence: [rows][..][..], see query_begins.
   */
  const void* q;
  int64_t q_seq_stride, q_head_stride;
  void* out; /* of out_type, likewise */
  kvant_type out_type;
  int64_t out_seq_stride, out_head_stride;
  /* If not 0, sealed pages, page tables, lengths and the schedule were complete before the preceding kernel
   * of the stream began. The preceding kernel may still write q and the tail. Sealed pages are then read
   * while the preceding kernel ends. */
  int32_t settled;
  /* The log-sum-exp (LSE) of the scores, ln sum exp(softmax_scale * q.k): F32 [n_seqs][n_kv_heads * group],
   * or null. The LSE includes a correction. kvant_merge needs the LSE to merge attention to other tokens with
   * the output. */
  float* lse;
  const kvant_correction* correction; /* or null */
  /* If not 0, equal inputs give equal bits. Otherwise pages go to whichever warp is free, which is a few
   * percent faster, and sums may differ in their last bits from run to run. */
  int32_t reproducible;
  /* Two numbers in device memory, or null. Kernels that skip values add the number of pages they have seen to
   * the first, and the number of pages whose values stayed unread to the second. */
  uint64_t* skip_counts;
  /* A number in device memory, or null: kvant_seal adds how many pages (of a head and side) it has sealed of
   * values beyond +-65504, half precision's range, to which scales, zeros and gains are clipped and within
   * which some kernels compute: attention to such a page may be wrong or infinite. Not of fp8, prog and tcq,
   * whose scales have the range of F32 and which have no such limit. */
  uint32_t* pages_out_of_range;
  /* Attention sinks: logits in device memory, F32 [n_kv_heads * group], or null. A logit joins the
   * denominator of a query head's softmax and nothing else; -infinity has no effect. `lse` includes the
   * logits. */
  const float* sink_logits;
  /* F32 queries are read with 11 significant bits, and BF16 queries with 8. */
  kvant_type q_type;
  /* Outputs go back from the basis of rotated values before they are stored, as by
   * kvant_transform: not 0: the orthonormal Walsh-Hadamard matrix; then channels times these factors,
   * [n_kv_heads][head_dim], or null. */
  int32_t out_hadamard;
  const float* out_factors;
  /* Says what errors of keys cost, for kvant_seal and trellis formats (tcq...) of keys. Null means their
   * squares. The array is F32 [n_kv_heads][head_dim][17] in device memory. The metric of a head is e^T (1 + V
   * V^T) e with eight directions V [head_dim][8], in the basis of stored keys. Channel i has the weight w[i],
   * then the feedback g[i][8], then V[i]. The metric is then the sum of w[i] (e[i] + g[i].s)^2 with s = sum
   * over j < i of V[j] e[j]. The numbers follow from the last channel to the first, beginning with K = 1 (8 x
   * 8): w[i] = 1 + V[i]^T K V[i], g[i] = K V[i] / w[i], and then K becomes K - w[i] g[i] g[i]^T. A head whose
   * first weight is 0 has no metric. */
  const float* key_metrics;
  /* Bytes that are added to the address of a sealed page, by KV head and side: multiples of 16,
   * from 0 to below 64 GiB, [n_kv_heads][2] in host memory, read before a call returns; or null: none. With a
   * head_offset and a side_offset of 0 in `sealed` they alone say where in an entry the pages of heads and
   * sides lie: those of heads whose formats differ side by side, each in as many bytes as it has. */
  const int64_t* sealed_offsets;
  /* For kvant_decode_attention: rows that are appended first, as kvant_append does, or null. Row i
   * is the last token of sequence i's tail, as tail_tokens counts them (0: its keys and values are
   * left out, and its queries are not): n_rows is n_seqs, and seq and tail_token are not read. No sequence
   * sees the row of another. Queries, if there are any, are q, of its type and strides; what is left in their
   * place is not defined. With several queries of a sequence its rows are those of its queries, and n_rows is
   * theirs, or with query_begins at least the last of these. */
  const struct kvant_new_rows* new_rows;
  /* Channels of the rows of q and of out, multiples of 8 up to head_dim; 0 means head_dim. Missing
   * channels of q are zeros, and missing channels of out are not stored. With a correction, q must have
   * all channels. */
  int32_t q_channels, out_channels;
} kvant_decode_layer;

/* Returns the kernel that serves a shape, such as "cuda/sm90/ch4g128+tok4g128". A pair of formats without a
 * kernel of its own at this head size, or without one that supports `sas`, gets the generic kernel, such as
 * "cuda/sm90/generic:fp8+lm3". Null means that no kernel serves the shape, and kvant_last_error says why. If
 * formats differ by head, the result is the kernel of head 0, or null if any head has none. "sm80" instead of
 * "sm90" means that the current device is no Hopper GPU and runs kernels for compute capability 8.0 and up.
 * Without a device, the result is that of an H100. */
KVANT_API const char* kvant_decode_kernel(const kvant_decode_shape* shape);

/* The features that a model or a recipe may ask of a device besides the formats of its pages. Each feature is
 * one bit of a set. */
typedef enum kvant_feature {
  KVANT_SEALING = 1,           /* kvant_seal makes pages of the shape's formats */
  KVANT_SEALED_ROWS = 2,       /* kvant_seal_pages makes pages of rows that are not in the tail */
  KVANT_PROTECTION = 4,        /* kvant_weigh_tokens and kvant_protect */
  KVANT_CORRECTION = 8,        /* kvant_correction, and kvant_seal adds pages to its states */
  KVANT_SLIDING_WINDOW = 16,   /* kvant_decode_lengths.first_tokens */
  KVANT_SINK_LOGITS = 32,      /* kvant_decode_layer.sink_logits */
  KVANT_EVICTION = 64,         /* tokens are dropped from sealed pages, and kept nowhere */
  KVANT_INTEGER_PROMPTS = 128, /* kvant_prompt_attention without half_products */
  KVANT_HALF_PROMPTS = 256     /* kvant_prompt_attention with half_products */
} kvant_feature;

/* Says what a model asks of a device, for the layers of one kind. */
typedef struct kvant_plan {
  size_t struct_size;
  const kvant_decode_shape* shape; /* heads, formats, SAS, caps, queries, kernels */
  const char* tail_format;         /* of unquantized tokens; null means "bf16" */
  uint32_t features;               /* kvant_feature, added up */
  uint32_t reserved;               /* 0 */
} kvant_plan;

/* Says how much a device supports at most. */
typedef struct kvant_limits {
  size_t struct_size;
  int32_t max_kv_heads, max_group, max_queries; /* as kvant_decode_shape has them */
  int32_t max_format_pairs;                     /* different pairs among the KV heads of a layer */
  uint32_t features;                            /* features that the plan's shape can have, each by itself */
  uint32_t reserved;                            /* 0 */
} kvant_limits;

/* Returns KVANT_OK if the device serves a plan. KVANT_UNSUPPORTED says that it does not, and kvant_last_error
 * says what the device lacks. KVANT_INVALID_ARGUMENT says that a structure is missing or broken. `limits` may
 * be null; otherwise the caller sets its struct_size, and the call fills in `limits` unless a structure is
 * broken. Without a GPU, libkvant_cuda describes an H100. */
KVANT_API kvant_status kvant_supports(const kvant_plan* plan, kvant_limits* limits);

/* Writes how many bytes of workspace (256-byte aligned) a shape needs on the current device. The schedule is
 * a part of the workspace. A CPU needs a few bytes, which it does not use. */
KVANT_API kvant_status kvant_decode_workspace(const kvant_decode_shape* shape, size_t* bytes);

/* Divides a step's work over the GPU. The caller calls it once a step, before the layers, and must not change
 * lengths until the layers have run. On a CPU the call does nothing. Shapes that differ only in their formats
 * may share a schedule. The workspace must then be large enough for each shape, and workspace_bytes is its
 * whole size. */
KVANT_API kvant_status kvant_decode_schedule(const kvant_decode_shape* shape,
                                             const kvant_decode_lengths* lengths, void* workspace,
                                             size_t workspace_bytes, kvant_stream stream);

/* Computes out = softmax(softmax_scale * q K^T) V of one layer, for one query token of each sequence or for
 * several (max_queries). The workspace holds the step's schedule. Rows of sequences without any token do not
 * change. Among several queries, those that see no token get zeros and an lse of -infinity. */
KVANT_API kvant_status kvant_decode_attention(const kvant_decode_shape* shape,
                                              const kvant_decode_lengths* lengths,
                                              const kvant_decode_layer* layer, void* workspace,
                                              size_t workspace_bytes, kvant_stream stream);

/* Describes rows of new keys and values. Each row goes to a token of its sequence's tail. */
typedef struct kvant_new_rows {
  size_t struct_size;
  int32_t n_rows;
  const int32_t* seq;        /* [n_rows] */
  const int32_t* tail_token; /* [n_rows]; negative: the row is left out */
  const void* keys;          /* [n_rows][n_kv_heads][head_dim], rows and heads these numbers apart */
  int64_t key_row_stride, key_head_stride;
  const void* values;
  int64_t value_row_stride, value_head_stride;
  /* A row is transformed before it is stored. Channels are multiplied by factors unless null, and then
   * rotated by the orthonormal Walsh-Hadamard matrix if `hadamard` is not 0. Queries and outputs must be
   * transformed to match. */
  const float* key_factors; /* [n_kv_heads][head_dim] */
  const float* value_factors;
  int32_t key_hadamard, value_hadamard;
  /* The type of keys, values and queries. */
  kvant_type type;
  int32_t rows_reserved; /* 0 */
  /* The rows' queries, [n_rows][n_kv_heads * group][head_dim], which are transformed in place to
   * match keys: channels times query_factors, [n_kv_heads][head_dim] or null, then rotated if key_hadamard.
   * Or null. */
  void* queries;
  int64_t query_row_stride, query_head_stride;
  const float* query_factors;
  /* Channels of the rows of keys and of values, multiples of 8 up to head_dim; 0 means head_dim. Missing
   * channels are zeros before rows are transformed. Queries have as many channels as keys. Queries of fewer
   * than head_dim channels cannot be rotated in place; kvant_transform writes them to wider rows. */
  int32_t key_channels, value_channels;
} kvant_new_rows;

/* Writes rows into the tail pages of `layer`. The call uses only the members `layer` and `tail`. A row is
 * scaled, rotated, and rounded to BF16. */
KVANT_API kvant_status kvant_append(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                                    const kvant_new_rows* rows, kvant_stream stream);

/* Returns 1 if kvant_seal can encode a format, otherwise 0. */
KVANT_API int kvant_can_seal(const char* format);

/* Returns 1 if kvant_seal_pages can make pages of a format of rows that are not in the tail
 * (kvant_seal_range.rows), otherwise 0. A GPU reads rows of trellis formats (tcq...) more than once, and
 * takes them from the tail alone. */
KVANT_API int kvant_can_seal_rows(const char* format);

/* Encodes full tail pages into sealed pages, both sides of all KV heads. Page tail_page[seq] of the tail
 * becomes page sealed_page[seq]. A negative tail_page[seq] means that nothing is due, so the call may be
 * launched every step. Tables must already name the sealed pages, and the caller advances lengths and the
 * tail's table. Sink and protected tokens (`sink`, `masks`) widen no range. With a correction that has key
 * maps, keys must be channel-wise (ch...) and values token-wise (tok...). */
KVANT_API kvant_status kvant_seal(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                                  const int32_t* tail_page, const int32_t* sealed_page, kvant_stream stream);

/* Says what errors of keys cost, for trellis formats (tcq...) of keys. The queries that read a page must be
 * known relative to the page. The cost is e^T (1 + V V^T) e for errors e of stored keys, with V = B^T R(m) W.
 * R(m) turns channels as RoPE does for m tokens, where m is the middle of the page: 128 p + 64 for page p of
 * a sequence. Arrays are in device memory. */
typedef struct kvant_page_metrics {
  size_t struct_size;
  /* W, F32 [n_kv_heads][head_dim][8], in the channels of keys before anything is done to them but RoPE. A
   * head whose first number is not a number (NaN) has no metric. */
  const float* directions;
  /* F32 [head_dim][2]. Of each channel the one that it turns with (itself: it stands still), and how far, in
   * whole turns a token, from -1/2 to 1/2: for the pair (a, b) that turns by w, a becomes a cos w - b sin w,
   * and b, whose number has the other sign, b cos w + a sin w. */
  const float* turns;
  /* B, F32 [head_dim][head_dim], of KV heads so many numbers apart (0: all have the same): row i is what
   * becomes of the ith unit vector as a query, by what is done to queries to match the keys. Or null:
   * nothing. */
  const float* basis;
  int64_t basis_head_stride;
  /* The numbers between the directions, or turns, of neighbouring layers, in a range with several layers. */
  int64_t direction_layer_stride, turn_layer_stride;
  /* [n_seqs]: the index in its sequence of the first page that is sealed, for tables that do not begin with
   * page 0. Null means the index that sealed_page says. */
  const int32_t* first_pages;
} kvant_page_metrics;

/* Describes consecutive pages that are sealed together, such as the pages of a prompt. Arrays are in device
 * memory. */
typedef struct kvant_seal_range {
  size_t struct_size;
  const int32_t* tail_page;   /* [n_seqs]: the first page of the tail; negative for none */
  const int32_t* sealed_page; /* [n_seqs]: the place of the first page; the others follow */
  const int32_t* n_pages;     /* [n_seqs], or null for max_pages each */
  int32_t max_pages;          /* of any sequence */
  int32_t reserved;           /* 0 */
  /* Metrics that turn with the page and replace kvant_decode_layer.key_metrics, or null. */
  const struct kvant_page_metrics* page_metrics;
  /* The same pages of so many layers, from kvant_decode_layer.layer on; 0: 1. Their pages lie as
   * kvant_pages says and, unless it is null, layer_offsets[i] bytes (multiples of 16, in device memory)
   * further on for the ith of these layers. Not with what differs by layer: masks, codebooks, key_metrics, a
   * correction. page_metrics are by layer. */
  int32_t n_layers;
  /* If not 0, and page 0 of a sequence is sealed, the tokens of the layer's `sink` are copied to the first
   * places of the sequence's protected pages. */
  int32_t keep_sink;
  const int64_t* layer_offsets;
  /* Rows of which pages are made straight away, such as the keys and values of a prompt that a
   * model has just computed; or null: pages are in the tail. Pages get the bytes that they would get from a
   * tail to which kvant_append has written the rows; of `rows` are used the type, keys and values, their
   * strides, channels, factors and rotations. For formats that kvant_can_seal_rows knows, one layer, and
   * layers without a correction. */
  const struct kvant_new_rows* rows;
  /* With rows: [n_seqs], in device memory, the row of the first token of the first page; the rows
   * behind it are the other tokens, of this page and the next ones. Negative: pages of this sequence are in
   * the tail, where tail_page says; if tail_page is null, it has none. For the others tail_page is not read.
   */
  const int32_t* first_rows;
} kvant_seal_range;

/* Does the work of kvant_seal for more than one page of a sequence, and for several layers. */
KVANT_API kvant_status kvant_seal_pages(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                                        const kvant_seal_range* range, kvant_stream stream);

/* Steps whose lengths only the device knows. A CUDA graph that was captured once then serves any step. The
 * caller gives how many tokens each *request* has and how many of them are new. kvant_plan_step then writes
 * everything that the calls above read in device memory. Token t sees the first (t - window) / 128 pages
 * sealed and the tokens after them in the tail, as if tokens were decoded one by one.
 *
 * With one new token a request (max_new_tokens), requests are sequences of kvant_decode_attention. A step is
 * kvant_plan_step, kvant_decode_schedule, kvant_decode_attention with new_rows for each layer, and
 * kvant_seal_pages for all layers.
 *
 * With several new tokens, tokens on both sides of a page's end see different pages sealed. A request then is
 * several consecutive sequences, its *parts*, some of which may be empty. Each layer calls kvant_append,
 * kvant_seal_pages and kvant_decode_attention, in this order. */

/* A page table that a step makes of block tables: that of a request's pages p is, for each of n_entries,
 *
 *   blocks[request * block_stride + place] * units + offset
 *
 * with place and offset from `places`, or place = n_entries * p + entry and offset = 0. Where pages take
 * turns in a `ring` of so many, p is taken modulo that. Arrays are in device memory. */
typedef struct kvant_step_table {
  size_t struct_size;
  const int32_t* blocks;
  int64_t block_stride;
  const int32_t* places; /* [ring * n_entries][2]: place and offset of each; or null. Only with a ring */
  int32_t ring;          /* pages; 0: none */
  int32_t n_entries;     /* of a page: KV heads and sides with entries of their own; 1: one for all */
  int32_t units;         /* of a block: 1, or more where entries count smaller pieces */
  int32_t n_pages;       /* that a row has entries for */
  int32_t* table; /* out: [n_seqs][n_entries][n_pages], as kvant_pages counts from a sequence's first page */
  /* Without places: pages of a block, one behind another, so many units apart. Page p is then
   * page p % pages_of_block of the block that page p / pages_of_block would have alone. 0: 1. */
  int32_t pages_of_block, page_units;
} kvant_step_table;

/* Describes a step for kvant_plan_step. Arrays are in device memory. The call leaves out outputs that are
 * null. */
typedef struct kvant_step {
  size_t struct_size;
  int32_t n_requests;
  int32_t max_new_tokens; /* of a request: 1 to 128 */
  int32_t max_queries;    /* of a sequence, as kvant_decode_shape has it; 0: 1 */
  /* Sequences of kvant_decode_attention: n_requests, times 1 + max_new_tokens / max_queries (rounded up)
   * where max_new_tokens is more than 1. Part i of request r is sequence r * (n_seqs / n_requests) + i. */
  int32_t n_seqs;
  int32_t n_rows; /* of new tokens, those of padding included, at most n_requests * max_new_tokens */
  int32_t window; /* unquantized tokens before a new one, besides tokens of incomplete pages */
  int32_t sliding_window; /* tokens that a query sees, including its own; 0 for all */
  int32_t sink;           /* unquantized tokens of a request's first page; 0 with a sliding window */
  /* [n_requests]: tokens of each request, including its new ones; 0 marks padding. */
  const int32_t* seq_lens;
  /* Rows of new tokens by request, [n_requests + 1]; null: each request has max_new_tokens. Of a request with
   * more new tokens than tokens the last ones count. */
  const int32_t* query_begins;
  /* [n_rows], or null. A request whose last row has a negative number here is padding. */
  const int64_t* slots;
  /* [n_requests]: pages that are already sealed. Null stands for the pages that the window demands. A request
   * that has been cut back may have more. */
  const int32_t* sealed_before;
  /* Out: the members of kvant_decode_lengths, [n_seqs]; part_begins is query_begins [n_seqs + 1].
   * first_tokens are those of a sliding window. */
  int32_t *sealed_pages, *tail_tokens, *protected_tokens, *first_tokens, *part_begins;
  /* Out: the members of kvant_new_rows, [n_rows]. */
  int32_t *row_seq, *row_tail_token;
  /* Out: what kvant_seal_range has, where sequences are requests: tables of the tail are those of parts 0,
   * and sealed_page counts from a request's first page. [n_requests]; then the pages that are sealed once
   * they are (this may be sealed_before). */
  int32_t *due_tail_page, *due_sealed_page, *n_due_pages, *sealed_after;
  /* Out, or null. Those of sealed pages are needed where requests have parts or a sliding window, and
   * otherwise are block tables. Of protected pages: of the page with the sink, in a ring of 1. Tails that are
   * a ring need pages for window + max_new_tokens + 127 tokens, rows of tables for window + 128. */
  const kvant_step_table *sealed, *tail, *protected_pages;
} kvant_step;

/* Plans a step. On a GPU, the call launches one kernel, which reads the inputs and writes all outputs that
 * are not null. */
KVANT_API kvant_status kvant_plan_step(const kvant_step* step, kvant_stream stream);

/* Prefill. A prompt block attends in parts to the pages that are sealed before it. kvant_dequantize turns
 * some pages back into rows, in memory of the caller's size. Any attention kernel that returns the LSE of its
 * scores can read these rows. kvant_merge merges the parts with the block's own causal attention. If keys and
 * values are transformed, kvant_transform transforms queries to match, and outputs back. */

/* Describes pages of one layer that become rows. */
typedef struct kvant_dequantization {
  size_t struct_size;
  int32_t n_seqs;      /* at most 32767 */
  const int32_t* seqs; /* [n_seqs], in device memory; null for 0 to n_seqs - 1 */
  /* Pages of a sequence: its sealed pages, then the pages of its tail, which continue after the sealed
   * ones. */
  int32_t first_page, n_pages;
  int32_t first_head, n_heads; /* KV heads */
  /* BF16 rows of head_dim numbers. Token t of the pages, of head h and sequence i of those chosen: at
   * i * seq_stride + t * token_stride + h * head_stride; strides count numbers and are multiples of 8, arrays
   * are 16-byte aligned. Either array may be null. */
  void* keys;
  void* values;
  int64_t seq_stride, token_stride, head_stride;
  /* Ranges of pages by sequence, in device memory, [n_seqs], or null. Sequence i (of those
   * chosen) has pages [first_pages[i], first_pages[i] + page_counts[i]), of which n_pages is the most;
   * without one of them its number is that above. Its first token is row row_begins[i], in place of i *
   * seq_stride: rows of all sequences may so follow one another. */
  const int32_t* first_pages;
  const int32_t* page_counts;
  const int32_t* row_begins;
  /* Rows go back from the basis in which they are stored, as by kvant_transform: not 0: the
   * orthonormal Walsh-Hadamard matrix; then channels times these factors, [n_kv_heads][head_dim], or null. */
  const float* key_factors;
  const float* value_factors;
  int32_t key_hadamard, value_hadamard;
  /* The type is KVANT_BF16 or KVANT_F16. Rows have `channels` channels, a multiple of 8 up to head_dim; 0
   * means head_dim. */
  kvant_type type;
  int32_t channels;
} kvant_dequantization;

/* Decodes pages into rows. Protected tokens (`sink`, `masks`) are taken from protected pages and put at their
 * position in the sequence. Protected pages must hold them in the order of the sequence. Rows after a
 * sequence's last token do not change. */
KVANT_API kvant_status kvant_dequantize(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                                        const kvant_decode_layer* layer,
                                        const kvant_dequantization* dequantization, kvant_stream stream);

/* Holds the attention of some query tokens to some of the tokens before them. */
typedef struct kvant_partial {
  size_t struct_size;
  void*
      out; /* of out_type: row of token t and query head h of sequence i at i * seq_stride + t * token_stride
            * + h * head_stride; strides are even, the array 8-byte aligned */
  kvant_type out_type;
  int64_t seq_stride, token_stride, head_stride;
  float* lse; /* ln sum exp(score) of each row; -infinity if the query saw no token */
  int64_t lse_seq_stride, lse_token_stride, lse_head_stride;
} kvant_partial;

/* Merges `other` into `into`: outputs and LSEs become those of attention to the tokens of both. With an F32
 * output, many parts can be merged without adding up rounding errors. */
KVANT_API kvant_status kvant_merge(int32_t n_seqs, int32_t n_tokens, int32_t n_heads, int32_t head_dim,
                                   const kvant_partial* into, const kvant_partial* other,
                                   kvant_stream stream);

/* Describes a transformation of rows: channels times factors, then the orthonormal Walsh-Hadamard matrix,
 * then channels times factors_after. If keys (or values) were appended with factors f and a Hadamard matrix,
 * queries need 1 / f as `factors`, and outputs need 1 / f as `factors_after`. */
typedef struct kvant_transformation {
  size_t struct_size;
  int32_t n_rows, n_heads, head_dim;
  void* rows; /* of type: head h of row i at i * row_stride + h * head_stride */
  kvant_type type;
  int64_t row_stride, head_stride;
  const float* factors; /* [n_heads / heads_of_factors][head_dim], or null */
  const float* factors_after;
  int32_t heads_of_factors; /* heads that share factors: the query heads of a KV head */
  int32_t hadamard;
  const void* source; /* read instead of `rows`, which has the same type; null for `rows` in place */
  int64_t source_row_stride, source_head_stride;
  int32_t source_is_bf16; /* if not 0, the source is BF16 and rows are F32 */
  int32_t source_is_f32;  /* if not 0, the source is F32 and rows are BF16 */
  int32_t source_is_f16;  /* if not 0, the source is F16, and rows have any type */
  /* With a source: channels of the source's rows and of `rows`, multiples of 8 up to head_dim; 0 means
   * head_dim. Missing channels of the source are zeros, and missing channels of `rows` are not stored. */
  int32_t source_channels, row_channels;
  int32_t reserved; /* 0 */
} kvant_transformation;

KVANT_API kvant_status kvant_transform(const kvant_transformation* transformation, kvant_stream stream);

/* Prompt attention in 8-bit integers (FlashQ: TurboAttention, section 3; keys without their mean, as in
 * SageAttention, section 4). Queries, keys and values are read once in 16 bits and become INT8 within the
 * call, tile by tile. Products and their sums are exact. Products in half precision exist as well. Nothing is
 * sealed. */

/* Describes what does not change from layer to layer. */
typedef struct kvant_prompt_shape {
  size_t struct_size;
  int32_t n_seqs;
  int32_t n_heads; /* query heads, a multiple of n_kv_heads */
  int32_t n_kv_heads;
  int32_t head_dim; /* 64, 128, 256, or 512 with half_products */
  /* The maximum numbers for all sequences together. The workspace grows with both. */
  int32_t n_queries;
  int32_t n_tokens;
  float softmax_scale; /* scores are softmax_scale * q.k; greater than 0 */
  /* If not 0, a sequence's last query is its last token, and queries see no token after their own. A sequence
   * may have more tokens than queries: the tokens of earlier chunks. */
  int32_t causal;
  int32_t window; /* tokens that a query sees, including its own; 0 for all; requires causal */
  /* Not 0: the exponential is SAS, see kvant_decode_shape, but 0 where a score is more than 6 below the
   * largest that its query sees of the same 64 or 128 tokens; slower here than the exact one. */
  int32_t sas;
  int32_t half;           /* Not 0: numbers of 16 bits are half precision; otherwise BF16. Not with pages */
  int32_t n_sealed_pages; /* maximum for all sequences together */
  /* If not 0, products are in half precision instead of 8-bit integers, with sums in F32. The result is then
   * as exact as kvant_decode_attention. */
  int32_t half_products;
  /* With half_products: if c > 0, scores become c * tanh(score / c). 0 leaves scores unchanged. */
  float score_softcap;
  /* With half_products. Not 0: a layer's prompt may have a correction, for which the workspace
   * then has room: of BF16 rows, heads of 64 and 128, groups of up to 8, scores without a cap. */
  int32_t corrected;
  /* Without half_products: protected tokens (of sealed pages: `sink`, `masks`) of all sequences
   * together, of the KV head that has most, at most. More than 0: they are attended to in half precision,
   * beside the INT8 tiles of their pages, in the same softmax (VQuant, section 5.2): on Hopper GPUs, with
   * heads of 64 and 128, without window and SAS. Otherwise they become INT8 with the tokens beside. */
  int32_t n_kept_tokens;
  const char* kernels; /* as kvant_decode_shape has them */
} kvant_prompt_shape;

/* Describes sealed pages that a prompt's queries see in addition to rows. Pages become INT8 (or half
 * precision) within the call as rows do. Protected tokens (`sink`, `masks`) are taken from protected pages.
 * Pages lie where kvant_decode_attention finds them and stay transformed. So q and the rows must be
 * transformed to match, and `out` back (kvant_transform, or q_hadamard and out_hadamard of kvant_prompt).
 *
 * Sequence i has sealed_begins[i + 1] - sealed_begins[i] sealed pages, which hold its first tokens. Its rows
 * are the tokens from first_row_tokens[i] on. A query sees the sealed pages that query_sealed_pages says, and
 * then rows up to its own. So the first row must not lie after the pages that the sequence's first query
 * sees, and a token may be in a page and a row. Without query_sealed_pages, queries see all sealed pages of
 * their sequence. */
typedef struct kvant_prompt_pages {
  size_t struct_size;
  const kvant_decode_shape* shape; /* n_kv_heads and head_dim as kvant_prompt_shape has them, and formats */
  /* Pages, sink, masks and codebooks. */
  const kvant_decode_layer* layer;
  /* Arrays in device memory. */
  const int32_t* sealed_begins;      /* [n_seqs + 1], from 0, in sequences' order */
  const int32_t* query_sealed_pages; /* [queries of all sequences], not decreasing within one, or null */
  const int32_t* first_row_tokens;   /* [n_seqs], or null: rows follow the sealed pages */
} kvant_prompt_pages;

/* One layer. Sequences lie one after another: query t of sequence i is row query_begins[i] + t, its token t
 * row token_begins[i] + t. A row's head h is at row * token_stride + h * head_stride; strides count numbers.
 * Those of q, k, v and out are multiples of 8, and the arrays 16-byte aligned. */
typedef struct kvant_prompt {
  size_t struct_size;
  const int32_t* query_begins; /* [n_seqs + 1], in device memory, from 0 */
  const int32_t* token_begins;
  const void* q;
  int64_t q_token_stride, q_head_stride;
  const void* k;
  int64_t k_token_stride, k_head_stride;
  const void* v;
  int64_t v_token_stride, v_head_stride;
  void* out; /* zeros for queries that see no token */
  int64_t out_token_stride, out_head_stride;
  float* lse; /* ln sum exp(score) of each query and head, -infinity where it sees no token; or null */
  int64_t lse_token_stride, lse_head_stride;
  /* Or null. With pages k and v may both be null: token t of a sequence's rows is then token t of
   * its tail pages, the layer's `tail`. */
  const kvant_prompt_pages* pages;
  /* With half_products: KVANT_F32, or KVANT_BF16 for the 16 bits of k and v. F32 queries are read
   * with 11 bits. Or KVANT_F16, beside pages in BF16 too. */
  kvant_type q_type, out_type;
  /* With half_products: attention sinks in device memory as kvant_decode_layer has them, F32
   * [n_heads]; or null. */
  const float* sink_logits;
  /* With half_products, or without of BF16. Not 0: queries are multiplied by the
   * orthonormal Walsh-Hadamard matrix when they are read, as keys were when they were appended; q stays as it
   * is. And outputs before they are stored, as values were. */
  int32_t q_hadamard, out_hadamard;
  /* KVLinC's correction as kvant_decode_layer has it, or null. Its states are those of queries:
   * query row i has that of state_of_seq[i], the sums over the sealed pages that it sees. Then n_queries is
   * how many queries there are, and not more; `lse` counts the correction. Not with sink logits, nor with
   * q_hadamard or out_hadamard. */
  const kvant_correction* correction;
} kvant_prompt;

/* Writes how many bytes of workspace a shape needs. Each channel of each token and KV head takes a little
 * more than 2 bytes, including tokens of sealed pages and 128 more tokens for each sequence. Some 20 MB come
 * on top. With half_products, channels take twice as much, and up to 30 MB come on top. */
KVANT_API kvant_status kvant_prompt_workspace(const kvant_prompt_shape* shape, size_t* bytes);

/* Computes out = softmax(softmax_scale * q K^T) V of one layer. The workspace is 256-byte aligned. Equal
 * inputs give equal bits. */
KVANT_API kvant_status kvant_prompt_attention(const kvant_prompt_shape* shape, const kvant_prompt* prompt,
                                              void* workspace, size_t workspace_bytes, kvant_stream stream);

/* Tokens that stay unquantized because of the attention they draw (VQuant, section 5). kvant_weigh_tokens
 * adds the softmax weights of some queries to the sums of tokens. It reads keys as rows, which
 * kvant_dequantize makes from some pages at a time. The caller chooses the tokens to protect and sets their
 * bits in `masks`, with which the page is sealed. kvant_protect copies the rows of these tokens out of the
 * tail. */

/* Describes queries of a sequence and some of its tokens. */
typedef struct kvant_token_weights {
  size_t struct_size;
  int32_t n_queries;
  int32_t n_tokens; /* rows of keys */
  /* Query i sees the first n_visible + i rows. It sees no row if this number is less than 1, and at most
   * n_tokens rows. */
  int32_t n_visible;
  kvant_type q_type;
  const void* q; /* of q_type: of query i and query head h at i * q_token_stride + h * q_head_stride */
  int64_t q_token_stride, q_head_stride; /* multiples of 8, q from a 16-byte aligned address, as for keys */
  const float* lse; /* ln sum exp(score) over all tokens that the query has seen (kvant_decode_layer.lse) */
  int64_t lse_token_stride, lse_head_stride;
  const void* keys; /* BF16: of row t and KV head h */
  int64_t key_token_stride, key_head_stride;
  float* weights; /* F32: of row t and KV head h at h * weight_head_stride + t */
  int64_t weight_head_stride;
  /* An output, or null. If not null, the rows must be all that the queries see. The call first finds the LSE
   * of each query and writes it here, with the strides of lse; lse is not read and may be null. A query that
   * sees no row gets -infinity. */
  float* found_lse;
} kvant_token_weights;

/* Adds exp(score - lse) of every query that sees a row to the row's weight, summed over the query heads of a
 * KV head. The call uses n_kv_heads, group, head_dim, softmax_scale and score_softcap of `shape`. Equal
 * inputs give equal bits. */
KVANT_API kvant_status kvant_weigh_tokens(const kvant_decode_shape* shape, const kvant_token_weights* weights,
                                          kvant_stream stream);

/* Names tokens that get rows in protected pages. Arrays are in device memory. */
typedef struct kvant_protected_rows {
  size_t struct_size;
  int32_t n_rows;
  int32_t reserved;               /* 0 */
  const int32_t* seq;             /* [n_rows] */
  const int32_t* head;            /* [n_rows]: KV heads */
  const int32_t* tail_token;      /* [n_rows]: tokens of the sequence's tail */
  /* [n_rows]: the index among the protected tokens of its sequence and head */
  const int32_t* protected_token;
} kvant_protected_rows;

/* Copies rows of both sides from the tail of `layer` to its protected pages. The call uses the members
 * `layer`, `tail` and `protected_pages` of `layer`. */
KVANT_API kvant_status kvant_protect(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                                     const kvant_protected_rows* rows, kvant_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* KVANT_KVANT_H */
