// LimitEval: up to which length of a text a cache answers like the reference.
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
  needles,  // hidden facts: answers that greedy decoding gives, token by token
  json,     // records: generations that are valid JSON
  records,  // records that are valid in the reference: generations with the same JSON
  answer,   // tokens of the reference's long answer before the first that the cache would not generate
};
inline constexpr LimitKind kLimitKinds[] = {LimitKind::needles, LimitKind::json, LimitKind::records,
                                            LimitKind::answer};
const char* limit_name(LimitKind kind);

struct LimitCount {
  int asked = 0;
  int reference = 0;  // right in the reference
  int own = 0;        // right in this cache
  int kept = 0;       // right in both
};

struct LimitCell {
  int context = 0;
  std::array<LimitCount, std::size(kLimitKinds)> counts;
  const LimitCount& count(LimitKind kind) const { return counts[static_cast<std::size_t>(kind)]; }
  LimitCount& count(LimitKind kind) { return counts[static_cast<std::size_t>(kind)]; }
};

struct LimitRow {
  std::string name;
  std::vector<LimitCell> cells;  // by ascending context
};

struct LimitResult {
  LimitOptions options;
  std::string text;            // fingerprint of the documents
  std::vector<LimitRow> rows;  // the reference comes first
};

// Each source reads each document once and answers each question from there. advance() means that one source
// has finished one document. Errors come from a source.
Result<LimitResult> evaluate_limits(std::span<const LimitDocument> documents, const Tokenizer& tokenizer,
                                    int n_vocab, std::span<const std::unique_ptr<LogitSource>> sources,
                                    const LimitOptions& options, const std::function<void()>& advance);

// Describes where a cache stops answering.
struct Limit {
  bool judged = false;  // whether the reference has any right answer
  int held = 0;         // the longest context up to which at most a tenth of them is lost; 0: none
  int broken = 0;       // the first context at which more is lost; 0: none
};
Limit find_limit(const LimitRow& row, LimitKind kind);

}  // namespace kvant
