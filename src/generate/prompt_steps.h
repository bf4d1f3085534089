// How a prompt is split into steps. The same tokens must give the same bits whatever the step size, and
// whether an earlier request has already read their beginning.
#pragma once

namespace kvant {

// Steps of a prompt are never requested smaller than this.
inline constexpr int kMinPromptStep = 32;

// Returns the number of tokens in the next step of a prompt of n_prompt tokens of which n_read have been
// read: about `wanted`, at most kMinPromptStep - 1 more. Requires n_read < n_prompt and wanted >=
// kMinPromptStep.
//
// Whole pages and the remainder are read in separate steps. Matrix products of at least kMinPromptStep rows
// give a row bits that don't depend on the other rows; smaller products give different bits
// (model/matrix_product.h). So a token's place in the prompt must determine which product it takes. In whole
// pages every step is large; in the remainder all steps are large or none is.
int next_prompt_step(int n_read, int n_prompt, int wanted);

}  // namespace kvant
