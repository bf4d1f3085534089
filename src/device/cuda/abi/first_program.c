/* Asks the library what a program must know before it lays out a cache: which kernel serves the shape, whether
 * there is a GPU for this kernel, and how large pages and the workspace are. The program is C99 and C++ and needs
 * only kvant.h and libkvant_cuda. */
#include <kvant/kvant.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  kvant_decode_shape shape;
  memset(&shape, 0, sizeof shape); /* Members that are not set must be zero. */
  shape.struct_size = sizeof shape;
  shape.n_seqs = 8;
  shape.n_kv_heads = 8;
  shape.group = 4;
  shape.head_dim = 128;
  shape.softmax_scale = 0.08838835F;
  shape.key_format = "tcq4";
  shape.value_format = "tcq4";

  if (kvant_check_version(KVANT_VERSION) != KVANT_OK) {
    fprintf(stderr, "%s\n", kvant_last_error());
    return 1;
  }
  const char* kernel = kvant_decode_kernel(&shape);
  if (kernel == NULL) {
    fprintf(stderr, "%s\n", kvant_last_error());
    return 1;
  }
  printf("version %d.%d, %s\n", kvant_version() / 1000, kvant_version() % 1000, kernel);
  printf("a page of keys has %lu bytes instead of %lu in BF16\n",
         (unsigned long)kvant_page_bytes(shape.key_format, shape.head_dim),
         (unsigned long)kvant_page_bytes("bf16", shape.head_dim));

  size_t bytes = 0;
  if (kvant_check_device() != KVANT_OK || kvant_decode_workspace(&shape, &bytes) != KVANT_OK) {
    printf("no GPU for it: %s\n", kvant_last_error());
    return 0;
  }
  printf("a workspace of %lu bytes\n", (unsigned long)bytes);
  return 0;
}
