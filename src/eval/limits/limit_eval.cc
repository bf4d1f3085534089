#include "eval/limits/limit_eval.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "eval/greedy/greedy_eval.h"
#include "eval/limits/records.h"
#include "eval/quality_eval.h"
#include "eval/retrieval/retrieval_eval.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

// A cache breaks if it loses more than kLostShare of the reference's right answers.
constexpr double kLostShare = 0.1;

// Holds the answers of one source about one document.
struct LimitAnswers {
  // For each needle, this list says whether the answer was right.
  std::vector<bool> needles;
  // An entry without a value stands for invalid JSON.
  std::vector<std::optional<nlohmann::json>> records;
  Tokens summary;
};

// Asks one source about one document. The source must have read the document and marked its position there.
class LimitExam {
 public:
  LimitExam(LogitSource& source, const Tokenizer& tokenizer, int n_vocab)
      : source_(source), tokenizer_(tokenizer), n_vocab_(n_vocab) {}

  Result<bool> needle(const RetrievalQuestion& question) {
    KVANT_RETURN_IF_ERROR(source_.rewind());
    const auto score = ask(source_, question, n_vocab_);
    if (!score.ok()) return score.error();
    return score->exact;
  }

  // Returns the JSON object that the source writes, or nothing if it writes none.
  Result<std::optional<nlohmann::json>> record(const RecordQuestion& question) {
    KVANT_RETURN_IF_ERROR(source_.rewind());
    std::string text = question.cue;
    std::size_t end = std::string::npos;
    int n = 0;
    KVANT_RETURN_IF_ERROR(generate_greedily(source_, question.prompt, n_vocab_, [&](std::int32_t token) {
      if (tokenizer_.ends_generation(token)) return false;
      text += tokenizer_.piece(token);
      end = json_object_end(text);
      return end == std::string::npos && ++n < kRecordTokens;
    }));
    if (end == std::string::npos) return std::optional<nlohmann::json>();
    auto json = nlohmann::json::parse(text.substr(0, end), nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return std::optional<nlohmann::json>();
    return std::optional(std::move(json));
  }

  // Returns the source's long answer of at most n tokens. With `expected`, which is another source's answer,
  // returns the tokens on which both agree from the start.
  Result<Tokens> summary(const Tokens& prompt, int n, const Tokens* expected) {
    KVANT_RETURN_IF_ERROR(source_.rewind());
    Tokens said;
    KVANT_RETURN_IF_ERROR(generate_greedily(source_, prompt, n_vocab_, [&](std::int32_t token) {
      if (expected != nullptr && token != (*expected)[said.size()]) return false;
      said.push_back(token);
      const int most = expected != nullptr ? static_cast<int>(expected->size()) : n;
      return static_cast<int>(said.size()) < most && !tokenizer_.ends_generation(token);
    }));
    return said;
  }

 private:
  LogitSource& source_;
  const Tokenizer& tokenizer_;
  int n_vocab_;
};

Result<LimitAnswers> answers_of(LogitSource& source, const LimitDocument& document,
                                const Tokenizer& tokenizer, int n_vocab, int answer_tokens,
                                const Tokens* expected) {
  KVANT_RETURN_IF_ERROR(source.begin());
  KVANT_RETURN_IF_ERROR(source.step(document.tokens, /*is_prompt=*/true, {}));
  KVANT_RETURN_IF_ERROR(source.mark());
  LimitExam exam(source, tokenizer, n_vocab);
  LimitAnswers answers;
  for (const RetrievalQuestion& question : document.needles) {
    const auto right = exam.needle(question);
    if (!right.ok()) return right.error();
    answers.needles.push_back(*right);
  }
  for (const RecordQuestion& question : document.records) {
    auto record = exam.record(question);
    if (!record.ok()) return record.error();
    answers.records.push_back(std::move(record).value());
  }
  auto summary = exam.summary(document.summary, answer_tokens, expected);
  if (!summary.ok()) return summary.error();
  answers.summary = std::move(summary).value();
  // A fresh start frees the memory, which the next source needs.
  KVANT_RETURN_IF_ERROR(source.begin());
  return answers;
}

void add(LimitCount& count, bool reference, bool own) {
  ++count.asked;
  count.reference += reference ? 1 : 0;
  count.own += own ? 1 : 0;
  count.kept += reference && own ? 1 : 0;
}

LimitCell compare(int context, const LimitAnswers& reference, const LimitAnswers& own) {
  LimitCell cell{context, {}};
  for (std::size_t i = 0; i < own.needles.size(); ++i)
    add(cell.count(LimitKind::needles), reference.needles[i], own.needles[i]);
  for (std::size_t i = 0; i < own.records.size(); ++i) {
    const bool valid = reference.records[i].has_value();
    add(cell.count(LimitKind::json), valid, own.records[i].has_value());
    add(cell.count(LimitKind::records), valid, valid && own.records[i] == reference.records[i]);
  }
  const int said = static_cast<int>(reference.summary.size()), agreed = static_cast<int>(own.summary.size());
  cell.count(LimitKind::answer) = {said, said, agreed, agreed};
  return cell;
}

}  // namespace

const char* limit_name(LimitKind kind) {
  static constexpr const char* kNames[] = {"needles", "json", "records", "answer"};
  return kNames[static_cast<std::size_t>(kind)];
}

Result<LimitResult> evaluate_limits(std::span<const LimitDocument> documents, const Tokenizer& tokenizer,
                                    int n_vocab, std::span<const std::unique_ptr<LogitSource>> sources,
                                    const LimitOptions& options, const std::function<void()>& advance) {
  LimitResult result{options, /*text=*/"", {}};
  for (const auto& source : sources) result.rows.push_back({source->name(), {}});
  Tokens all;
  for (const LimitDocument& document : documents) {
    all.insert(all.end(), document.tokens.begin(), document.tokens.end());
    LimitAnswers reference;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      auto answers = answers_of(*sources[i], document, tokenizer, n_vocab, options.answer_tokens,
                                i == 0 ? nullptr : &reference.summary);
      if (!answers.ok()) return error("{}: {}", sources[i]->name(), answers.error().message);
      if (i == 0) reference = *answers;
      result.rows[i].cells.push_back(compare(document.context, reference, *answers));
      advance();
    }
  }
  result.text = fingerprint(all);
  return result;
}

Limit find_limit(const LimitRow& row, LimitKind kind) {
  Limit limit;
  for (const LimitCell& cell : row.cells) {
    const LimitCount& count = cell.count(kind);
    if (count.reference == 0) continue;
    limit.judged = true;
    if (count.reference - count.kept > kLostShare * count.reference) {
      limit.broken = cell.context;
      break;
    }
    limit.held = cell.context;
  }
  return limit;
}

}  // namespace kvant
