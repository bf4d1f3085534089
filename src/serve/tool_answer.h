// Completions that may have thoughts and tool calls, read as they come: what both APIs do with a part of one.
#pragma once

#include <vector>

#include "chat/chat_template.h"
#include "serve/answer_stream.h"

namespace kvant {

// What a part says, and with the last one what was held back. reader: null: the text is the completion.
AnswerDelta read_part(ToolAnswer* reader, const AnswerPart& part);

// Whether a token limit has cut a completion that was not whole yet.
bool was_cut(const ToolAnswer* reader, GenerationEnd end);

// Adds parts of calls to the calls that they belong to.
void join_calls(std::vector<ToolCallPart> parts, std::vector<ToolCallPart>& calls);

}  // namespace kvant
