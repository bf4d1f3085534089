// PlanReport: what a plan really runs, for people and for JSON: formats, kernels, bytes and fall-backs.
#pragma once

#include <string>
#include <vector>

#include "attention/attention.h"

namespace kvant {

// Layers and heads of one side that are treated alike.
struct PlanRow {
  Side side = Side::key;
  std::string layers;      // "0-29"
  std::string kv_heads;    // "0-2"
  std::string transforms;  // "hadamard", "" for none
  std::string format;
  std::string kernel;
  std::size_t page_bytes = 0;  // of 128 tokens of one KV head
};

// Where pages are not served by a kernel meant for them.
struct Fallback {
  std::string what;    // "K of layers 0-29: ch3g64"
  std::string reason;  // one clause
};

struct PlanReport {
  std::string asked;    // the label of the recipe that was asked for
  std::string summary;  // the recipe that is served, in one line
  std::string tail;     // the format of unsealed and protected tokens
  int sink = 0;         // tokens, of layers with full attention
  int window = 0;       // tokens
  int prefill = 0;      // tokens of a prompt block; 0: the whole prompt
  CalibrationState calibration = CalibrationState::not_needed;
  std::string calibration_note;  // what is missing and how to get it; empty: nothing is
  std::string encoder;           // of K, where the recipe says encode=shaped; else empty
  std::vector<PlanRow> rows;
  std::vector<Fallback> fallbacks;
};

PlanReport report_plan(const Plan& plan, const AttentionBackend& backend);

// The report as lines of text, a table of its rows, and its fall-backs.
std::string plan_table(const PlanReport& report);

}  // namespace kvant
