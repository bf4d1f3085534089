// The layout of a session file: a safetensors container, so that any tool that reads those can look in.
//
//   8 bytes         the length of the header, little-endian
//   the header      JSON, filled up with spaces to a multiple of 8
//     __metadata__  version, model, model_name, recipe, constants (SessionIdentity); of a compact file
//                   predictor and sequence_bytes, too (CompactCoding)
//     tensors       one after another without gaps, in this order:
//       checksums   U64 [1 + chunks]: of the first 8 bytes and the header, then of each chunk of the others
//       tokens      I32 [n]: what the cache holds
//       sequence    U8: the cache's rows, pages in canonical order (cache/sequence_image.cc); of a compact
//       file
//                   as compact/sequence_coder.cc codes them
//       text        U8: the tokens' text, as far as it is known
//
// A chunk is 1 MiB of a tensor, its last one what is left (base/checksum.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "recipe/plan.h"

namespace kvant {

inline constexpr const char* kSessionVersion = "kvant.session/3";  // before: another layout of tcq pages
inline constexpr const char* kCompactSessionVersion = "kvant.session/4";
inline constexpr std::size_t kSessionChunk = 1 << 20;
inline constexpr std::uint64_t kMaxSessionHeader = 4 << 20;

// What a session belongs to. A cache of anything else can't go on with it.
struct SessionIdentity {
  std::string version = kSessionVersion;
  std::string model;       // Engine::fingerprint
  std::string model_name;  // for people: not compared
  std::string recipe;      // written out, with the format of the tail
  std::string constants;   // checksum of the model's constants that the plan uses; "none"
  // Not in the file: the same recipe as files had it where its tail is the usual one, before they named it;
  // empty: its tail is another.
  std::string recipe_with_usual_tail;
};
SessionIdentity session_identity(const Plan& plan, std::string fingerprint, std::string model_name);

// How a compact file's sequence is coded.
struct CompactCoding {
  std::string predictor;             // the checksum, in 16 digits
  std::uint64_t sequence_bytes = 0;  // decoded
};

// Nothing, or an error that names the first field that differs. where: "'chat.session'".
Status check_identity(const SessionIdentity& found, const SessionIdentity& wanted, const std::string& where);

// Where the tensors lie, in bytes from the header's end.
struct SessionLayout {
  struct Part {
    std::uint64_t first = 0, bytes = 0;
    std::uint64_t end() const { return first + bytes; }
    std::uint64_t n_chunks() const { return (bytes + kSessionChunk - 1) / kSessionChunk; }
  };
  Part checksums, tokens, sequence, text;
  std::uint64_t bytes() const { return text.end(); }
};
SessionLayout session_layout(std::uint64_t n_tokens, std::uint64_t sequence_bytes, std::uint64_t text_bytes);

// The first 8 bytes and the header. The identity's version is not looked at.
std::string session_header(const SessionIdentity& identity, const SessionLayout& layout,
                           const std::optional<CompactCoding>& compact = std::nullopt);

struct SessionHeader {
  SessionIdentity identity;
  SessionLayout layout;
  std::optional<CompactCoding> compact;
};
// From the header without its first 8 bytes, of a file with data_bytes behind it. An error: anything else
// than session_header() makes, but for the JSON's form.
Result<SessionHeader> parse_session_header(std::string_view json, std::uint64_t data_bytes);

}  // namespace kvant
