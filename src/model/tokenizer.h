// Turns text into tokens and back, as the model's file defines them (llama.cpp's vocabulary).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

struct llama_model;

namespace kvant {

// Tokens with which a model was trained to fill in the middle of a text (FIM). -1: the model has none.
struct FimTokens {
  std::int32_t prefix = -1, suffix = -1, middle = -1;  // before each of the three
  std::int32_t repository = -1, file = -1;             // before the names of a repository and of its files

  bool can_fill_in() const { return prefix >= 0 && suffix >= 0 && middle >= 0; }
};

class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> load(const std::string& path);
  virtual ~Tokenizer() = default;

  // With add_special, the text gets the model's BOS (and EOS) as in training. With parse_special,
  // "<|im_start|>" in the text becomes that token, and a BOS at the text's beginning is the only one. Error:
  // the text is not UTF-8.
  virtual Result<std::vector<std::int32_t>> encode(const std::string& text, bool add_special,
                                                   bool parse_special) const = 0;
  virtual std::string piece(std::int32_t token) const = 0;     // may be part of a UTF-8 character
  virtual bool ends_generation(std::int32_t token) const = 0;  // end of text, end of turn
  // Returns whether this is one of the model's own tokens, such as the start of a turn, which are not part of
  // what it says.
  virtual bool is_control(std::int32_t /*token*/) const { return false; }
  virtual FimTokens fim_tokens() const { return {}; }
  // Returns llama.cpp's model without weights; null: there is none.
  virtual const llama_model* library_model() const { return nullptr; }
};

}  // namespace kvant
