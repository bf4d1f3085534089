#include "generate/prompt_steps.h"

#include "base/check.h"
#include "base/page_size.h"
#include "model/matrix_product.h"

namespace kvant {

static_assert(MatrixProduct::is_batch(kMinPromptStep) && kPageTokens % kMinPromptStep == 0);

int next_prompt_step(int n_read, int n_prompt, int wanted) {
  KVANT_CHECK(n_read < n_prompt && wanted >= kMinPromptStep, "a prompt's step without tokens");
  const int whole_pages = n_prompt - n_prompt % kPageTokens;
  const int left = (n_read < whole_pages ? whole_pages : n_prompt) - n_read;
  const int step = wanted - wanted % kMinPromptStep;
  return left - step < kMinPromptStep ? left : step;
}

}  // namespace kvant
