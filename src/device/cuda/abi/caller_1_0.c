/* A program that was compiled against version 1.0 of kvant.h and runs with today's library. Other data follows
 * its structures in memory, as on a stack, so the library must not read beyond version 1.0 of a structure. The
 * exit status is the number of expectations that did not hold. */
#include <stdio.h>
#include <string.h>

#include "kvant_1_0.h"

static int failures = 0;

static void expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "does not hold: %s\n", what);
  ++failures;
}

static struct {
  kvant_decode_shape shape;
  unsigned char after_shape[256];
  kvant_decode_lengths lengths;
  unsigned char after_lengths[256];
  kvant_decode_layer layer;
  unsigned char after_layer[256];
  kvant_transformation transformation;
  unsigned char after_transformation[256];
} memory;

static int refused_for(kvant_status status, const char* argument) {
  return status == KVANT_INVALID_ARGUMENT && strstr(kvant_last_error(), argument) != NULL;
}

int main(void) {
  memset(&memory, 0xff, sizeof memory);
  memset(&memory.shape, 0, sizeof memory.shape);
  memset(&memory.lengths, 0, sizeof memory.lengths);
  memset(&memory.layer, 0, sizeof memory.layer);
  memory.shape.struct_size = sizeof memory.shape;
  memory.lengths.struct_size = sizeof memory.lengths;
  memory.layer.struct_size = sizeof memory.layer;
  memory.shape.n_seqs = 2;
  memory.shape.n_kv_heads = 8;
  memory.shape.group = 4;
  memory.shape.head_dim = 128;
  memory.shape.softmax_scale = 0.088F;
  memory.shape.key_format = "ch4g128";
  memory.shape.value_format = "tok4g128";

  expect(kvant_version() / 1000 == KVANT_VERSION / 1000, "the library has the same major version");
  expect(kvant_version() >= KVANT_VERSION, "the library is not older than the header");
  expect(kvant_page_bytes("ch4g128", 128) == 8704, "a page of ch4g128 has the bytes of version 1.0");
  expect(kvant_can_seal("tok4g128") == 1, "tok4g128 can be sealed");
  const char* kernel = kvant_decode_kernel(&memory.shape);
  expect(kernel != NULL && (strcmp(kernel, "cuda/sm90/ch4g128+tok4g128") == 0 ||
                            strcmp(kernel, "cuda/sm80/ch4g128+tok4g128") == 0),
         "members that version 1.0 has not are zero: the plain kernel serves the shape");

  size_t bytes = 0;
  const kvant_status workspace = kvant_decode_workspace(&memory.shape, &bytes);
  const kvant_status device = kvant_check_device();
  expect(workspace == device, "a workspace is refused just where the device is");
  expect(device != KVANT_OK || bytes > 0, "where there is a device, a workspace has bytes");
  expect(device == KVANT_OK || strlen(kvant_last_error()) > 0, "where there is none, a sentence says so");

  expect(refused_for(kvant_decode_attention(&memory.shape, &memory.lengths, &memory.layer, NULL, 0, NULL),
                     "workspace"),
         "attention without a workspace is refused for it");
  memset(&memory.transformation, 0, sizeof memory.transformation);
  memory.transformation.struct_size = sizeof memory.transformation;
  memory.transformation.n_rows = memory.transformation.n_heads = 1;
  memory.transformation.head_dim = 7;
  memory.transformation.rows = &memory;
  expect(kvant_transform(&memory.transformation, NULL) == KVANT_UNSUPPORTED,
         "a transformation without a source is read: only its head size is refused");
  memory.layer.struct_size = 0;
  expect(refused_for(kvant_decode_attention(&memory.shape, &memory.lengths, &memory.layer, NULL, 0, NULL),
                     "kvant_decode_layer"),
         "a structure without its size is refused by name");
  return failures;
}
