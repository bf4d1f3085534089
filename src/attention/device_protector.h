// DeviceProtector: at the ends of pages of a step whose pages lie on a device, the tokens that have drawn
// most attention become protected rows (VQuant section 5).
//
// What a page's queries attend to decides what is left out of pages that are sealed behind them, and so what
// later queries see. Rows that are sequences of their own go in rounds, each with the tokens of a slice up to
// the end of a page. Of prompts whose rows attend in blocks all pages are sealed first: what is left out of a
// page never changes, and each row then sees as many pages as it would in its round. Observers' weights are
// summed on the device and come to the host, which chooses, and sends masks back.
#pragma once

#include <memory>
#include <vector>

#include "attention/device_buffer.h"
#include "attention/device_row_tables.h"
#include "cache/device_sequence.h"

namespace kvant {

// What happens to a slice once its rows of a round have attended.
struct SealPoint {
  int slice = 0;
  int page_end = 0;                  // of the page whose queries observe: tokens; 0: none
  int n_sealed = 0, end_sealed = 0;  // pages: before, and after
};

struct ProtectionRound {
  std::vector<RowRun> runs;  // each of one slice, or of slices of one token
  std::vector<SealPoint> then;
};

// The rounds of a step, in the order of schedule.h. in_blocks: of each slice, whether its rows attend when
// all rounds are over; what it seals is then done before the first one.
std::vector<ProtectionRound> protection_rounds(const Step& step, const std::vector<bool>& in_blocks);

class DeviceProtector {
 public:
  explicit DeviceProtector(std::shared_ptr<PageDevice> device);
  DeviceProtector(const DeviceProtector&) = delete;
  DeviceProtector& operator=(const DeviceProtector&) = delete;

  // Tables for a step whose plan protects by score. An error: memory is exhausted, or the device has failed.
  Status begin(const Step& step, std::vector<bool> in_blocks);
  const std::vector<ProtectionRound>& rounds() const { return rounds_; }

  // Makes a layer's description and the lengths those of a run's rows: masks, protected rows, and where the
  // log-sum-exps go.
  void add_to(kvant_decode_layer& at_layer, kvant_decode_lengths& of_rows, int layer,
              const RowRun& run) const;
  // The same of all slices, for rows in blocks.
  void add_slices_to(kvant_decode_layer& at_layer, int layer) const;
  // The log-sum-exps of a row's query heads, one after another; rows follow at lse_stride.
  float* lse_of(int row) const { return reinterpret_cast<float*>(lse_.memory()) + row * lse_stride_; }
  std::int64_t lse_stride() const { return lse_stride_; }
  // Weighs, chooses and seals. at_layer has the tables of slices. q: [n_rows, n_heads, head_dim], as the
  // keys are transformed. False: the step has failed.
  bool seal(Step& step, int layer, const SealPoint& point, const kvant_decode_layer& at_layer,
            const float* q);
  // Keeps the queries of open pages that observe, when all rounds of a layer are over.
  void keep_observers(const Step& step, int layer, const float* q);

 private:
  Status send_tables(const Step& step);
  bool make_keys(Step& step, int layer, const SealPoint& point, const kvant_decode_layer& of_slice);
  bool check(Step& step, const char* doing, kvant_status status) const;
  bool weigh(Step& step, int layer, const SealPoint& point, const kvant_decode_layer& of_slice,
             const float* q);
  bool choose_and_seal(Step& step, int layer, const SealPoint& point, const kvant_decode_layer& of_slice);

  // Places within tables_: masks [n_layers][n_slices][n_heads][n_pages_], counts
  // [n_layers][n_slices][n_heads], and page tables [n_slices][n_protected_].
  std::size_t head_of(int layer, int slice) const {
    return (static_cast<std::size_t>(layer) * n_slices_ + slice) * n_kv_heads_;
  }
  TokenMask* masks_at(int layer, int slice) const {
    return reinterpret_cast<TokenMask*>(tables_.memory()) + head_of(layer, slice) * n_pages_;
  }
  std::int32_t* counts_at(int layer, int slice) const {
    return static_cast<std::int32_t*>(counts_) + head_of(layer, slice);
  }
  std::int32_t* pages_at(int slice) const { return pages_ + std::ptrdiff_t{slice} * n_protected_; }

  std::shared_ptr<PageDevice> device_;
  DeviceBuffer tables_, lse_, keys_, weights_, indices_;
  std::vector<bool> in_blocks_;  // of each slice
  // Whose keys lie in keys_ as rows, and how many of their pages were sealed.
  struct {
    int layer = -1, slice = -1, n_sealed = 0;
  } keys_of_;
  std::int32_t *counts_ = nullptr, *pages_ = nullptr;
  std::vector<ProtectionRound> rounds_;
  int n_slices_ = 0, n_kv_heads_ = 0;
  std::ptrdiff_t lse_stride_ = 0;      // of rows
  int n_pages_ = 1, n_protected_ = 1;  // of a slice in the tables
  bool any_rows_ = false;              // protected, in the store
  // Whose tables are there: of each slice.
  std::vector<std::shared_ptr<const ProtectedTokens>> sent_;
};

}  // namespace kvant
