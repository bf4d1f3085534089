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

// Describes how a codebook constant is trained: as centroids of the values' sub-vectors.
struct CodebookShape {
  int dim = 0;                 // X: channels of a sub-vector
  int centroids = 0;           // 2^Y
  bool per_sub_space = false;  // [d / X][centroids][X] instead of [centroids][X] for all sub-spaces
  bool unit_vectors = false;   // trained on the unit vectors x / |x|
};

inline constexpr int kIntegerBlock = 64;

class ErrorMetric;  // error_metric.h

// What encode and decode need besides the page's bytes.
struct PageContext {
  int head_dim = 0;
  HeadConstants constants;  // codebooks and the like; unused by most formats
  CodeTable table;          // of quantized pages: Format::code_table
  // The page's capacity in tokens. It is below kPageTokens in a short page, which only row-wise formats have.
  // A short page has the parts of a whole page (Format::row_parts), each for that many tokens.
  int page_tokens = kPageTokens;
  // What errors cost, for encode() of formats that shape errors (page_metric.h). Null means squared error.
  const ErrorMetric* metric = nullptr;
};

enum class CodeOrder : std::uint8_t;  // code_order.h

// Bytes per token in each part of a row-wise page: part i is [page_tokens][parts[i]] and follows the part
// before it. 0 means that the part does not exist.
using RowParts = std::array<std::size_t, 4>;

class Format {
 public:
  explicit Format(std::string name) : name_(std::move(name)) {}
  virtual ~Format() = default;
  Format(const Format&) = delete;
  Format& operator=(const Format&) = delete;

  // The canonical name, such as "ch4g128".
  const std::string& name() const { return name_; }

  // Returns the bytes of one page, all parameters included. There is no padding.
  virtual std::size_t page_bytes(int head_dim) const = 0;

  // The smallest head size that this format supports.
  virtual int least_head_dim() const { return 8; }

  // Names the model constants that encode and decode need, such as codebooks. Most formats need none.
  virtual std::vector<std::string> needed_constants() const { return {}; }

  // The size of each of these constants for a head of `head_dim` channels.
  virtual std::size_t constant_size(int /*head_dim*/) const { return 0; }

  // How the needed constant is trained, if it is a codebook.
  virtual std::optional<CodebookShape> codebook_shape() const { return std::nullopt; }

  // Whether encode() steers errors into directions that the head's queries ignore, given a metric in the
  // context. Pages are decoded the same way in either case.
  virtual bool shapes_errors() const { return false; }

  // Whether tokens can be written one by one (encode_rows): a row's bytes depend on that row alone.
  virtual bool row_wise() const { return false; }
  virtual RowParts row_parts(int /*head_dim*/) const { return {}; }
  // Bytes of a page with capacity for n tokens (row-wise formats only).
  std::size_t short_page_bytes(int head_dim, int n) const { return page_bytes(head_dim) / kPageTokens * n; }
  // Copies the stored tokens [0, n) into a page of another capacity (row-wise formats only).
  void copy_rows(const std::byte* from, const PageContext& from_context, int n, const PageContext& to_context,
                 std::byte* to) const;

  // Whether values are stored as 16-bit floating-point numbers, without parameters. A cache of nothing but
  // one plain format keeps its unsealed tokens in it too, so sealing changes nothing.
  virtual bool plain() const { return false; }

  // The type of a page's numbers. They are the values if the format is plain; otherwise read_parameters gives
  // the scale of each token.
  virtual NumberType number_type() const { return NumberType::none; }

  // The largest magnitude that is stored faithfully; larger values saturate. A tail rejects them.
  virtual float max_magnitude() const { return std::numeric_limits<float>::max(); }

  // Encodes a whole page. values: [kPageTokens, d], finite (the cache has checked). Tokens in `left_out`
  // are protected: they widen no range, and their decoded values are finite but arbitrary.
  // page: page_bytes(d) bytes, all of them written.
  virtual void encode(const float* values, const TokenMask& left_out, const PageContext& context,
                      std::byte* page) const = 0;

  // Writes tokens [first, first + n) of a page (row-wise formats only). values: [n, d].
  virtual void encode_rows(const float* values, int first, int n, const PageContext& context,
                           std::byte* page) const;

  // Decodes tokens [0, n_tokens) into values [n_tokens, d]. A format that isn't row-wise may only be asked
  // for pages that encode has written, but any n_tokens <= kPageTokens.
  virtual void decode(const std::byte* page, int n_tokens, const PageContext& context,
                      float* values) const = 0;

  // Whether pages hold integers with one scale for each kIntegerBlock tokens (TurboAttention), so q.K and P.V
  // can be integer products. If so, decode_integers returns them: integers [n_tokens, d] within +-127 and
  // scales [kPageTokens / kIntegerBlock]; value = integer * scale of its block.
  virtual bool integral() const { return false; }
  virtual void decode_integers(const std::byte* page, int n_tokens, const PageContext& context,
                               float* integers, float* scales) const;

  // Describes the pages as data (page_description.h), or returns nothing if that cannot describe them.
  virtual std::optional<FormatDescription> describe() const { return std::nullopt; }

  // Describes how values follow from codes (code_scheme.h), or returns nothing if they follow otherwise.
  virtual std::optional<CodeScheme> code_scheme(int /*head_dim*/) const { return std::nullopt; }
  virtual CodeOrder code_order() const { return CodeOrder{}; }
  // For formats with a scheme or a number type: code_table returns the table, empty for plain numbers, and
  // read_parameters fills empty vectors with a page's parameters. It reads only the parameters of `page`,
  // whatever the order of its codes. A short page works for formats with a number type only; parameters of
  // tokens beyond its capacity are 0.
  virtual CodeTable code_table(const PageContext& /*context*/) const { return {}; }
  virtual void read_parameters(const std::byte* page, const PageContext& context, const CodeTable& table,
                               CodeParameters& parameters) const;

  // Bits per value, all parameters included.
  double bits(int head_dim) const {
    return 8.0 * static_cast<double>(page_bytes(head_dim)) / (static_cast<double>(kPageTokens) * head_dim);
  }

 private:
  std::string name_;
};

// A format whose tokens can be written one by one. A whole page is written as its rows, left-out tokens
// included.
class RowWiseFormat : public Format {
 public:
  using Format::Format;
  bool row_wise() const final { return true; }
  void encode(const float* values, const TokenMask& /*left_out*/, const PageContext& context,
              std::byte* page) const final {
    encode_rows(values, 0, kPageTokens, context, page);
  }
};

// Describes a family of formats, which is implemented in one file.
struct FormatFamily {
  const char* pattern;  // for the help: "tok<B>g<N>[s|c<P>]"
  const char* summary;  // one line for the help and the docs
  // The members that tests, benchmarks and the help list: all that recipes use, and the extremes.
  std::vector<std::string> members;
  // Returns the format called `name`, or null if the name does not belong to this family.
  std::unique_ptr<Format> (*parse)(const std::string& name);
};

// Returns all families, in the order of formats.def.
std::span<const FormatFamily* const> format_families();
// Returns the members of all families.
std::vector<std::string> format_names();
// Returns the format called `name`, or null. Formats live as long as the program, and equal names give equal
// pointers.
const Format* find_format(const std::string& name);
// Returns up to n known names that resemble `name`, nearest first, for error messages.
std::vector<std::string> similar_format_names(const std::string& name, int n);

}  // namespace kvant
