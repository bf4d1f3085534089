// Reads completions that may have thoughts and tool calls, part by part, for all APIs.
#pragma once

#include <vector>

#include "chat/chat_template.h"
#include "serve/answer_stream.h"

namespace kvant {

// Returns what a part says; the last part also returns what was held back. With a null reader, the text is
// the completion.
AnswerDelta read_part(ToolAnswer* reader, const AnswerPart& part);

// Returns whether a token limit cut off a completion.
bool was_cut(const ToolAnswer* reader, GenerationEnd end);

// Adds parts of calls to the calls that they belong to.
void join_calls(std::vector<ToolCallPart> parts, std::vector<ToolCallPart>& calls);

}  // namespace kvant
