// Format: the byte layout of a page, with its scalar encode and decode (the specification).
//
// A page is kPageTokens consecutive tokens of one KV head, one side: values [kPageTokens, d], token-major.
// Formats come in families, one file each, listed in formats.def. Nothing outside a family's file may
// depend on its name or layout; fast backends supply leaves for a family in their own rooms.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/token_mask.h"
#include "format/code_scheme.h"
#include "format/page_description.h"
#include "transform/constants.h"

namespace kvant {

// How a codebook constant is trained: centroids of the values' sub-vectors.
struct CodebookShape {
  int dim = 0;                 // X: channels of a sub-vector
  int centroids = 0;           // 2^Y
  bool per_sub_space = false;  // [d / X][centroids][X] instead of [centroids][X] for all sub-spaces
  bool unit_vectors = false;   // of the unit vectors x / |x|
};

// Tokens that share a scale in integral formats.
inline constexpr int kIntegerBlock = 64;

class ErrorMetric;  // error_metric.h

// What a page's bytes don't carry themselves.
struct PageContext {
  int head_dim = 0;
  HeadConstants constants;  // codebooks and the like; unused by most formats
  CodeTable table;          // of sealed pages: Format::code_table
  // Tokens that the page has room for: fewer than kPageTokens in a short page, which only row-wise formats
  // have. Its parts are those of a whole page (Format::row_parts), each for so many tokens.
  int page_tokens = kPageTokens;
  // What errors cost, for encode() of formats that shape them (page_metric.h); null: their squares.
  const ErrorMetric* metric = nullptr;
};

enum class CodeOrder : std::uint8_t;  // code_order.h

// Bytes that a token takes in each part of a row-wise page: part i is [page_tokens][parts[i]] and begins
// where the one before ends. 0: no such part.
using RowParts = std::array<std::size_t, 4>;

class Format {
 public:
  explicit Format(std::string name) : name_(std::move(name)) {}
  virtual ~Format() = default;
  Format(const Format&) = delete;
  Format& operator=(const Format&) = delete;

  // The canonical name, such as "ch4g128".
  const std::string& name() const { return name_; }

  // Bytes of one page, all parameters included. A multiple of 1 byte, no padding.
  virtual std::size_t page_bytes(int head_dim) const = 0;

  // Heads of fewer channels have no pages of this format.
  virtual int least_head_dim() const { return 8; }

  // Names of the model constants that encode and decode need (design: codebooks); empty for most.
  virtual std::vector<std::string> needed_constants() const { return {}; }

  // Numbers in each of these arrays for a head of `head_dim` channels.
  virtual std::size_t constant_size(int /*head_dim*/) const { return 0; }

  // What the needed constant is trained as, if it is a codebook.
  virtual std::optional<CodebookShape> codebook_shape() const { return std::nullopt; }

  // Whether encode() lets errors fall where a head's queries don't look, where the context has a metric of
  // them. Pages are the same to whoever reads them.
  virtual bool shapes_errors() const { return false; }

  // Whether tokens can be written one by one (encode_rows): a row's bytes depend on that row alone.
  virtual bool row_wise() const { return false; }
  virtual RowParts row_parts(int /*head_dim*/) const { return {}; }
  // Row-wise formats: bytes of a page with room for n tokens.
  std::size_t short_page_bytes(int head_dim, int n) const { return page_bytes(head_dim) / kPageTokens * n; }
  // Row-wise formats: copies tokens [0, n) as they are stored into a page with another room.
  void copy_rows(const std::byte* from, const PageContext& from_context, int n, const PageContext& to_context,
                 std::byte* to) const;

  // Whether values are stored as 16-bit floating-point numbers, without parameters. A cache of nothing but
  // one plain format keeps its unsealed tokens in it too, so that sealing changes nothing.
  virtual bool plain() const { return false; }

  // The type of a page's numbers: values, where the format is plain; else times each token's scale, which
  // read_parameters gives.
  virtual NumberType number_type() const { return NumberType::none; }

