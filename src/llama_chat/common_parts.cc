// llama.cpp's sources for chats (cmake/llama_chat.cmake) are a part of its `common` library. This file
// implements the parts of the rest that these sources need, which are a silent log, functions on texts, and
// the model's tokens.
#include <common.h>
#include <log.h>

// --- the log ---

int common_log_get_verbosity_thold() {
  return -1;  // no message is important enough to print
}

common_log* common_log_main() {
  return nullptr;
}

void common_log_add(common_log*, ggml_log_level, const char*, ...) {}

// --- texts ---

std::string string_join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string joined;
  for (const std::string& part : parts) {
    if (&part != parts.data()) joined += separator;
    joined += part;
  }
  return joined;
}

std::vector<std::string> string_split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  for (std::size_t end; (end = text.find(separator, start)) != std::string::npos;
       start = end + separator.size())
    parts.push_back(text.substr(start, end - start));
  parts.push_back(text.substr(start));
  return parts;
}

std::string string_repeat(const std::string& text, std::size_t times) {
  std::string repeated;
  for (std::size_t i = 0; i < times; ++i) repeated += text;
  return repeated;
}

void string_replace_all(std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return;
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// --- tokens ---

std::string common_token_to_piece(const llama_vocab* vocabulary, llama_token token, bool special) {
  std::string piece(64, '\0');
  const auto read = [&] {
    return llama_token_to_piece(vocabulary, token, piece.data(), static_cast<int>(piece.size()), 0, special);
  };
  int n = read();
  if (n < 0) {
    piece.resize(-n);
    n = read();
  }
  piece.resize(n > 0 ? n : 0);
  return piece;
}

std::vector<llama_token> common_tokenize(const llama_vocab* vocabulary, const std::string& text,
                                         bool add_special, bool parse_special) {
  std::vector<llama_token> tokens(text.size() +
                                  8);  // each token covers at least one byte, except for a few special ones
  const int n = llama_tokenize(vocabulary, text.data(), static_cast<int>(text.size()), tokens.data(),
                               static_cast<int>(tokens.size()), add_special, parse_special);
  tokens.resize(n > 0 ? n : 0);
  return tokens;
}
