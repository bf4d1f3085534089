// Finds the text length up to which a cache answers like the reference. Four kinds of questions are asked at
// several lengths. A cache breaks at the length where it loses more than a tenth of the reference's right
// answers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/limits/limit_document.h"
#include "eval/logit_source.h"

namespace kvant {

class Tokenizer;

enum class LimitKind : std::uint8_t {
  // Counts hidden facts whose answers greedy decoding gives token by token.
  needles,
  // Counts records for which the generation is valid JSON.
  json,
  // Counts records for which the generation holds the same JSON as the reference's valid generation.
  records,
  // Counts tokens of the reference's long answer before the first token that the cache would not generate.
  answer,
};
inline constexpr LimitKind kLimitKinds[] = {LimitKind::needles, LimitKind::json, LimitKind::records,
                                            LimitKind::answer};
const char* limit_name(LimitKind kind);

struct LimitCount {
  int asked = 0;
  int reference = 0;  // right answers of the reference
  int own = 0;        // right answers of the cache
  int kept = 0;       // the number of questions that both reference and cache answer correctly
};

struct LimitCell {
  int context = 0;
  std::array<LimitCount, std::size(kLimitKinds)> counts;
  const LimitCount& count(LimitKind kind) const { return counts[static_cast<std::size_t>(kind)]; }
  LimitCount& count(LimitKind kind) { return counts[static_cast<std::size_t>(kind)]; }
};

struct LimitRow {
  std::string name;
  // The cells are sorted by ascending context.
  std::vector<LimitCell> cells;
};

struct LimitResult {
  LimitOptions options;
  // Holds the fingerprint of the documents.
  std::string text;
  // The first row is the reference.
  std::vector<LimitRow> rows;
};

// Asks each source the questions about each document. Each source reads each document once, and every
// question starts from the end of the document. advance() is called after a source has finished a document.
// Returns the error of a source that fails.
Result<LimitResult> evaluate_limits(std::span<const LimitDocument> documents, const Tokenizer& tokenizer,
                                    int n_vocab, std::span<const std::unique_ptr<LogitSource>> sources,
                                    const LimitOptions& options, const std::function<void()>& advance);

// Describes where a cache stops answering.
struct Limit {
  // The flag is false if the reference has no right answer, so nothing can be compared.
  bool judged = false;
  // Up to this context, at most a tenth of the right answers is lost. 0 means that there is no such context.
  int held = 0;
  // At this context, more than a tenth of the right answers is lost for the first time. 0 means that there is
  // no such context.
  int broken = 0;
};
Limit find_limit(const LimitRow& row, LimitKind kind);

}  // namespace kvant
