/* The interface of a device that keeps low-bit pages of a KV cache and attends to them. Two libraries
 * implement it: libkvant_cuda (NVIDIA, compute capability 8.0 and up) and libkvant_cpu.
 *
 * Memory. The library allocates no device memory, does not wait for the device and keeps no state: all memory
 * is the caller's. On a GPU, all work goes to the caller's stream, and a CUDA graph can capture every call.
 * Lengths and page tables are read on the device, so a captured step can be replayed as sequences grow. On a
 * CPU, device memory is any memory, the stream is null, and a call has ended when it returns. The CPU library
 * uses threads of its own, and several threads may call the library at a time.
 *
 * Pages. A page is 128 consecutive tokens of one KV head and one side (keys or values). Sealed pages are
 * low-bit. Unquantized tokens are BF16. The sink and other protected tokens lie in protected pages, and
 * tokens that are not sealed yet lie in "tail" pages. On a GPU, pages have the byte order of docs/dev/gpu.md.
 * On a CPU, a sealed page has the bytes of its format. If format/code_order.h has an order for the format and
 * side, the codes are in that order (token_lanes for keys, token_octets for values). An unquantized page on a
 * CPU is [128][head_dim].
 *
 * Units. Strides and offsets of rows count numbers of the row's type, strides of page tables count entries,
 * and strides and offsets of pools count bytes. Dimensions stand in brackets, the outermost first.
 *
 * Versions. Structures begin with their size, which the caller sets to sizeof. Later versions only append
 * members. Members that an older caller does not have count as zero. (kvant_pages, a part of other
 * structures, stays as it is.) A program compiled with one version runs with every later version of the same
 * major number (kvant_check_version).
 *
 * Errors. A call that is refused launches nothing and changes nothing. KVANT_INVALID_ARGUMENT means that an
 * argument breaks a rule of this header. KVANT_UNSUPPORTED means that the device lacks something. Every call
 * that launches may also return KVANT_DEVICE_ERROR on a GPU, and KVANT_OUT_OF_MEMORY on a CPU.
 * kvant_last_error then says which argument is wrong and why.
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

/* The version of this header: 1000 * major + minor. The first release has version 1.0, so until then the
 * header changes without a new number. After the first release, a call or a member that is added raises the
 * minor number. */
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

/* Returns one sentence in English. The result is never null. */
KVANT_API const char* kvant_status_text(kvant_status status);

/* Returns why this thread's last refused call was refused: the argument and what it must be, or CUDA's own
 * text. Calls that succeed leave the text unchanged. The result is never null, and the caller must not free
 * it. */
KVANT_API const char* kvant_last_error(void);

/* Returns KVANT_OK if the library serves a program whose header has this KVANT_VERSION: the major numbers are
 * equal, and the library's minor number is not smaller. Otherwise the result is KVANT_UNSUPPORTED, and the
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

/* Returns the bytes of a page of one KV head and side in device memory, a multiple of 16. The result is 0 if
 * the library reads no pages of `format` ("ch4g128", "bf16", ...) with heads of head_dim channels. */
KVANT_API size_t kvant_page_bytes(const char* format, int head_dim);

/* Says where pages lie. For a page of a sequence, layer, KV head and side:
 *
 *   id = table[seq * seq_stride + layer * layer_stride + head * head_stride + side * side_stride + page]
 *   address = pool + id * page_stride + layer * layer_offset + head * head_offset + side * side_offset
 *
 * Strides of the table count entries; page_stride and offsets count bytes. Strides and offsets may be 0.
 * Addresses must be multiples of 16. */
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
  /* On a GPU: 64, 128, 256 or 512. Heads of 512 have one query per sequence, and neither a correction nor
   * kvant_weigh_tokens and kvant_protect. For heads of another size, such as 80 or 96, the caller passes the
   * next larger of these sizes. The last channels of pages are then zeros. Rows may have fewer channels than
   * head_dim: see q_channels, out_channels, key_channels, value_channels, row_channels, source_channels and
   * `channels`. At heads of 512, these numbers must be multiples of 16. */
  int32_t head_dim;
  float softmax_scale;    /* scores are softmax_scale * q.k */
  const char* key_format; /* the format of sealed pages; if it is "bf16", all tokens are in the tail */
  const char* value_format;
  /* If not 0, layers may have a correction, and the workspace has room for the correction. On a GPU, heads
   * must then have 64 or 128 channels, and groups at most 8 query heads. */
  int32_t corrected;
  /* The formats of each KV head: n_kv_heads names, with at most 8 different pairs on a GPU. If an array is
   * null, all heads have key_format or value_format. Pages of all heads share a pool. page_stride may be a
   * unit that divides pages of every size. Otherwise sealed_offsets of a layer say where the pages of each
   * head lie. */
  const char* const* head_key_formats;
  const char* const* head_value_formats;
  /* If not 0, the exponential is SAS, an approximation by a cubic polynomial (TurboAttention, Algorithm 3).
   * SAS is 0 if a score is more than 6 below the largest score so far. On a GPU, this is the largest score
   * that the same warp has seen up to the end of the score's sealed page. In unquantized pages, the score's
   * block of 16 tokens stands for the page. On a CPU, pages form up to 16 runs, and this is the largest score
   * of the same run up to the end of the score's page. */
  int32_t sas;
  /* Sparse V. If the threshold is greater than 0, the values of a sealed page may stay unread. The values
   * stay unread only if no token of the page has a weight above the threshold for any query head. Weights are
   * relative to the largest weight so far. Kernels whose name ends in "skipping values" leave such values
   * unread; other kernels read all values. */
  float skip_threshold;
  /* If this number c is greater than 0, scores become c * tanh(score / c). Few kernels other than the generic
   * kernel have such a cap. 0 leaves scores unchanged. A correction requires 0. */
  float score_softcap;
  /* The largest number of queries of a sequence, 1 to 8; 0 means 1. The queries of a sequence are its last
   * tokens, such as drafts or the end of a prompt. The last query sees all tokens. Each earlier query sees
   * one token less at the end of the tail. On a GPU, a sequence's pages are read once for up to 32 pairs of a
   * query and a query head of a KV head. For example, 8 queries in a group of 4 query heads read pages once.
   * A correction requires one query per sequence. */
  int32_t max_queries;
  /* Names the kernels that attend on a CPU, and is null on a GPU. On a CPU, null selects the best kernels
   * that the processor runs. "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "neon" and "portable" select
   * an instruction set. "reference" decodes pages and multiplies in F32, as heads of less than 64 channels
   * always do. */
  const char* kernels;
} kvant_decode_shape;

