// Turns text into tokens and back with the vocabulary in the model's file, through llama.cpp. Completions,
// grammars and chat templates depend only on this interface, and tests can replace it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

struct llama_model;

namespace kvant {

// FimTokens are the tokens with which a model was trained to fill in the middle of a text. A token is -1 if
// the model does not have it.
struct FimTokens {
  std::int32_t prefix = -1, suffix = -1, middle = -1;  // the tokens before the prefix, the suffix and the
                                                       // middle
  std::int32_t repository = -1, file = -1;             // the tokens before the names of a repository and of
                                                       // its files

  bool can_fill_in() const { return prefix >= 0 && suffix >= 0 && middle >= 0; }
};

class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> load(const std::string& path);
  virtual ~Tokenizer() = default;

  // Encodes a text. With add_special, the text gets the model's BOS (and EOS) as in training. With
  // parse_special, the text "<|im_start|>" becomes that token, and a BOS at the start of the text is not
  // doubled. Returns an error if the text is not UTF-8.
  virtual Result<std::vector<std::int32_t>> encode(const std::string& text, bool add_special,
                                                   bool parse_special) const = 0;
  virtual std::string piece(std::int32_t token) const = 0;     // may be part of a UTF-8 character
  virtual bool ends_generation(std::int32_t token) const = 0;  // true for the end of the text or of the turn
  // Returns whether a token is a control token of the model, such as the start of a turn, rather than a part
  // of the text.
  virtual bool is_control(std::int32_t /*token*/) const { return false; }
  virtual FimTokens fim_tokens() const { return {}; }
  // Returns llama.cpp's model without weights, or null if there is none.
  virtual const llama_model* library_model() const { return nullptr; }
};

}  // namespace kvant
