// PlanReport says what a plan really runs, for people and for JSON: formats, kernels, bytes and fall-backs.
#pragma once

#include <string>
#include <vector>

#include "attention/attention.h"

namespace kvant {

// Describes layers and heads of one side that are treated alike.
struct PlanRow {
  Side side = Side::key;
  std::string layers;      // ranges, for example "0-29"
  std::string kv_heads;    // ranges, for example "0-2"
  std::string transforms;  // names, for example "hadamard"; empty without transforms
  std::string format;
  std::string kernel;
  std::size_t page_bytes = 0;  // bytes of 128 tokens of one KV head
};

// Names something that is served otherwise than the recipe asks, or by a kernel that is not meant for it.
struct Fallback {
  std::string what;    // for example "K of layers 0-29: ch3g64"
  std::string reason;  // one clause
};

struct PlanReport {
  std::string asked;    // The label of the recipe that the user asked for.
  std::string summary;  // The recipe that is served, in one line.
  std::string tail;     // The format of unsealed and protected tokens.
  int sink = 0;         // tokens, in layers with full attention
  int window = 0;       // tokens
  int prefill = 0;      // tokens of a prompt block; 0 means the whole prompt
  CalibrationState calibration = CalibrationState::not_needed;
  std::string calibration_note;  // Says what is missing and how to get it. Empty if nothing is missing.
  std::string encoder;           // The encoder of K if the recipe says encode=shaped, else empty.
  std::vector<PlanRow> rows;
  std::vector<Fallback> fallbacks;
};

PlanReport report_plan(const Plan& plan, const AttentionBackend& backend);

// Returns lines of text: the report, a table of its rows, and its fall-backs.
std::string plan_table(const PlanReport& report);

}  // namespace kvant