/* Says what the sequences of a step hold, equally for all layers. Arrays are in device memory. */
typedef struct kvant_decode_lengths {
  size_t struct_size;
  const int32_t* sealed_pages; /* [n_seqs], or null for none */
  const int32_t* tail_tokens;  /* [n_seqs], or null for none */
  /* Sequence i and KV head h have protected_tokens[i * protected_seq_stride + h * protected_head_stride].
   * Null means that there are none. */
  const int32_t* protected_tokens;
  int64_t protected_seq_stride, protected_head_stride;
  /* [n_seqs], 0 to 127, or null. The array serves sliding windows. It masks out this many tokens at the
   * beginning of a sequence's first page. The first page is sealed, or in the tail if no page is sealed.
   * Tables and counts begin with the first page that the window reaches, so pages before the window are not
   * read. Layers with different windows need lengths, tables and a schedule of their own. Only
   * kvant_decode_attention reads this array.
   *
   * If a sequence has several queries, the number is that of its last query, up to 126 + max_queries. A query
   * k places before the last query has k masked tokens less. Tables then begin with the first page that the
   * window of the first query reaches. */
  const int32_t* first_tokens;
  /* About how many tail tokens the longest sequence has; 0 means unknown. With up to 2048 tail tokens, and
   * with null for sealed_pages and protected_tokens, a smaller kernel without a schedule serves a few
   * sequences. This number decides which kernel runs, and not what the kernel computes. If sequences have
   * several queries, the number is not read. For each sequence, tables of the tail have entries for the pages
   * of this many tokens. */
  int32_t max_tail_tokens;
  /* About how many sealed pages the longest sequence has; 0 means unknown. With up to 64 sealed pages, a
   * smaller kernel on a Hopper GPU serves a few sequences that have sealed pages, too. Tables of sealed pages
   * have this many entries for each sequence. */
  int32_t max_sealed_pages;
  /* The rows of q, out and lse that belong to each sequence: [n_seqs + 1], not decreasing, or null. Sequence
   * i has rows query_begins[i] to query_begins[i + 1] - 1, at most max_queries. If null, sequence i has
   * max_queries rows, beginning with row i * max_queries. All queries of a sequence see the same sealed
   * pages. If queries of a request must see different pages sealed, the request is two sequences that share
   * pages. */
  const int32_t* query_begins;
} kvant_decode_lengths;

/* Describes KVLinC's linear correction of a layer (KVLinC, section 3, equations 4 to 6). Feature maps phi(x)
 * = [softmax(x W1), softmax(x W2)] have 256 features. The output is out = (sum e^(s - m) v + c phi(q) S) /
 * (sum e^(s - m) + c phi(q) z). The scores are s, and the largest score is m. Arrays are F32, from 16-byte
 * aligned addresses. */
typedef struct kvant_correction {
  size_t struct_size;
  const float* query_maps; /* W1, then W2, of each query head: [n_kv_heads * group][2][head_dim][128] */
  /* W1, then W2, of each KV head, for the rounding errors of keys: [n_kv_heads][2][head_dim][128], or null.
   * If the maps are not null, kvant_seal and kvant_seal_pages add the pages that they seal to the states. If
   * null, the caller updates the states. */
  const float* key_maps;
  /* S [256][head_dim], then z [256]: sums of phi_k(k - sealed k)^T (sealed v) and of phi_k over the sealed
   * tokens that are not protected. A new sequence has zeros. The state of sequence i and a KV head lies at
   * states + (state_of_seq ? state_of_seq[i] : i) * state_seq_stride + head * state_head_stride. Strides
   * count numbers and are multiples of 4. */
  float* states;
  int64_t state_seq_stride, state_head_stride;
  const int32_t* state_of_seq; /* [n_seqs], in device memory, or null */
  /* If 0, c = 1 (KVLinC, Algorithm 1). Otherwise c = e^-m (KVLinC, equation 5), and a negative m counts as 0
   * throughout. */
  int32_t absolute;
  int32_t reserved; /* 0 */
  /* kvant_seal_pages reads this stride. If 0, the pages of a sequence are added to its sums. Otherwise the
   * stride is a multiple of 4, and the earlier sums stay. The sums after the nth page that the call seals,
   * counted from 1, are written n * state_page_stride numbers after the earlier sums. */
  int64_t state_page_stride;
} kvant_correction;

