#include "chat/chat_history.h"

namespace kvant {

void ChatHistory::add(const std::string& role, const std::string& text) {
  json.push_back({{"role", role}, {"content", text}});
}

}  // namespace kvant
