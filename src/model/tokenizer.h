// Text to tokens and back, as the model's file defines them (llama.cpp's vocabulary).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

struct llama_model;

namespace kvant {

class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> load(const std::string& path);
  virtual ~Tokenizer() = default;

  // add_special: the model's BOS (and EOS) as it was trained with; parse_special: "<|im_start|>" in the
  // text becomes that token, and a BOS that the text begins with is the only one. An error when the text is not
  // UTF-8.
  virtual Result<std::vector<std::int32_t>> encode(const std::string& text, bool add_special,
                                                   bool parse_special) const = 0;
  virtual std::string piece(std::int32_t token) const = 0;     // may be a part of a UTF-8 character
  virtual bool ends_generation(std::int32_t token) const = 0;  // end of text, end of turn
  // llama.cpp's, without weights; null: it has none.
  virtual const llama_model* library_model() const { return nullptr; }
};

}  // namespace kvant