/* Describes one layer of a step: its pages, its queries and where outputs go. */
typedef struct kvant_decode_layer {
  size_t struct_size;
  int32_t layer;
  kvant_pages sealed, tail, protected_pages;
  /* The first `sink` tokens of a sequence, 0 to 128, are protected tokens. They are masked out of the
   * sequence's first sealed page. */
  int32_t sink;
  /* Masks mark the protected tokens of sealed pages after the sink; attention leaves these tokens out of the
   * pages. Null means that no such tokens exist. The mask of page p has 4 words, from masks + 4 * (seq *
   * mask_seq_stride + head * mask_head_stride + p) on. Token t is bit t % 32 of word t / 32. The array is
   * 16-byte aligned. */
  const uint32_t* masks;
  int64_t mask_seq_stride, mask_head_stride;
  /* Codebooks of vector formats, or null: half-precision centroids of each KV head. The strides are the
   * numbers from the centroids of one head to those of the next head. A head of a pq format has the centroids
   * of all sub-spaces in turn. */
  const void* key_codebooks;
  const void* value_codebooks;
  int64_t key_codebook_stride, value_codebook_stride;
  /* Queries of type q_type: [n_seqs][n_kv_heads * group][head_dim]. Both strides are multiples of 8, and q is
   * 16-byte aligned. If sequences have several queries, the first dimension counts the rows of query_begins,
   * and q_seq_stride lies between rows. */
  const void* q;
  int64_t q_seq_stride, q_head_stride;
  void* out; /* outputs of type out_type, in the order of q */
  kvant_type out_type;
  int64_t out_seq_stride, out_head_stride;
  /* If not 0, sealed pages, page tables, lengths and the schedule were complete before the preceding kernel
   * of the stream began. The preceding kernel may still write q and the tail. Sealed pages are then read
   * while the preceding kernel ends. */
  int32_t settled;
  /* The log-sum-exp (LSE) of the scores, ln sum exp(softmax_scale * q.k): F32 [n_seqs][n_kv_heads * group],
   * or null. If sequences have several queries, the first dimension counts the rows of q. The LSE includes a
   * correction. kvant_merge needs the LSE to merge attention to other tokens with the output. */
  float* lse;
  const kvant_correction* correction; /* or null */
  /* If not 0, equal inputs give equal bits. Otherwise pages go to whichever warp is free, which is a few
   * percent faster. Sums may then differ in their last bits from run to run. */
  int32_t reproducible;
  /* Two numbers in device memory, or null. Kernels that skip values add the number of pages that they have
   * seen to the first number. They add the number of pages whose values stayed unread to the second
   * number. */
  uint64_t* skip_counts;
  /* A number in device memory, or null. kvant_seal adds the number of pages (of one head and side) whose
   * scales, zeros, gains or grids reach +-65504. Half precision ends there: such numbers are clipped to
   * this range, and some kernels compute in it. So attention to such a page may be wrong or infinite. Pages
   * of fp8, prog and tcq formats are not counted, because their scales are F32 and have no such limit. */
  uint32_t* pages_out_of_range;
  /* Attention sinks: logits in device memory, F32 [n_kv_heads * group], or null. A logit joins the
   * denominator of a query head's softmax and nothing else; -infinity has no effect. `lse` includes the
   * logits. */
  const float* sink_logits;
  /* F32 queries are read with 11 significant bits, and BF16 queries with 8. */
  kvant_type q_type;
  /* Outputs go back from the basis of rotated values before they are stored, as by kvant_transform. If
   * out_hadamard is not 0, outputs are multiplied by the orthonormal Walsh-Hadamard matrix. Then channels are
   * multiplied by out_factors, [n_kv_heads][head_dim], unless they are null. */
  int32_t out_hadamard;
  const float* out_factors;
  /* Says what errors of keys cost, for kvant_seal and trellis formats (tcq...) of keys. Null means that
   * errors cost their squares. The array is F32 [n_kv_heads][head_dim][17] in device memory. The metric of a
   * head is e^T (1 + V V^T) e with eight directions V [head_dim][8], in the basis of stored keys. Channel i
   * has the weight w[i], then the feedback g[i][8], then V[i]. The metric is then the sum of w[i] (e[i] +
   * g[i].s)^2 with s = sum over j < i of V[j] e[j]. The caller computes the numbers from the last channel to
   * the first, and begins with the 8 x 8 unit matrix K. For channel i, w[i] = 1 + V[i]^T K V[i] and g[i] = K
   * V[i] / w[i]. Then K becomes K - w[i] g[i] g[i]^T. A head whose first weight is 0 has no metric. */
  const float* key_metrics;
  /* Bytes that are added to the address of a sealed page, by KV head and side: [n_kv_heads][2] in host
   * memory, or null. The call reads the array before it returns. Offsets are multiples of 16, from 0 to below
   * 64 GiB. If head_offset and side_offset of `sealed` are 0, these offsets alone place the pages of heads
   * and sides in an entry. Pages of heads whose formats differ can then follow one another without gaps. */
  const int64_t* sealed_offsets;
  /* Rows that kvant_decode_attention first appends, as kvant_append does, or null. Row i is the last token of
   * sequence i's tail, which tail_tokens already counts. If tail_tokens[i] is 0, the row's keys and values
   * are left out, but its queries attend. n_rows is n_seqs, and the call does not read seq and tail_token. No
   * sequence may see the new row of another sequence.
   *
   * rows.queries is null or equals q, with the same type, strides and channels. The call may then change the
   * memory of q. If sequences have several queries, the rows are those of the queries. n_rows is then n_seqs
   * * max_queries, or with query_begins at least query_begins[n_seqs]. */
  const struct kvant_new_rows* new_rows;
  /* Channels of the rows of q and of out, multiples of 8 up to head_dim; 0 means head_dim. Missing
   * channels of q are zeros, and missing channels of out are not stored. With a correction, q must have
   * all channels. */
  int32_t q_channels, out_channels;
} kvant_decode_layer;

