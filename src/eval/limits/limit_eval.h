// LimitEval: up to which length of a text a cache answers as the reference does.
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
  records,  // valid ones of the reference: generations that are the same JSON
  answer,   // tokens of the reference's long answer before the first that the cache would not say
};
inline constexpr LimitKind kLimitKinds[] = {LimitKind::needles, LimitKind::json, LimitKind::records,
                                            LimitKind::answer};
const char* limit_name(LimitKind kind);

struct LimitCount {
  int asked = 0;
  int reference = 0;  // that the reference has right
  int own = 0;        // that this cache has right
  int kept = 0;       // that both have
};

struct LimitCell {
  int context = 0;
  std::array<LimitCount, std::size(kLimitKinds)> counts;
  const LimitCount& count(LimitKind kind) const { return counts[static_cast<std::size_t>(kind)]; }
  LimitCount& count(LimitKind kind) { return counts[static_cast<std::size_t>(kind)]; }
};

struct LimitRow {
  std::string name;
  std::vector<LimitCell> cells;  // by context, ascending
};

struct LimitResult {
  LimitOptions options;
  std::string text;            // fingerprint of the documents
  std::vector<LimitRow> rows;  // the reference first
};

// Each source reads each document once, and answers each question from there. advance(): one source is
// through with one document. An error from a source.
Result<LimitResult> evaluate_limits(std::span<const LimitDocument> documents, const Tokenizer& tokenizer,
                                    int n_vocab, std::span<const std::unique_ptr<LogitSource>> sources,
                                    const LimitOptions& options, const std::function<void()>& advance);

// Where a cache stops answering.
struct Limit {
  bool judged = false;  // the reference has something right
  int held = 0;         // the longest context up to which at most a tenth of that is lost; 0: none
  int broken = 0;       // the first at which more is; 0: none
};
Limit find_limit(const LimitRow& row, LimitKind kind);

}  // namespace kvant
