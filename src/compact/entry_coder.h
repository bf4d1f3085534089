// EntryCoder codes the sealed pages of some layers for 128 tokens (cache/page_layout.h) without loss, with
// the help of a predictor.
//
// Layers come in ascending order, and in each layer K's heads and then V's. The parameters of a page precede
// its symbols. Pages without a predictor are stored unchanged.
//
// The first byte of a coded entry says what follows. After 0, the entry itself follows, because coding would
// not make the entry smaller. After 1, the uncoded pages follow one after another, then the byte counts of
// the first three of four symbol streams (u32), then the streams (symbol_coder.h). Rows are distributed to
// the streams in turn, so four rows can be decoded at a time. The other data of a page precede its rows in
// the first stream.
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

// Only one thread at a time may use an EntryCoder.
class EntryCoder {
 public:
  // Plan and predictor must outlive the coder. `layers` are the layers of one entry, in ascending order.
  EntryCoder(const Plan& plan, const Predictor& predictor, std::vector<int> layers);

  std::size_t entry_bytes() const { return layout_.entry_bytes(); }
  // `page` is the index of the page in the sequence. `entry` has entry_bytes() bytes.
  std::vector<std::byte> encode(int page, std::span<const std::byte> entry);
  // Writes entry_bytes() bytes. Returns false if the bytes are not a coded entry; the output is then
  // meaningless.
  bool decode(int page, std::span<const std::byte> coded, std::byte* entry);

 private:
  struct Models;
  using Writers = std::array<SymbolWriter, kRowLanes>;
  using Readers = std::array<SymbolReader, kRowLanes>;
  struct PagePlace {
    int layer, kv_head, index;  // `index` counts the heads of the entry.
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
  // Predicts the row of a token in the buffers of `lane`.
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

  // Holds a row that is about to be written.
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

  // The members below are the state of the current page.
  TrellisShape shape_;
  // [kPageTokens, d]: predicted values in units, without the channels' averages
  std::vector<std::int32_t> expected_;
  std::vector<std::int32_t> averages_;  // [d]
  std::vector<std::int32_t> means_;     // [d], in units
  std::vector<std::int32_t> steps_;     // [d]: as in ValueScale, at the usual gain
  std::vector<std::int32_t> values_;    // [kPageTokens, d]
  GainUnits gains_;
  std::vector<WrittenRow> written_;             // [kPageTokens]
  std::vector<std::int32_t> rows_, row_steps_;  // [kRowLanes, d]
};

}  // namespace kvant
