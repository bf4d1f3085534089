#include "serve/infill_prompt.h"

namespace kvant {
namespace {

class InfillPrompt {
 public:
  explicit InfillPrompt(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(std::int32_t token) { tokens_.push_back(token); }
  void add(const std::string& text) { encode(text, /*add_special=*/false); }
  // Adds the tokens that begin all texts of the model, such as <s>.
  void begin() { encode("", /*add_special=*/true); }

  Result<std::vector<std::int32_t>> finish() {
    if (!failure_.ok()) return failure_.error();
    return std::move(tokens_);
  }

 private:
  void encode(const std::string& text, bool add_special) {
    const auto more = tokenizer_.encode(text, add_special, /*parse_special=*/false);
    if (more.ok()) {
      tokens_.insert(tokens_.end(), more->begin(), more->end());
    } else {
      failure_ = more.error();
    }
  }

  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> tokens_;
  Status failure_;
};

}  // namespace

Result<std::vector<std::int32_t>> infill_prompt(const InfillText& text, const Tokenizer& tokenizer) {
  const FimTokens fim = tokenizer.fim_tokens();
  if (!fim.can_fill_in())
    return error(
        "the model was not trained to fill in the middle of a text: its vocabulary has no FIM tokens");
  InfillPrompt prompt(tokenizer);
  prompt.begin();
  // Clients give no names for the repository and the current file. The prompt uses the same names as
  // llama-server.
  const bool names_files = fim.file >= 0 && !text.files.empty();
  if (names_files && fim.repository >= 0) {
    prompt.add(fim.repository);
    prompt.add("myproject\n");
  }
  for (const InfillText::File& file : text.files) {
    if (names_files) prompt.add(fim.file);
    prompt.add(names_files ? file.name + "\n" : "\n\n--- snippet ---\n\n");
    prompt.add(file.text);
  }
  if (names_files) {
    prompt.add(fim.file);
    prompt.add("filename\n");
  }
  prompt.add(fim.prefix);
  prompt.add(text.prefix);
  prompt.add(text.start);
  prompt.add(fim.suffix);
  prompt.add(text.suffix);
  prompt.add(fim.middle);
  return prompt.finish();
}

std::vector<std::string> infill_stops(const Tokenizer& tokenizer) {
  const FimTokens fim = tokenizer.fim_tokens();
  std::vector<std::string> stops;
  for (const std::int32_t token : {fim.prefix, fim.suffix, fim.middle, fim.file, fim.repository}) {
    std::string piece = token < 0 ? "" : tokenizer.piece(token);
    if (!piece.empty()) stops.push_back(std::move(piece));
  }
  return stops;
}

}  // namespace kvant
