// A Format is the byte layout of a page, with scalar code that encodes and decodes pages. That code is the
// specification, and tests compare the faster code of the backends with it.
//
// A page is kPageTokens consecutive tokens of one KV head and one side (K or V): values [kPageTokens, d],
// token-major. Formats come in families, one file each, listed in formats.def. Code outside a family's file
// depends neither on the family's names nor on its layout, but reads describe() or code_scheme().
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

// Describes how a codebook constant is trained. The centroids are found among the values' sub-vectors.
struct CodebookShape {
  int dim = 0;                 // X, the number of channels of a sub-vector
  int centroids = 0;           // 2^Y for codes of Y bits
  bool per_sub_space = false;  // [d / X][centroids][X], not [centroids][X] for all sub-spaces
  bool unit_vectors = false;   // Training uses the unit vectors x / |x|.
};

inline constexpr int kIntegerBlock = 64;

class ErrorMetric;  // defined in error_metric.h

// Holds the inputs of encode() and decode() besides the page's bytes.
struct PageContext {
  int head_dim = 0;
  HeadConstants constants;  // the constants that Format::needed_constants() names
  CodeTable table;          // the page's code table (Format::code_table)
  // page_tokens is the page's capacity in tokens, at most kPageTokens. Only row-wise formats have shorter
  // pages. A short page consists of the parts in Format::row_parts, each for page_tokens tokens.
  int page_tokens = kPageTokens;
  // `metric` gives the cost of errors, for formats whose shapes_errors() is true (page_metric.h). Null stands
  // for the squared error.
  const ErrorMetric* metric = nullptr;
};

enum class CodeOrder : std::uint8_t;  // code_order.h defines the enumerators.

// Lists the bytes per token in each part of a row-wise page. Part i is [page_tokens][parts[i]] bytes and
// follows part i - 1. A size of 0 means that part i does not exist.
using RowParts = std::array<std::size_t, 4>;

class Format {
 public:
  explicit Format(std::string name) : name_(std::move(name)) {}
  virtual ~Format() = default;
  Format(const Format&) = delete;
  Format& operator=(const Format&) = delete;

  // Returns the format's name, such as "ch4g128".
  const std::string& name() const { return name_; }

  // Returns the bytes of one page, all parameters included. Pages have no padding.
  virtual std::size_t page_bytes(int head_dim) const = 0;

  // Returns the smallest head size in channels that the format supports.
  virtual int least_head_dim() const { return 8; }

  // Names the model constants, such as codebooks, that encode and decode need. Most formats need none.
  virtual std::vector<std::string> needed_constants() const { return {}; }

  // Returns how many numbers each of needed_constants() has for a head of `head_dim` channels.
  virtual std::size_t constant_size(int /*head_dim*/) const { return 0; }

  // Returns how the needed constant is trained if it is a codebook.
  virtual std::optional<CodebookShape> codebook_shape() const { return std::nullopt; }

  // Returns whether encode() uses PageContext::metric to steer errors into directions that the head's queries
  // ignore. Decoding needs no metric.
  virtual bool shapes_errors() const { return false; }

  // Returns whether a token's bytes depend on that token alone. encode_rows() can then write single tokens.
  virtual bool row_wise() const { return false; }
  virtual RowParts row_parts(int /*head_dim*/) const { return {}; }
  // Returns the bytes of a page with capacity for n tokens. The format must be row-wise.
  std::size_t short_page_bytes(int head_dim, int n) const { return page_bytes(head_dim) / kPageTokens * n; }
  // Copies tokens [0, n) of a page into a page of another capacity. The format must be row-wise.
  void copy_rows(const std::byte* from, const PageContext& from_context, int n, const PageContext& to_context,
                 std::byte* to) const;

  // Returns whether a page consists only of 16-bit floating-point numbers. A cache whose only format is plain
  // also keeps unsealed tokens in that format, so sealing changes no value.
  virtual bool plain() const { return false; }

