// How a prompt is cut into steps: such that the same tokens give the same bits whatever the steps' size, and
// whether their beginning was read now or by an earlier request.
#pragma once

namespace kvant {

// No step of a prompt is asked to be smaller.
inline constexpr int kMinPromptStep = 32;

// Tokens of the next step of a prompt of n_prompt tokens of which n_read have been read: about `wanted`, at
// most kMinPromptStep - 1 more. Requires n_read < n_prompt and wanted >= kMinPromptStep.
//
// Whole pages and the rest are read in steps of their own. Products of kMinPromptStep rows and more give a
// row bits that don't depend on the rows beside it, products of fewer rows others (model/matrix_product.h):
// so a token's product must be known from its place in the prompt. Of whole pages every step has that many
// rows, of the rest all steps or none.
int next_prompt_step(int n_read, int n_prompt, int wanted);

}  // namespace kvant
