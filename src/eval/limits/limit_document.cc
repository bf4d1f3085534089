#include "eval/limits/limit_document.h"

#include <algorithm>

#include "eval/limits/records.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

constexpr const char* kIntroduction =
    "Facts and records are scattered over the following text. Remember them all.\n\n";
constexpr const char* kSummary = "What is the text about? Answer in a few sentences.";
constexpr double kPasskeyDepth = 0.4;

int n_tokens(const Tokens& tokens) {
  return static_cast<int>(tokens.size());
}

// Makes the document for one context. The document's `tokens` stay empty if the context is too small.
Result<LimitDocument> make_document(const ChatEncoder& encoder, const Haystack& haystack,
                                    const LimitOptions& options, int context) {
  const std::uint64_t seed = options.seed * 1000003 + static_cast<std::uint64_t>(context);
  LimitDocument document{context, {}, {}, {}, {}};
  std::vector<PlacedSentence> placed;
  // `longest` is the number of tokens of the longest question with its answer.
  int longest = 0;

  const FactSheet sheet = draw_needles(kPasskeyDepth, seed);
  for (const Fact& fact : sheet.facts) placed.push_back({fact.depth, encoder.sentence(fact.sentence)});
  for (const FactQuestion& asked : sheet.questions) {
    auto question = encode_question(encoder, asked);
    if (!question.ok()) return question.error();
    longest = std::max(longest, n_tokens(question->prompt) + n_tokens(question->answer));
    document.needles.push_back(std::move(question).value());
  }
  for (const Record& record : draw_records(seed)) {
    placed.push_back({record.depth, encoder.sentence(record.sentence)});
    auto prompt = encoder.prompt(record.question, record.cue);
    if (!prompt.ok()) return prompt.error();
    longest = std::max(longest, n_tokens(*prompt) + kRecordTokens);
    document.records.push_back({std::move(prompt).value(), record.cue, record.json});
  }
  auto summary = encoder.prompt(kSummary, "");
  if (!summary.ok()) return summary.error();
  longest = std::max(longest, n_tokens(*summary) + options.answer_tokens);
  document.summary = std::move(summary).value();

  auto opening = encoder.opening(kIntroduction);
  if (!opening.ok()) return opening.error();
  int taken = n_tokens(*opening) + longest;
  for (const PlacedSentence& sentence : placed) taken += n_tokens(sentence.tokens);
  if (taken > context) return document;
  document.tokens = interleave(std::move(opening).value(),
                               haystack.take(seed % haystack.size(), context - taken), std::move(placed));
  return document;
}

}  // namespace

Result<std::vector<LimitDocument>> make_limit_documents(const Tokenizer& tokenizer, const std::string& text,
                                                        const LimitOptions& options) {
  const auto haystack = Haystack::from(tokenizer, text);
  if (!haystack.ok()) return haystack.error();
  const ChatEncoder encoder(tokenizer);
  std::vector<LimitDocument> documents;
  for (const int context : options.contexts) {
    auto document = make_document(encoder, *haystack, options, context);
    if (!document.ok()) return document.error();
    if (!document->tokens.empty()) documents.push_back(std::move(document).value());
  }
  return documents;
}

}  // namespace kvant
