#include "calibrate/through_cache.h"

#include <algorithm>

#include "base/check.h"
#include "format/page_metric.h"

namespace kvant {

std::vector<float> through_cache(const Format& format, const Transform& transform, const PageContext& context,
                                 int sink, int first_position, std::vector<float> values) {
  const int d = context.head_dim;
  const int n = static_cast<int>(values.size()) / d;
  KVANT_CHECK(n % kPageTokens == 0, "the cache encodes whole pages");
  const std::vector<float> exact = values;
  transform.forward({values.data(), n, d});
  std::vector<std::byte> page(format.page_bytes(d));
  for (int first = 0; first < n; first += kPageTokens) {
    TokenMask left_out;
    for (int token = 0; first == 0 && token < sink; ++token) left_out.set(token);
    float* tokens = values.data() + static_cast<std::ptrdiff_t>(first) * d;
    encode_page(format, transform, context, first_position + first, left_out, tokens, page.data());
    format.decode(page.data(), kPageTokens, context, tokens);
  }
  transform.inverse({values.data(), n, d});
  if (n > 0) std::copy_n(exact.begin(), static_cast<std::ptrdiff_t>(sink) * d, values.begin());
  return values;
}

}  // namespace kvant
