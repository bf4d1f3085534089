#include "eval/retrieval/document.h"

#include <algorithm>
#include <cmath>

#include "model/tokenizer.h"

namespace kvant {
namespace {

constexpr const char* kIntroduction = "Facts are scattered over the following text. Remember them all.\n\n";

// What the chat template puts around a user's message.
struct Frame {
  std::string before, after;
};

Frame frame_of(const Tokenizer& tokenizer) {
  const std::string marker = "[the document and its question]";
  const ChatMessage message{"user", marker};
  const auto prompt = tokenizer.chat_prompt({&message, 1});
  const std::size_t at = prompt.ok() ? prompt->find(marker) : std::string::npos;
  if (at == std::string::npos) return {"", "\n"};
  return {prompt->substr(0, at), prompt->substr(at + marker.size())};
}

// Parts of a prompt are encoded one by one, so that a document's tokens don't depend on the question.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer), frame_(frame_of(tokenizer)) {}

  Result<Tokens> opening() const {
    auto tokens = tokenizer_.encode(frame_.before, /*add_special=*/true, /*parse_special=*/true);
    if (!tokens.ok()) return tokens.error();
    return joined(std::move(tokens).value(), plain(kIntroduction));
  }
  Tokens sentence(const std::string& text) const { return plain(" " + text); }
  Result<RetrievalQuestion> question(const FactQuestion& asked) const {
    auto turn = tokenizer_.encode(frame_.after, /*add_special=*/false, /*parse_special=*/true);
    if (!turn.ok()) return turn.error();
    Tokens prompt = joined(plain("\n\n" + asked.question), *turn);
    return RetrievalQuestion{asked.task, asked.depth, joined(std::move(prompt), plain(asked.cue)),
                             plain(asked.answer)};
  }

 private:
  // Text of the tests' own, which is UTF-8.
  Tokens plain(const std::string& text) const {
    return tokenizer_.encode(text, /*add_special=*/false, /*parse_special=*/false).value();
  }
  static Tokens joined(Tokens first, const Tokens& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }

  const Tokenizer& tokenizer_;
  Frame frame_;
};

struct PlacedFact {
  double depth = 0;
  Tokens tokens;
};

// The facts among the sentences, each after its share of them.
Tokens interleave(Tokens document, const std::vector<Tokens>& sentences,
                  const std::vector<PlacedFact>& facts) {
  const auto append = [&](const Tokens& tokens) {
    document.insert(document.end(), tokens.begin(), tokens.end());
  };
  auto fact = facts.begin();
  for (std::size_t i = 0; i <= sentences.size(); ++i) {
    const auto is_due = [&] {
      return std::lround(fact->depth * static_cast<double>(sentences.size())) <= static_cast<long>(i);
    };
    for (; fact != facts.end() && is_due(); ++fact) append(fact->tokens);
    if (i < sentences.size()) append(sentences[i]);
  }
  return document;
}

int size_of(const Tokens& tokens) {
  return static_cast<int>(tokens.size());
}

Result<RetrievalDocument> make_document(const Encoder& encoder, const Haystack& haystack,
                                        const RetrievalOptions& options, int context, int number) {
  const double depth = options.documents > 1 ? static_cast<double>(number) / (options.documents - 1) : 0.5;
  // Any mixing will do, as long as no two documents share their facts.
  const std::uint64_t seed = (options.seed * 1000003 + static_cast<std::uint64_t>(context)) * 1009 + number;
  const FactSheet sheet = draw_facts(depth, seed);

  RetrievalDocument document{context, number, {}, {}};
  int longest_question = 0;
  for (const FactQuestion& asked : sheet.questions) {
    auto question = encoder.question(asked);
    if (!question.ok()) return question.error();
    longest_question = std::max(longest_question, size_of(question->prompt) + size_of(question->answer));
    document.questions.push_back(std::move(question).value());
  }
  auto opening = encoder.opening();
  if (!opening.ok()) return opening.error();
  int taken = size_of(*opening) + longest_question;
  std::vector<PlacedFact> facts;
  for (const Fact& fact : sheet.facts) {
    facts.push_back({fact.depth, encoder.sentence(fact.sentence)});
    taken += size_of(facts.back().tokens);
  }
  std::stable_sort(facts.begin(), facts.end(),
                   [](const PlacedFact& a, const PlacedFact& b) { return a.depth < b.depth; });
  if (taken > context) {
    return error("a context of {} tokens is too small: the facts and a question alone take {}", context,
                 taken);
  }
  const std::size_t first = seed % haystack.size();
  document.tokens = interleave(std::move(opening).value(), haystack.take(first, context - taken), facts);
  return document;
}

}  // namespace

Result<std::vector<RetrievalDocument>> make_retrieval_documents(const Tokenizer& tokenizer,
                                                                const std::string& text,
                                                                const RetrievalOptions& options) {
  const auto haystack = Haystack::from(tokenizer, text);
  if (!haystack.ok()) return haystack.error();
  const Encoder encoder(tokenizer);
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
