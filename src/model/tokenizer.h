// Text to tokens and back, as the model's file defines them (llama.cpp's vocabulary).
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

  // add_special: the model's BOS (and EOS) as it was trained with; parse_special: "<|im_start|>" in the
  // text becomes that token, and a BOS that the text begins with is the only one. An error when the text is
  // not UTF-8.
  virtual Result<std::vector<std::int32_t>> encode(const std::string& text, bool add_special,
                                                   bool parse_special) const = 0;
  virtual std::string piece(std::int32_t token) const = 0;     // may be a part of a UTF-8 character
  virtual bool ends_generation(std::int32_t token) const = 0;  // end of text, end of turn
  // A token of the model's own, such as the start of a turn, which is not part of what it says.
  virtual bool is_control(std::int32_t /*token*/) const { return false; }
  virtual FimTokens fim_tokens() const { return {}; }
  // llama.cpp's, without weights; null: it has none.
  virtual const llama_model* library_model() const { return nullptr; }
};

}  // namespace kvant