/* Returns the kernel that serves a shape, such as "cuda/sm90/ch4g128+tok4g128". Some pairs of formats have no
 * kernel of their own at this head size, or none that supports `sas`. Such pairs get the generic kernel, such
 * as "cuda/sm90/generic:fp8+lm3". Null means that no kernel serves the shape, and kvant_last_error says why.
 * If formats differ by head, the result is the kernel of head 0, or null if any head has none. "sm80" instead
 * of "sm90" means that the current device is no Hopper GPU and runs kernels for compute capability 8.0 and
 * up. Without a device, the result is that of an H100. On a CPU, names are such as
 * "cpu/avx512/ch4g128+tok4g128". */
KVANT_API const char* kvant_decode_kernel(const kvant_decode_shape* shape);

/* Lists the features that a model or a recipe may ask of a device, besides the formats of its pages. Each
 * feature is one bit of a set. */
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
  const char* tail_format;         /* the format of unquantized tokens; null means "bf16" */
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

/* Returns KVANT_OK if the device serves a plan. KVANT_UNSUPPORTED says that the device does not serve the
 * plan, and kvant_last_error says what the device lacks. KVANT_INVALID_ARGUMENT says that a structure is
 * missing or broken. `limits` may be null; otherwise the caller sets its struct_size, and the call fills in
 * `limits` unless a structure is broken. Without a GPU, libkvant_cuda describes an H100. */
KVANT_API kvant_status kvant_supports(const kvant_plan* plan, kvant_limits* limits);

/* Writes how many bytes of workspace (256-byte aligned) a shape needs on the current device. The schedule is
 * a part of the workspace. On a CPU, the size is a few bytes, which no call uses. */
KVANT_API kvant_status kvant_decode_workspace(const kvant_decode_shape* shape, size_t* bytes);

/* Divides a step's work over the GPU. The caller makes this call once per step, before the layers, and must
 * not change lengths until the layers have run. On a CPU, the call does nothing. Shapes that differ only in
 * their formats may share a schedule. The workspace must then be large enough for each shape, and
 * workspace_bytes is its whole size. */
KVANT_API kvant_status kvant_decode_schedule(const kvant_decode_shape* shape,
                                             const kvant_decode_lengths* lengths, void* workspace,
                                             size_t workspace_bytes, kvant_stream stream);

/* Computes out = softmax(softmax_scale * q K^T) V of one layer, for one query token of each sequence or for
 * several (max_queries). The workspace holds the step's schedule. Rows of sequences without any token do not
 * change. If a sequence has tokens but one of its queries sees none, that query gets zeros and an LSE of
 * -infinity. */
KVANT_API kvant_status kvant_decode_attention(const kvant_decode_shape* shape,
                                              const kvant_decode_lengths* lengths,
                                              const kvant_decode_layer* layer, void* workspace,
                                              size_t workspace_bytes, kvant_stream stream);

