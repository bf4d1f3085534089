// DeviceProtector turns the tokens that have drawn most attention into protected rows (VQuant section 5). The
// choice is made at the page ends of a step whose pages lie on a device.
//
// The attention of a page's queries decides which tokens are left out of pages that are sealed later, and so
// what later queries see. Rows that are sequences of their own therefore attend in rounds, each up to the end
// of a page of a slice. For prompts whose rows attend in blocks, all pages are sealed first. What is left out
// of a page never changes, so each row still sees what it would see in a round. The device sums the weights
// of the observers. The host chooses tokens from the sums and sends masks back.
#pragma once

#include <memory>
#include <vector>

#include "attention/device_buffer.h"
#include "attention/device_row_tables.h"
#include "cache/device_sequence.h"

namespace kvant {

// Says what is sealed of a slice after its rows of a round have attended.
struct SealPoint {
  int slice = 0;
  int page_end = 0;  // tokens up to the end of the page whose queries observe; 0 if no page ends
  int n_sealed = 0, end_sealed = 0;  // pages before and after
};

struct ProtectionRound {
  std::vector<RowRun> runs;  // Each run has one slice, or slices of one token.
  std::vector<SealPoint> then;
};

// Returns the rounds of a step, in the order of schedule.h. in_blocks says for each slice whether its rows
// attend after all rounds. All pages of such a slice are sealed in the first round, in which no row attends.
std::vector<ProtectionRound> protection_rounds(const Step& step, const std::vector<bool>& in_blocks);

class DeviceProtector {
 public:
  explicit DeviceProtector(std::shared_ptr<PageDevice> device);
  DeviceProtector(const DeviceProtector&) = delete;
  DeviceProtector& operator=(const DeviceProtector&) = delete;

  // Prepares tables for a step whose plan protects by score. An error says that memory is exhausted or that
  // the device has failed.
  Status begin(const Step& step, std::vector<bool> in_blocks);
  const std::vector<ProtectionRound>& rounds() const { return rounds_; }

  // Adds the masks, the protected rows and the addresses of the LSEs of a run's rows to the layer's
  // description and the lengths.
  void add_to(kvant_decode_layer& at_layer, kvant_decode_lengths& of_rows, int layer,
              const RowRun& run) const;
  // Adds the masks and protected rows of all slices, for rows in blocks.
  void add_slices_to(kvant_decode_layer& at_layer, int layer) const;
  // Returns the LSEs of a row's query heads, one after another. Rows are lse_stride numbers apart.
  float* lse_of(int row) const { return reinterpret_cast<float*>(lse_.memory()) + row * lse_stride_; }
  std::int64_t lse_stride() const { return lse_stride_; }
  // Weighs tokens, chooses protected ones, and seals. at_layer has the tables of slices. q is [n_rows,
  // n_heads, head_dim], transformed to match the keys. False means that the step has failed.
  bool seal(Step& step, int layer, const SealPoint& point, const kvant_decode_layer& at_layer,
            const float* q);
  // Keeps the observing queries of open pages. The caller calls this after all rounds of a layer.
  void keep_observers(const Step& step, int layer, const float* q);

 private:
  Status send_tables(const Step& step);
  bool make_keys(Step& step, int layer, const SealPoint& point, const kvant_decode_layer& of_slice);
  bool check(Step& step, const char* doing, kvant_status status) const;
  bool weigh(Step& step, int layer, const SealPoint& point, const kvant_decode_layer& of_slice,
             const float* q);
  bool choose_and_seal(Step& step, int layer, const SealPoint& point, const kvant_decode_layer& of_slice);

  // These functions return places in tables_, which holds masks [n_layers][n_slices][n_heads][n_pages_],
  // counts [n_layers][n_slices][n_heads], and page tables [n_slices][n_protected_].
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
  std::vector<bool> in_blocks_;  // one for each slice
  // Names the layer and slice whose keys lie in keys_ as rows, and counts their sealed pages.
  struct {
    int layer = -1, slice = -1, n_sealed = 0;
  } keys_of_;
  std::int32_t *counts_ = nullptr, *pages_ = nullptr;
  std::vector<ProtectionRound> rounds_;
  int n_slices_ = 0, n_kv_heads_ = 0;
  std::ptrdiff_t lse_stride_ = 0;      // numbers between rows
  int n_pages_ = 1, n_protected_ = 1;  // pages of a slice in the tables
  bool any_rows_ = false;              // True if the store has protected rows.
  // The protected tokens whose tables were sent last, for each slice.
  std::vector<std::shared_ptr<const ProtectedTokens>> sent_;
};

}  // namespace kvant
