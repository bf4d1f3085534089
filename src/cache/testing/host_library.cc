#include "cache/testing/host_library.h"

#include <cstddef>

#include "cache/testing/host_append.h"
#include "cache/testing/host_attention.h"
#include "cache/testing/host_seal.h"
#include "format/format.h"

namespace kvant::testing {
namespace {

const char* last_error() {
  return "an argument is out of range";
}

std::size_t page_bytes(const char* name, int d) {
  const Format* format = find_format(name);
  if (format == nullptr) return 0;
  return (format->page_bytes(d) + 15) / 16 * 16;
}
int can_seal(const char* name) {
  const Format* format = find_format(name);
  if (format == nullptr || format->plain()) return 0;
  return format->codebook_shape() && format->codebook_shape()->per_sub_space ? 0 : 1;
}
const char* decode_kernel(const kvant_decode_shape* shape) {
  return find_format(shape->key_format) == nullptr ? nullptr : "host/plain";
}
kvant_status decode_workspace(const kvant_decode_shape*, std::size_t* bytes) {
  *bytes = 256;
  return KVANT_OK;
}
kvant_status decode_schedule(const kvant_decode_shape*, const kvant_decode_lengths*, void*, std::size_t,
                             kvant_stream) {
  return KVANT_OK;
}

kvant_status prompt_workspace(const kvant_prompt_shape*, std::size_t* bytes) {
  *bytes = 256;
  return KVANT_OK;
}

}  // namespace

PageLibrary host_library() {
  return {last_error,
          page_bytes,
          can_seal,
          decode_kernel,
          decode_workspace,
          decode_schedule,
          host::decode_attention,
          host::append,
          host::seal_pages,
          host::dequantize,
          host::transform,
          prompt_workspace,
          host::prompt_attention,
          host::weigh_tokens,
          host::protect};
}

}  // namespace kvant::testing
