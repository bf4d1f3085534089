// Decides how a prompt is split into steps. The same prompt must give the same bits with any size of steps,
// even if the cache already holds a prefix from an earlier request.
#pragma once

namespace kvant {

// Callers never request smaller steps of a prompt than this.
inline constexpr int kMinPromptStep = 32;

// Returns the number of tokens in the next step of a prompt of n_prompt tokens, after n_read of them have
// been read. The number is about `wanted`, and at most kMinPromptStep - 1 larger. Requires n_read < n_prompt
// and wanted >= kMinPromptStep.
//
// Whole pages and the remainder are read in separate steps. In a matrix product of at least kMinPromptStep
// rows, the bits of a row do not depend on the other rows. Products of fewer rows give different bits
// (model/matrix_product.h). A token's place in the prompt must therefore determine the kind of product. In
// whole pages, every step is large. In the remainder, either all steps are large or none is.
int next_prompt_step(int n_read, int n_prompt, int wanted);

}  // namespace kvant