  // The largest magnitude that is stored faithfully; what lies beyond saturates. A tail refuses such values.
  virtual float max_magnitude() const { return std::numeric_limits<float>::max(); }

  // Encodes a whole page. values: [kPageTokens, d], finite (the cache has checked). Tokens in `left_out`
  // are protected: they widen no range, and their decoded values are finite but arbitrary.
  // page: page_bytes(d) bytes, all of them written.
  virtual void encode(const float* values, const TokenMask& left_out, const PageContext& context,
                      std::byte* page) const = 0;

  // Row-wise formats only: writes tokens [first, first + n) of a page; values: [n, d].
  virtual void encode_rows(const float* values, int first, int n, const PageContext& context,
                           std::byte* page) const;

  // Decodes tokens [0, n_tokens) into values [n_tokens, d]. A format that isn't row-wise may only be asked
  // for pages that encode has written, but any n_tokens <= kPageTokens.
  virtual void decode(const std::byte* page, int n_tokens, const PageContext& context,
                      float* values) const = 0;

  // Whether pages hold integers with one scale for each kIntegerBlock tokens (TurboAttention), so that
  // q.K and P.V can be integer products. Then decode_integers gives them: integers [n_tokens, d] in +-127,
  // scales [kPageTokens / kIntegerBlock]; value = integer * scale of its block.
  virtual bool integral() const { return false; }
  virtual void decode_integers(const std::byte* page, int n_tokens, const PageContext& context,
                               float* integers, float* scales) const;

  // What its pages hold, as data (page_description.h); nothing where that has no words for it.
  virtual std::optional<FormatDescription> describe() const { return std::nullopt; }

  // How values follow from codes (code_scheme.h); nothing where they don't in that way.
  virtual std::optional<CodeScheme> code_scheme(int /*head_dim*/) const { return std::nullopt; }
  virtual CodeOrder code_order() const { return CodeOrder{}; }
  // Formats with a scheme or a number type: the table, empty for plain numbers; and a page's parameters, into
  // empty vectors. Only the parameters of `page` are read, wherever its codes may be. Short pages: formats
  // with a number type only; parameters of tokens that the page has no room for are 0.
  virtual CodeTable code_table(const PageContext& /*context*/) const { return {}; }
  virtual void read_parameters(const std::byte* page, const PageContext& context, const CodeTable& table,
                               CodeParameters& parameters) const;

  // Bits for each element, all parameters included.
  double bits(int head_dim) const {
    return 8.0 * static_cast<double>(page_bytes(head_dim)) / (static_cast<double>(kPageTokens) * head_dim);
  }

 private:
  std::string name_;
};

// A format whose tokens can be written one by one, left-out ones like the others: a whole page is its rows.
class RowWiseFormat : public Format {
 public:
  using Format::Format;
  bool row_wise() const final { return true; }
  void encode(const float* values, const TokenMask& /*left_out*/, const PageContext& context,
              std::byte* page) const final {
    encode_rows(values, 0, kPageTokens, context, page);
  }
};

// A family of formats: one file.
struct FormatFamily {
  const char* pattern;  // for the help: "tok<B>g<N>[s|c<P>]"
  const char* summary;  // one line for the help and the docs
  // The members that tests, benchmarks and the help enumerate: all that recipes use, and the extremes.
  std::vector<std::string> members;
  // The format called `name`, or null when the name isn't of this family.
  std::unique_ptr<Format> (*parse)(const std::string& name);
};

// All families, in the order of formats.def.
std::span<const FormatFamily* const> format_families();
// The members of all families.
std::vector<std::string> format_names();
// The format called `name`, or null. Formats live as long as the program; equal names give equal pointers.
const Format* find_format(const std::string& name);
// Up to n known names that resemble `name`, nearest first: for messages.
std::vector<std::string> similar_format_names(const std::string& name, int n);

}  // namespace kvant