/* Describes rows of new keys and values. Each row goes to a token of its sequence's tail. */
typedef struct kvant_new_rows {
  size_t struct_size;
  int32_t n_rows;
  const int32_t* seq;        /* [n_rows] */
  const int32_t* tail_token; /* [n_rows]; a row with a negative number is left out */
  /* Keys and values are [n_rows][n_kv_heads][head_dim]. The strides lie between rows and between heads. */
  const void* keys;
  int64_t key_row_stride, key_head_stride;
  const void* values;
  int64_t value_row_stride, value_head_stride;
  /* A row is transformed before it is stored. Channels are multiplied by key_factors or value_factors, unless
   * these are null. If key_hadamard or value_hadamard is not 0, the row is then multiplied by the orthonormal
   * Walsh-Hadamard matrix. Queries and outputs must be transformed to match. */
  const float* key_factors; /* [n_kv_heads][head_dim] */
  const float* value_factors;
  int32_t key_hadamard, value_hadamard;
  /* The type of keys, values and queries. */
  kvant_type type;
  int32_t rows_reserved; /* 0 */
  /* The queries of the rows, [n_rows][n_kv_heads * group][head_dim], or null. The call transforms queries in
   * place to match the keys. Channels are multiplied by query_factors, [n_kv_heads][head_dim], unless they
   * are null. Queries are then rotated if key_hadamard is not 0. */
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

/* Returns 1 if kvant_seal_pages can make pages of a format from rows that are not in the tail
 * (kvant_seal_range.rows), otherwise 0. A GPU reads rows of trellis formats (tcq...) more than once, so a GPU
 * takes these rows only from the tail. */
KVANT_API int kvant_can_seal_rows(const char* format);

/* Encodes full tail pages into sealed pages, for both sides of all KV heads. tail_page and sealed_page are
 * [n_seqs], in device memory. Page tail_page[seq] of the tail becomes page sealed_page[seq]. A negative
 * tail_page[seq] means that nothing is due, so the call may be launched every step. Tables must already name
 * the sealed pages, and the caller advances lengths and the tail's table. Sink and protected tokens (`sink`,
 * `masks`) widen no range. With a correction that has key maps, keys must be channel-wise (ch...) and values
 * token-wise (tok...). */
KVANT_API kvant_status kvant_seal(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                                  const int32_t* tail_page, const int32_t* sealed_page, kvant_stream stream);

/* Says what errors of keys cost, for trellis formats (tcq...) of keys. The metric turns with the page,
 * because RoPE turns keys and queries by their positions. The cost is e^T (1 + V V^T) e for errors e of
 * stored keys, with V = B^T R(m) W. R(m) turns channels as RoPE does for m tokens, where m is the middle of
 * the page: 128 p + 64 for page p of a sequence. W holds the directions of the queries that read a page,
 * relative to the page's middle. Arrays are in device memory. */
typedef struct kvant_page_metrics {
  size_t struct_size;
  /* W, F32 [n_kv_heads][head_dim][8], in the channels of keys before any transformation except RoPE. A head
   * whose first number is not a number (NaN) has no metric. */
  const float* directions;
  /* F32 [head_dim][2]: the channel j with which channel i turns, then w, its turns per token, from -1/2 to
   * 1/2. A channel that stands still has itself and 0. Channel i becomes x[i] cos(2 pi w m) - x[j] sin(2 pi w
   * m). So the two channels of a pair have turns of opposite sign. */
  const float* turns;
  /* B, F32 [head_dim][head_dim] of each KV head, basis_head_stride numbers apart; 0 means that all heads
   * share B. Row i is the ith unit vector after the transformation that matches queries to the stored keys.
   * Null means that queries are not transformed. */
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
  /* The number of layers whose pages are sealed, from kvant_decode_layer.layer on; 0 means 1. The same pages
   * of each layer are sealed. They lie where kvant_pages says, plus layer_offsets[i] bytes for the ith of
   * these layers. layer_offsets are multiples of 16, [n_layers] in device memory, or null. Several layers
   * exclude masks, codebooks, key_metrics and a correction, because these differ by layer. page_metrics have
   * a stride for layers. */
  int32_t n_layers;
  /* If not 0, and page 0 of a sequence is sealed, the sink is copied, too. The tokens of the layer's `sink`
   * then fill the first places of the sequence's protected pages. */
  int32_t keep_sink;
  const int64_t* layer_offsets;
  /* Rows from which pages are made directly, such as the keys and values of a prompt that a model has just
   * computed. If null, pages are in the tail. Pages get the same bytes as if kvant_append had first written
   * the rows to the tail. Only the type, keys, values, strides, channels, factors and rotations of `rows` are
   * read. Rows require a format for which kvant_can_seal_rows returns 1, a single layer, and no
   * correction. */
  const struct kvant_new_rows* rows;
  /* With rows: [n_seqs], in device memory: the row of the first token of a sequence's first page. The next
   * rows are the other tokens of this page and of the following pages. If the number is negative, the
   * sequence's pages are in the tail at tail_page, or there are none if tail_page is null. For other
   * sequences, tail_page is not read. */
  const int32_t* first_rows;
} kvant_seal_range;

/* Does the work of kvant_seal for more than one page of a sequence, and for several layers. */
KVANT_API kvant_status kvant_seal_pages(const kvant_decode_shape* shape, const kvant_decode_layer* layer,
                                        const kvant_seal_range* range, kvant_stream stream);

/* Does the work of kvant_seal_pages for n_layers layers that may differ in formats, places, codebooks and
 * metrics. shapes[i] and layers[i] describe layer i, and `range` serves all layers. On a GPU, the pages of
 * all layers with the same format share launches, and the launches run at the same time. So the few pages
 * that a decode step has filled occupy all SMs. All shapes have the same n_seqs, n_kv_heads and head_dim.
 * Layers have neither masks nor a correction. range.n_layers is 0, and range.layer_offsets and range.rows are
 * null. The layer strides of range.page_metrics lie between neighbouring layers of the call. Arrays of
 * pointers are in host memory, and the call reads them before it returns. */
KVANT_API kvant_status kvant_seal_layers(int32_t n_layers, const kvant_decode_shape* const* shapes,
                                         const kvant_decode_layer* const* layers,
                                         const kvant_seal_range* range, kvant_stream stream);

/* The next calls serve steps whose lengths only the device knows, so a CUDA graph that was captured once
 * serves any step. The caller gives the tokens of each *request*, and how many are new. kvant_plan_step
 * writes everything that the calls above read in device memory. Token t sees the first (t - window) / 128
 * pages, rounded down, as sealed pages, and the tokens after them in the tail. Each token thus sees what it
 * would see if tokens were decoded one by one.
 *
 * With one new token a request (max_new_tokens), requests are sequences of kvant_decode_attention. A step is
 * kvant_plan_step, kvant_decode_schedule, kvant_decode_attention with new_rows for each layer, and
 * kvant_seal_pages for all layers.
 *
 * With several new tokens, a step may cross a page's end. Tokens after the end see the page sealed, and
 * tokens before the end do not. A request is therefore several consecutive sequences, its *parts*. Parts may
 * be empty. Each layer calls kvant_append, kvant_seal_pages and kvant_decode_attention, in this order. */

/* Describes a page table that kvant_plan_step makes from the block table of each request. Entry e of a
 * request's page p becomes
 *
 *   blocks[request * block_stride + place] * units + offset
 *
 * places[n_entries * p + e] holds the place and the offset. If `places` is null, the place is
 * n_entries * p + e and the offset is 0. With a ring, p is first taken modulo `ring`. Arrays are in device
 * memory. */
typedef struct kvant_step_table {
  size_t struct_size;
  const int32_t* blocks;
  int64_t block_stride;
  const int32_t* places; /* [ring * n_entries][2]: place and offset, or null; requires a ring */
  int32_t ring;          /* pages that take turns; 0 means no ring */
  int32_t n_entries;     /* entries of a page: KV heads and sides, or 1 if all share an entry */
  int32_t units;         /* units of a block: 1, or more if entries count smaller pieces */
  int32_t n_pages;       /* pages for which a row has entries */
  int32_t* table;        /* output: [n_seqs][n_entries][n_pages]; pages count from a sequence's first page */
  /* Without places, a block may hold several consecutive pages, page_units units apart; 0 means 1 page. Page
   * p then has place = n_entries * (p / pages_of_block) + e and offset = p % pages_of_block * page_units. */
  int32_t pages_of_block, page_units;
} kvant_step_table;

/* Describes a step for kvant_plan_step. Arrays are in device memory. The call leaves out outputs that are
 * null. */
typedef struct kvant_step {
  size_t struct_size;
  int32_t n_requests;
  int32_t max_new_tokens; /* new tokens of a request, at most; 1 to 128 */
  int32_t max_queries;    /* queries of a sequence, as in kvant_decode_shape; 0 means 1 */
  /* The number of sequences of kvant_decode_attention. If max_new_tokens is 1, n_seqs is n_requests.
   * Otherwise n_seqs is n_requests * (1 + max_new_tokens / max_queries), with the quotient rounded up. Part i
   * of request r is sequence r * (n_seqs / n_requests) + i. */
  int32_t n_seqs;
  int32_t n_rows;         /* rows of new tokens and of padding, at most n_requests * max_new_tokens */
  int32_t window;         /* unquantized tokens before a new one, besides tokens of incomplete pages */
  int32_t sliding_window; /* tokens that a query sees, including its own; 0 for all */
  int32_t sink;           /* unquantized tokens of a request's first page; 0 with a sliding window */
  /* [n_requests]: tokens of each request, including its new ones; 0 marks padding. */
  const int32_t* seq_lens;
  /* The rows of new tokens that belong to each request: [n_requests + 1]. Null means that each request has
   * max_new_tokens rows. If a request has more new tokens than tokens, only the last rows count. */
  const int32_t* query_begins;
  /* [n_rows], or null. A request whose last row has a negative number here is padding. */
  const int64_t* slots;
  /* [n_requests]: the numbers of pages that are already sealed. Null stands for the numbers that the window
   * demands. A request that has been cut back may have more sealed pages than the window demands. */
  const int32_t* sealed_before;
  /* Outputs: the members of kvant_decode_lengths, [n_seqs]. part_begins stands for query_begins, [n_seqs +
   * 1]. A sliding window requires first_tokens. */
  int32_t *sealed_pages, *tail_tokens, *protected_tokens, *first_tokens, *part_begins;
  /* Outputs: the members of kvant_new_rows, [n_rows]. */
  int32_t *row_seq, *row_tail_token;
  /* Outputs [n_requests]: the members of kvant_seal_range if its sequences are requests. Tables of the tail
   * are then those of part 0 of each request, and sealed_page counts from a request's first page.
   * sealed_after counts the pages that are sealed after the due pages; it may be the same memory as
   * sealed_before. */
  int32_t *due_tail_page, *due_sealed_page, *n_due_pages, *sealed_after;
  /* Outputs, or null. `sealed` is needed if requests have parts or a sliding window. Otherwise block tables
   * serve as tables of sealed pages. `protected_pages` names the page that holds the sink, in a ring of 1. A
   * ring of tail pages needs pages for window + max_new_tokens + 127 tokens. Rows of the tail's table need
   * entries for the pages of window + 128 tokens. */
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
  /* The page numbers of a sequence count its sealed pages first, then the pages of its tail. */
  int32_t first_page, n_pages;
  int32_t first_head, n_heads; /* KV heads */
  /* Rows of keys and of values, 16-byte aligned; either may be null. Token t counts from the first chosen
   * page of the ith chosen sequence. Its row for KV head first_head + h lies at i * seq_stride + t *
   * token_stride + h * head_stride. Strides count numbers and are multiples of 8. */
  void* keys;
  void* values;
  int64_t seq_stride, token_stride, head_stride;
  /* Arrays by chosen sequence, [n_seqs] in device memory, or null. first_pages[i] replaces first_page, and
   * page_counts[i], at most n_pages, replaces n_pages. row_begins[i] * token_stride replaces i * seq_stride,
   * so the rows of all sequences may follow one another. */
  const int32_t* first_pages;
  const int32_t* page_counts;
  const int32_t* row_begins;
  /* Rows go back from the basis in which they are stored, as by kvant_transform. If key_hadamard or
   * value_hadamard is not 0, rows are multiplied by the orthonormal Walsh-Hadamard matrix. Then channels are
   * multiplied by the factors, [n_kv_heads][head_dim], unless they are null. */
  const float* key_factors;
  const float* value_factors;
  int32_t key_hadamard, value_hadamard;
  /* The type of rows is KVANT_BF16 or KVANT_F16. Rows have `channels` channels, a multiple of 8 up to
   * head_dim; 0 means head_dim. */
  kvant_type type;
  int32_t channels;
} kvant_dequantization;

/* Decodes pages into rows. Protected tokens (`sink`, `masks`) are taken from protected pages and put at their
 * position in the sequence. Protected pages must hold protected tokens in the order of the sequence. Rows
 * after a sequence's last token do not change. */
KVANT_API kvant_status kvant_dequantize(const kvant_decode_shape* shape, const kvant_decode_lengths* lengths,
                                        const kvant_decode_layer* layer,
                                        const kvant_dequantization* dequantization, kvant_stream stream);

/* Holds the attention of some query tokens to some of the tokens before them. */
typedef struct kvant_partial {
  size_t struct_size;
  /* Outputs of type out_type, 8-byte aligned. The row of query token t and query head h of sequence i lies at
   * i * seq_stride + t * token_stride + h * head_stride. The strides are even. */
  void* out;
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

/* Describes a transformation of rows. Channels are multiplied by factors, then by the orthonormal
 * Walsh-Hadamard matrix, and then by factors_after. If keys (or values) were appended with factors f and a
 * Hadamard matrix, queries need 1 / f as `factors`, and outputs need 1 / f as `factors_after`. */
typedef struct kvant_transformation {
  size_t struct_size;
  int32_t n_rows, n_heads, head_dim;
  void* rows; /* numbers of `type`; head h of row i lies at i * row_stride + h * head_stride */
  kvant_type type;
  int64_t row_stride, head_stride;
  const float* factors; /* [n_heads / heads_of_factors][head_dim], or null */
  const float* factors_after;
  int32_t heads_of_factors; /* heads that share factors: the query heads of a KV head */
  int32_t hadamard;
  /* If not null, the call reads rows from `source`, and writes `rows`. At most one of the three flags below
   * says that the source has another type than `rows`. Null means that `rows` are transformed in place. */
  const void* source;
  int64_t source_row_stride, source_head_stride;
  int32_t source_is_bf16; /* if not 0, the source is BF16 and rows are F32 */
  int32_t source_is_f32;  /* if not 0, the source is F32 and rows are BF16 */
  int32_t source_is_f16;  /* if not 0, the source is F16, and rows have any type */
  /* With a source: channels of the source's rows and of `rows`, multiples of 8 up to head_dim; 0 means
   * head_dim. Missing channels of the source are zeros, and missing channels of `rows` are not stored. */
  int32_t source_channels, row_channels;
  int32_t reserved; /* 0 */
} kvant_transformation;

/* Transforms rows. `transformation` says which rows, and how. */
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
  int32_t head_dim; /* on a GPU 64, 128, 256, or 512 with half_products */
  /* n_queries and n_tokens are the largest numbers that all sequences together have. The workspace grows with
   * both numbers. */
  int32_t n_queries;
  int32_t n_tokens;
  float softmax_scale; /* scores are softmax_scale * q.k; greater than 0 */
  /* If not 0, a sequence's last query is its last token, and queries see no token after their own. A sequence
   * may have more tokens than queries: the tokens of earlier chunks. */
  int32_t causal;
  int32_t window; /* tokens that a query sees, including its own; 0 means all; requires causal */
  /* If not 0, the exponential is SAS, as in kvant_decode_shape. On a GPU, SAS is 0 if a score is more than 6
   * below the largest score that its query has among the same 64 or 128 tokens. On a CPU, the query's largest
   * score so far counts instead. In prompts, SAS is slower than the exact exponential. */
  int32_t sas;
  int32_t half;           /* if not 0, 16-bit numbers are half precision instead of BF16; 0 with pages */
  int32_t n_sealed_pages; /* the largest number that all sequences together have */
  /* If not 0, products are in half precision instead of 8-bit integers, with sums in F32. The result is then
   * as exact as kvant_decode_attention. */
  int32_t half_products;
  /* With half_products: if c > 0, scores become c * tanh(score / c). 0 leaves scores unchanged. */
  float score_softcap;
  /* With half_products. If not 0, a layer's prompt may have a correction, and the workspace has room for the
   * correction. A correction requires BF16 rows, heads of 64 or 128, groups of up to 8, and scores without a
   * cap. */
  int32_t corrected;
  /* Without half_products: the largest number of protected tokens (`sink`, `masks`) that the sealed pages of
   * all sequences together have for a KV head. If greater than 0, queries attend to protected tokens in half
   * precision. The INT8 tiles of pages are in the same softmax (VQuant, section 5.2). This requires a Hopper
   * GPU, heads of 64 or 128, no window, no SAS, no q_hadamard and no out_hadamard. Otherwise protected tokens
   * become INT8 with the other tokens of their page. */
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
 * sees. A token may be in a page and in a row. Without query_sealed_pages, queries see all sealed pages of
 * their sequence. */
typedef struct kvant_prompt_pages {
  size_t struct_size;
  const kvant_decode_shape* shape; /* n_kv_heads and head_dim as kvant_prompt_shape has them, and formats */
  /* The call reads the layer's pages, sink, masks and codebooks. */
  const kvant_decode_layer* layer;
  /* The following arrays are in device memory. */
  const int32_t* sealed_begins;      /* [n_seqs + 1]: begins with 0, not decreasing */
  const int32_t* query_sealed_pages; /* [queries of all sequences], not decreasing within one, or null */
  const int32_t* first_row_tokens;   /* [n_seqs], or null: rows follow the sealed pages */
} kvant_prompt_pages;

/* Describes one layer of a prompt. Sequences lie one after another. Query t of sequence i is row
 * query_begins[i] + t. Token t of its keys and values is row token_begins[i] + t. Head h of a row lies at row
 * * token_stride + h * head_stride. Strides count numbers. The strides of q, k, v and out are multiples of 8,
 * and these arrays are 16-byte aligned. */
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
  float* lse; /* ln sum exp(score) of each query and head, or null; -infinity for queries that see no token */
  int64_t lse_token_stride, lse_head_stride;
  /* Sealed pages, or null. With pages, k and v may both be null. Token t of a sequence's rows is then token t
   * of its tail pages (`tail` of the layer). */
  const kvant_prompt_pages* pages;
  /* The types of q and out. Without half_products, both are KVANT_BF16 on a GPU. KVANT_BF16 stands for the
   * 16-bit type of k and v (`half`). KVANT_F16 is half precision even if k, v and pages are BF16. F32 queries
   * are read with 11 significant bits. */
  kvant_type q_type, out_type;
  /* With half_products: attention sinks, as in kvant_decode_layer: F32 [n_heads] in device memory, or
   * null. */
  const float* sink_logits;
  /* Both flags require half_products, or BF16 rows (`half` is 0). At heads of 512, a GPU requires rows in
   * tail pages, too. If q_hadamard is not 0, the call multiplies queries by the orthonormal Walsh-Hadamard
   * matrix when it reads them. Keys were multiplied by this matrix when they were appended. The memory of q
   * stays as it is. If out_hadamard is not 0, outputs are multiplied by the matrix before they are stored,
   * because values were. */
  int32_t q_hadamard, out_hadamard;
  /* KVLinC's correction, as in kvant_decode_layer, or null. Each query has states of its own: query row i has
   * state state_of_seq[i], which holds the sums over the sealed pages that the query sees. n_queries must
   * then be the exact number of queries. `lse` includes the correction. A correction excludes sink_logits,
   * q_hadamard and out_hadamard, and on a GPU an out_type of KVANT_F16. */
  const kvant_correction* correction;
} kvant_prompt;

/* Writes how many bytes of workspace a shape needs. On a GPU, each channel of each token and KV head takes a
 * little more than 2 bytes. Tokens of sealed pages count, and each sequence counts 128 more tokens. Some 20
 * MB come on top. With half_products, channels take twice as much, and up to 30 MB come on top. */
KVANT_API kvant_status kvant_prompt_workspace(const kvant_prompt_shape* shape, size_t* bytes);

/* Computes out = softmax(softmax_scale * q K^T) V of one layer. The workspace is 256-byte aligned. Equal
 * inputs give equal bits. */
KVANT_API kvant_status kvant_prompt_attention(const kvant_prompt_shape* shape, const kvant_prompt* prompt,
                                              void* workspace, size_t workspace_bytes, kvant_stream stream);

/* Tokens that stay unquantized because of the attention they draw (VQuant, section 5). kvant_weigh_tokens
 * adds the softmax weights of some queries to the sums of tokens. The call reads keys as rows, which
 * kvant_dequantize makes from some pages at a time. The caller chooses the tokens to protect and sets their
 * bits in `masks`, with which the page is sealed. kvant_protect copies the rows of these tokens out of the
 * tail. */

/* Describes queries of a sequence and some of its tokens. */
typedef struct kvant_token_weights {
  size_t struct_size;
  int32_t n_queries;
  int32_t n_tokens; /* rows of keys */
  /* Query i sees the first n_visible + i rows. The query sees no row if this number is less than 1, and at
   * most n_tokens rows. */
  int32_t n_visible;
  kvant_type q_type;
  /* Query head h of query i lies at i * q_token_stride + h * q_head_stride. The strides of q and of keys are
   * multiples of 8, and both arrays are 16-byte aligned. */
  const void* q; /* numbers of q_type */
  int64_t q_token_stride, q_head_stride;
  const float* lse; /* ln sum exp(score) over all tokens that a query has seen (kvant_decode_layer.lse) */
  int64_t lse_token_stride, lse_head_stride;
  const void* keys; /* BF16; KV head h of row t lies at t * key_token_stride + h * key_head_stride */
  int64_t key_token_stride, key_head_stride;
  float* weights; /* F32 sums; row t and KV head h have weights[h * weight_head_stride + t] */
  int64_t weight_head_stride;
  /* An output, or null. If not null, the rows must be all rows that the queries see. The call first finds the
   * LSE of each query and writes it here, with the strides of lse. lse is then not read and may be null. A
   * query that sees no row gets -infinity. */
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
  int32_t reserved;          /* 0 */
  const int32_t* seq;        /* [n_rows] */
  const int32_t* head;       /* [n_rows]: KV heads */
  const int32_t* tail_token; /* [n_rows]: tokens of the sequence's tail */
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
