// K and V of whole tokens, all layers and KV heads side by side and K turned back to before RoPE: what KVTC
// codes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/result.h"
#include "recipe/plan.h"

namespace kvant {

// The tokens that follow each other in a model's cache of this plan, all of whose pages are in bf16 as they
// are, in layers without sliding windows.
class KvtcRows {
 public:
  // turns: of K by RoPE, of each layer. An error: another plan.
  static Result<KvtcRows> make(std::shared_ptr<const Plan> plan, std::vector<std::vector<ChannelTurn>> turns);

  // Channels of a row of one side: layer by layer, head by head.
  int width() const { return width_; }
  // Sealed pages of a sequence's bytes (Cache::export_sequence).
  int sealed_pages(std::span<const std::byte> sequence) const;
  // A sealed page's rows [kPageTokens, width()].
  void read(std::span<const std::byte> sequence, int page, Side side, float* rows) const;
  // Puts such rows in place of the page's.
  void write(const float* rows, int page, Side side, std::span<std::byte> sequence) const;

 private:
  KvtcRows(std::shared_ptr<const Plan> plan, std::vector<std::vector<ChannelTurn>> turns);

  // Calls visit(layer, the row's channels of the head, the token's values in its page [d]).
  template <class Byte, class Rows, class Visit>
  void for_each_head(std::span<Byte> sequence, int page, Side side, Rows* rows, const Visit& visit) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<std::vector<ChannelTurn>> turns_;
  int width_ = 0;
};

}  // namespace kvant
