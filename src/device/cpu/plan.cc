// Implements kvant_plan_step, which writes what the calls of a step read. The rules of the cache apply
// (cache/step_parts.h).
#include <algorithm>
#include <cstdint>

#include "cache/step_parts.h"
#include "device/cpu/calls.h"

namespace kvant::device::cpu {
namespace {

// Writes the table of one part of a request: n pages, from the request's page first_page on.
void write_table(const kvant_step_table* to, int request, int seq, int first_page, int n) {
  if (to == nullptr) return;
  const int pages_of_block = std::max(to->pages_of_block, 1);
  const std::int32_t* blocks = to->blocks + request * to->block_stride;
  std::int32_t* row = to->table + std::int64_t{seq} * to->n_entries * to->n_pages;
  for (int entry = 0; entry < to->n_entries; ++entry) {
    for (int i = 0; i < std::min(n, to->n_pages); ++i) {
      const int page = first_page + i;
      const int in_turn = to->ring > 0 ? page % to->ring : page;
      const int index = in_turn / pages_of_block * to->n_entries + entry;
      const int place = to->places == nullptr ? index : to->places[2 * index];
      const int offset =
          to->places == nullptr ? in_turn % pages_of_block * to->page_units : to->places[2 * index + 1];
      row[entry * to->n_pages + i] = blocks[place] * to->units + offset;
    }
  }
}

class StepPlan {
 public:
  explicit StepPlan(const kvant_step& step)
      : step_(step),
        rules_{step.window, step.sliding_window, std::max(step.max_queries, 1)},
        n_parts_(step.n_seqs / step.n_requests) {}

  void write() const {
    for (int i = 0; i < step_.n_requests; ++i) {
      const Request request = request_of(i);
      for (int nth = 0; nth < n_parts_; ++nth) write_part(request, nth);
      write_due(request);
    }
    const int end = step_.query_begins == nullptr ? step_.n_rows : step_.query_begins[step_.n_requests];
    if (step_.part_begins != nullptr) step_.part_begins[step_.n_seqs] = end;
    for (int row = end; step_.row_seq != nullptr && row < step_.n_rows; ++row) {
      step_.row_seq[row] = 0;
      step_.row_tail_token[row] = -1;
    }
  }

 private:
  // Padding has no tokens.
  struct Request {
    int number, first_row;
    StepTokens tokens;
  };

  Request request_of(int i) const {
    Request request{i, i * step_.max_new_tokens, {step_.seq_lens[i], step_.max_new_tokens}};
    StepTokens& tokens = request.tokens;
    if (step_.query_begins != nullptr) {
      request.first_row = step_.query_begins[i];
      tokens.n_new = std::min(step_.query_begins[i + 1] - request.first_row, step_.max_new_tokens);
    }
    const bool has_place =
        step_.slots == nullptr || tokens.n_new == 0 || step_.slots[request.first_row + tokens.n_new - 1] >= 0;
    if (!has_place || tokens.n_new == 0) tokens.n_tokens = 0;
    if (tokens.n_tokens > 0)
      tokens.n_sealed = step_.sealed_before == nullptr ? sealed_pages(tokens.first_new(), rules_.window)
                                                       : step_.sealed_before[i];
    return request;
  }

  void write_part(const Request& request, int nth) const {
    const StepTokens& tokens = request.tokens;
    const StepPart part = step_part(rules_, tokens, nth);
    const int seq = request.number * n_parts_ + nth;
    const bool has_sink = step_.sink > 0 && part.sealed_pages > 0;
    if (step_.sealed_pages != nullptr) step_.sealed_pages[seq] = part.sealed_pages;
    if (step_.tail_tokens != nullptr) step_.tail_tokens[seq] = part.tail_tokens;
    if (step_.protected_tokens != nullptr) step_.protected_tokens[seq] = has_sink ? step_.sink : 0;
    if (step_.first_tokens != nullptr) step_.first_tokens[seq] = part.hidden_tokens;
    if (step_.part_begins != nullptr) step_.part_begins[seq] = request.first_row + part.first;
    for (int i = 0; i < part.n && step_.row_seq != nullptr; ++i) {
      step_.row_seq[request.first_row + part.first + i] = seq;
      step_.row_tail_token[request.first_row + part.first + i] =
          std::max(part.tail_tokens - (part.n - i), -1);
    }
    if (tokens.n_tokens == 0 || part.n == 0) return;
    write_table(step_.sealed, request.number, seq, part.first_page, part.sealed_pages);
    // The tail's table also covers tokens after this part, because pages that are due may lie there.
    const int n_tail_pages = pages_for(tokens.n_tokens) - part.first_tail_page();
    write_table(step_.tail, request.number, seq, part.first_tail_page(), n_tail_pages);
    write_table(step_.protected_pages, request.number, seq, 0, 1);
  }

  void write_due(const Request& request) const {
    const int i = request.number;
    const DuePages due = due_pages(rules_, request.tokens);
    const int first_tail_page = step_part(rules_, request.tokens, 0).first_tail_page();
    const bool is_padding = request.tokens.n_tokens == 0, is_due = !is_padding && due.n > 0;
    const int before = step_.sealed_before == nullptr ? 0 : step_.sealed_before[i];
    if (step_.due_tail_page != nullptr) step_.due_tail_page[i] = is_due ? due.first - first_tail_page : -1;
    if (step_.due_sealed_page != nullptr) step_.due_sealed_page[i] = is_due ? due.first : 0;
    if (step_.n_due_pages != nullptr) step_.n_due_pages[i] = is_due ? due.n : 0;
    if (step_.sealed_after != nullptr) step_.sealed_after[i] = is_padding ? before : due.sealed_after;
  }

  const kvant_step& step_;
  StepRules rules_;
  int n_parts_;
};

}  // namespace

void plan_step(const kvant_step& step) {
  StepPlan(step).write();
}

}  // namespace kvant::device::cpu
