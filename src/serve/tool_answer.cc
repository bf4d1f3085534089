#include "serve/tool_answer.h"

#include <algorithm>
#include <iterator>

namespace kvant {

AnswerDelta read_part(ToolAnswer* reader, const AnswerPart& part) {
  if (reader == nullptr) return {.text = part.text};
  AnswerDelta delta = reader->add(part.text);
  if (part.end == GenerationEnd::none) return delta;
  AnswerDelta rest = reader->finish(part.end == GenerationEnd::length);
  delta.thought += rest.thought;
  delta.text += rest.text;
  std::ranges::move(rest.calls, std::back_inserter(delta.calls));
  return delta;
}

bool was_cut(const ToolAnswer* reader, GenerationEnd end) {
  return end == GenerationEnd::length && (reader == nullptr || !reader->is_complete());
}

void join_calls(std::vector<ToolCallPart> parts, std::vector<ToolCallPart>& calls) {
  for (ToolCallPart& part : parts) {
    const auto index = static_cast<std::size_t>(part.index);
    if (index >= calls.size()) {
      calls.push_back(std::move(part));
      continue;
    }
    calls[index].arguments += part.arguments;
    if (!part.name.empty()) calls[index].name = part.name;
  }
}

}  // namespace kvant
