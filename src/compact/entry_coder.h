// EntryCoder: the sealed pages of some layers and 128 tokens (cache/page_layout.h), coded with a predictor.
//
// Nothing is lost: decoding gives the same bytes. Layers come in ascending order, in each K's heads and then
// V's; of each page its parameters, then its symbols. Pages that no predictor is for are stored as they are.
//
// Bytes of a coded entry: 0 and the entry itself, where coding would not make it smaller; or 1, the pages
// that are stored as they are, one after another, the bytes of each of four streams of symbols but the last
// (u32), and these streams (symbol_coder.h): rows take turns, so that four can be read at a time; what else
// there is of a page comes before its rows in the first stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_layout.h"
#include "compact/page_prediction.h"
#include "compact/predictor.h"
#include "compact/row_coder.h"
#include "compact/trellis_page.h"

namespace kvant {

// Used by one thread at a time.
class EntryCoder {
 public:
  // Plan and predictor outlive it. layers: of one entry, ascending.
  EntryCoder(const Plan& plan, const Predictor& predictor, std::vector<int> layers);

  std::size_t entry_bytes() const { return layout_.entry_bytes(); }
  // page: of the sequence. entry: entry_bytes().
  std::vector<std::byte> encode(int page, std::span<const std::byte> entry);
  // Writes entry_bytes(). False: these bytes are no coded entry; what was written means nothing then.
  bool decode(int page, std::span<const std::byte> coded, std::byte* entry);

 private:
  struct Models;
  using Writers = std::array<SymbolWriter, kRowLanes>;
  using Readers = std::array<SymbolReader, kRowLanes>;
  struct PagePlace {
    int layer, kv_head, index;  // index: among the heads of the entry
    Side side;
  };
  template <class Visit>
  void for_each_page(const Visit& visit);
  template <class Stream>
  void code_parameters(Stream& stream, const PagePlace& at, Models& models, TrellisParameters& parameters);
  template <class Stream>
  int code_scale(Stream& stream, int scale) const {
    return static_cast<int>(stream.bits(4, static_cast<std::uint32_t>(scale)));
  }
  void prepare_page(const PagePlace& at);
  // What is expected of a token's row; lane: whose buffers it uses.
  ExpectedRow expected_row(const PagePlace& at, int token, int gain_code, int scale, int lane);
  int find_scale(const PagePlace& at, const TrellisParameters& parameters, const std::byte* page);
  void write_page(Writers& to, const PagePlace& at, Models& models, const std::byte* page);
  void read_page(Readers& from, const PagePlace& at, Models& models, std::byte* page);
  void tell(const PagePlace& at, const TrellisParameters& parameters, const std::byte* page);
  const HeadPredictor& head(const PagePlace& at) const {
    return predictor_.layers[at.layer].head(at.side, at.kv_head);
  }
  int exponent(const PagePlace& at) const {
    return predictor_.layers[at.layer].exponents[static_cast<int>(at.side)];
  }

  // A row that is about to be written.
  struct WrittenRow {
    std::array<std::uint16_t, kMaxHeadDim> symbols;
    std::array<std::uint32_t, kMaxHeadDim> firsts, sizes;
    bool uncoded;
  };

  const Plan& plan_;
  const Predictor& predictor_;
  std::vector<int> layers_;
  PageLayout layout_;
  PagePrediction prediction_;

  // Of the page at hand.
  TrellisShape shape_;
  std::vector<std::int32_t> expected_;  // [kPageTokens, d]: in units, less the channels' averages
  std::vector<std::int32_t> averages_;  // [d]
  std::vector<std::int32_t> means_;     // [d], in units
  std::vector<std::int32_t> steps_;     // [d]: of ValueScale, at the usual gain
  std::vector<std::int32_t> values_;    // [kPageTokens, d]
  GainUnits gains_;
  std::vector<WrittenRow> written_;             // [kPageTokens]
  std::vector<std::int32_t> rows_, row_steps_;  // [kRowLanes, d]
};

}  // namespace kvant
