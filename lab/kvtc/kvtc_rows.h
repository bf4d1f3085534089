// Reads and writes K and V of whole tokens in the form that KVTC codes. A row holds all layers and KV heads
// of a token side by side, with K turned back to its values before RoPE.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/result.h"
#include "recipe/plan.h"

namespace kvant {

// Gives access to the sealed pages of sequences of one plan. All pages of the plan must be plain bf16, and no
// layer may have a sliding window.
class KvtcRows {
 public:
  // Makes the object for caches of `plan`. `turns` describes how RoPE turns K in each layer. Returns an error
  // for an unsuitable plan.
  static Result<KvtcRows> make(std::shared_ptr<const Plan> plan, std::vector<std::vector<ChannelTurn>> turns);

  // Returns the channels of a row of one side, layer by layer and head by head.
  int width() const { return width_; }
  // Returns the number of sealed pages in a sequence's bytes (Cache::export_sequence).
  int sealed_pages(std::span<const std::byte> sequence) const;
  // Reads the rows of a sealed page, [kPageTokens, width()].
  void read(std::span<const std::byte> sequence, int page, Side side, float* rows) const;
  // Replaces the page's rows by `rows`, [kPageTokens, width()].
  void write(const float* rows, int page, Side side, std::span<std::byte> sequence) const;

 private:
  KvtcRows(std::shared_ptr<const Plan> plan, std::vector<std::vector<ChannelTurn>> turns);

  // Calls visit(layer, row, token, values) for each head and token. `row` points to the head's channels in
  // the token's row, `token` is an index in the sequence, and `values` are the token's values [d] in the
  // head's page.
  template <class Byte, class Rows, class Visit>
  void for_each_head(std::span<Byte> sequence, int page, Side side, Rows* rows, const Visit& visit) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<std::vector<ChannelTurn>> turns_;
  int width_ = 0;
};

}  // namespace kvant
