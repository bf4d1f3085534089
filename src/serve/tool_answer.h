// Reads completions that may have thoughts and tool calls, part by part, for all APIs. The parser of the chat
// template (chat/completion_parser.h) does the work, and plain completions need no parser.
#pragma once

#include <vector>

#include "chat/chat_template.h"
#include "serve/answer_stream.h"

namespace kvant {

// Returns the thoughts, text and calls of a part. The last part also returns the text that was held back. If
// `reader` is null, all text is the completion's text.
AnswerDelta read_part(ToolAnswer* reader, const AnswerPart& part);

// Returns whether a token limit cut off the completion.
bool was_cut(const ToolAnswer* reader, GenerationEnd end);

// Appends the parts to the calls that they belong to.
void join_calls(std::vector<ToolCallPart> parts, std::vector<ToolCallPart>& calls);

}  // namespace kvant