  // Returns the type of a page's numbers. In a plain format the numbers are the values. In other formats,
  // read_parameters() returns the scale of each token's numbers.
  virtual NumberType number_type() const { return NumberType::none; }

  // Returns the largest magnitude that pages store without saturation. A cache refuses larger values for its
  // tail.
  virtual float max_magnitude() const { return std::numeric_limits<float>::max(); }

  // Encodes `values` [kPageTokens, d], which the cache has checked to be finite, as a whole page. All
  // page_bytes(d) bytes of `page` are written. Tokens in `left_out` are protected, which means that the cache
  // stores them elsewhere. Protected tokens widen no range, and their decoded values are finite but
  // arbitrary.
  virtual void encode(const float* values, const TokenMask& left_out, const PageContext& context,
                      std::byte* page) const = 0;

  // Writes `values` [n, d] to tokens [first, first + n) of a page. The format must be row-wise.
  virtual void encode_rows(const float* values, int first, int n, const PageContext& context,
                           std::byte* page) const;

  // Decodes tokens [0, n_tokens) into values [n_tokens, d]. n_tokens is at most the page's capacity. The page
  // of a format that is not row-wise must have been written by encode().
  virtual void decode(const std::byte* page, int n_tokens, const PageContext& context,
                      float* values) const = 0;

  // Returns whether pages hold integers with one scale for each kIntegerBlock tokens (TurboAttention), so q.K
  // and P.V can be integer products. decode_integers writes the integers [n_tokens, d], in -127 .. 127, and
  // the scales [kPageTokens / kIntegerBlock] of such a page. A value is its integer times the scale of the
  // token's block.
  virtual bool integral() const { return false; }
  virtual void decode_integers(const std::byte* page, int n_tokens, const PageContext& context,
                               float* integers, float* scales) const;

  // Describes the pages as data. Returns nothing if page_description.h has no words for the pages.
  virtual std::optional<FormatDescription> describe() const { return std::nullopt; }

  // Describes how values follow from codes, or returns nothing if the formula of code_scheme.h does not hold.
  virtual std::optional<CodeScheme> code_scheme(int /*head_dim*/) const { return std::nullopt; }
  virtual CodeOrder code_order() const { return CodeOrder{}; }
  // Formats with a code scheme or a number type implement code_table and read_parameters. code_table returns
  // the table of the scheme, which is empty if codes are numbers. read_parameters fills the empty vectors of
  // `parameters` with a page's parameters. read_parameters reads no codes of `page`, so the order of the
  // codes does not matter. Only formats with a number type accept a short page. The parameters of tokens
  // beyond the page's capacity are 0.
  virtual CodeTable code_table(const PageContext& /*context*/) const { return {}; }
  virtual void read_parameters(const std::byte* page, const PageContext& context, const CodeTable& table,
                               CodeParameters& parameters) const;

  // Returns the bits per value, all parameters included.
  double bits(int head_dim) const {
    return 8.0 * static_cast<double>(page_bytes(head_dim)) / (static_cast<double>(kPageTokens) * head_dim);
  }

 private:
  std::string name_;
};

// RowWiseFormat is the base of formats whose tokens can be written separately. encode() writes left-out
// tokens like all others, because no token affects another one.
class RowWiseFormat : public Format {
 public:
  using Format::Format;
  bool row_wise() const final { return true; }
  void encode(const float* values, const TokenMask& /*left_out*/, const PageContext& context,
              std::byte* page) const final {
    encode_rows(values, 0, kPageTokens, context, page);
  }
};

// Describes a family of formats, which one file implements.
struct FormatFamily {
  const char* pattern;  // The help prints this pattern, such as "tok<B>g<N>[s|c<P>]".
  const char* summary;  // The help and the docs print this line.
  // Tests, benchmarks and the help enumerate these members. The list has all members that recipes use, and
  // members with extreme parameters.
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
