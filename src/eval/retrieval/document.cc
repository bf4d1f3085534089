#include "eval/retrieval/document.h"

#include <algorithm>

namespace kvant {
namespace {

constexpr const char* kIntroduction = "Facts are scattered over the following text. Remember them all.\n\n";

int size_of(const Tokens& tokens) {
  return static_cast<int>(tokens.size());
}

Result<RetrievalDocument> make_document(const ChatEncoder& encoder, const Haystack& haystack,
                                        const RetrievalOptions& options, int context, int number) {
  const double depth = options.documents > 1 ? static_cast<double>(number) / (options.documents - 1) : 0.5;
  // Any way of mixing the seed is possible as long as no two documents have the same facts.
  const std::uint64_t seed = (options.seed * 1000003 + static_cast<std::uint64_t>(context)) * 1009 + number;
  const FactSheet sheet = draw_facts(depth, seed);

  RetrievalDocument document{context, number, {}, {}};
  int longest_question = 0;
  for (const FactQuestion& asked : sheet.questions) {
    auto question = encode_question(encoder, asked);
    if (!question.ok()) return question.error();
    longest_question = std::max(longest_question, size_of(question->prompt) + size_of(question->answer));
    document.questions.push_back(std::move(question).value());
  }
  auto opening = encoder.opening(kIntroduction);
  if (!opening.ok()) return opening.error();
  int taken = size_of(*opening) + longest_question;
  std::vector<PlacedSentence> facts;
  for (const Fact& fact : sheet.facts) {
    facts.push_back({fact.depth, encoder.sentence(fact.sentence)});
    taken += size_of(facts.back().tokens);
  }
  if (taken > context) {
    return error("a context of {} tokens is too small: the facts and a question alone take {}", context,
                 taken);
  }
  const std::size_t first = seed % haystack.size();
  document.tokens =
      interleave(std::move(opening).value(), haystack.take(first, context - taken), std::move(facts));
  return document;
}

}  // namespace

Result<RetrievalQuestion> encode_question(const ChatEncoder& encoder, const FactQuestion& asked) {
  auto prompt = encoder.prompt(asked.question, asked.cue);
  if (!prompt.ok()) return prompt.error();
  return RetrievalQuestion{asked.task, asked.depth, std::move(prompt).value(), encoder.plain(asked.answer)};
}

Result<std::vector<RetrievalDocument>> make_retrieval_documents(const Tokenizer& tokenizer,
                                                                const std::string& text,
                                                                const RetrievalOptions& options) {
  const auto haystack = Haystack::from(tokenizer, text);
  if (!haystack.ok()) return haystack.error();
  const ChatEncoder encoder(tokenizer);
  std::vector<RetrievalDocument> documents;
  for (const int context : options.contexts) {
    for (int number = 0; number < options.documents; ++number) {
      auto document = make_document(encoder, *haystack, options, context, number);
      if (!document.ok()) return document.error();
      documents.push_back(std::move(document).value());
    }
  }
  return documents;
}

std::int64_t tokens_to_run(const std::vector<RetrievalDocument>& documents) {
  std::int64_t tokens = 0;
  for (const RetrievalDocument& document : documents) {
    tokens += size_of(document.tokens);
    for (const RetrievalQuestion& question : document.questions)
      tokens += size_of(question.prompt) + size_of(question.answer) - 1;
  }
  return tokens;
}

}  // namespace kvant
