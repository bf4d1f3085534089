// Describes the layout of a session file, which is a safetensors container, so any tool for that format can
// inspect the file.
//
//   8 bytes         the length of the header, little-endian
//   the header      JSON, padded with spaces to a multiple of 8
//     __metadata__  version, model, model_name, recipe, constants (SessionIdentity); compact files
//                   also have predictor and sequence_bytes (CompactCoding)
//     tensors       one after another without gaps, in this order:
//       checksums   U64 [1 + chunks]: of the first 8 bytes and the header, then of each chunk of the others
//       tokens      I32 [n]: the tokens that the cache holds
//       sequence    U8: the cache's rows, pages in canonical order (cache/sequence_image.cc); compact
//                   files have them as coded by compact/sequence_coder.cc
//       text        U8: the tokens' text, as far as it is known
//
// A chunk is 1 MiB of a tensor. The last chunk of a tensor is the remainder (base/checksum.h).
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

// Earlier versions had a different layout of tcq pages.
inline constexpr const char* kSessionVersion = "kvant.session/3";
inline constexpr const char* kCompactSessionVersion = "kvant.session/4";
// The file of this name locks a folder of sessions.
inline constexpr const char* kSessionLock = ".lock";
inline constexpr std::size_t kSessionChunk = 1 << 20;
inline constexpr std::uint64_t kMaxSessionHeader = 4 << 20;

// Identifies a session. A cache with a different identity cannot continue the session.
struct SessionIdentity {
  std::string version = kSessionVersion;
  std::string model;       // the result of Engine::fingerprint
  std::string model_name;  // a name for people, which is not compared
  std::string recipe;      // the full recipe, including the format of the tail
  std::string constants;   // the checksum of the model's constants that the plan uses, or "none"
  // Holds the recipe as older files name it, without the usual tail. The string is empty if the tail is
  // another one. Files do not store the string.
  std::string recipe_with_usual_tail;
  // Messages name the served recipe and the recipe that was asked for. Files do not store these names.
  std::string recipe_name, asked_name;
};
SessionIdentity session_identity(const Plan& plan, std::string fingerprint, std::string model_name);

// Says how the sequence of a compact file is coded.
struct CompactCoding {
  std::string predictor;             // the predictor's checksum in 16 digits
  std::uint64_t sequence_bytes = 0;  // bytes of the decoded sequence
};

// Returns an error that names the first field that differs. `where` names the file in the message, for
// example "'chat.session'".
Status check_identity(const SessionIdentity& found, const SessionIdentity& wanted, const std::string& where);

// Holds the positions of the tensors, in bytes from the header's end.
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

// Returns the first 8 bytes and the header. The version in the header depends on `compact`, not on the
// identity.
std::string session_header(const SessionIdentity& identity, const SessionLayout& layout,
                           const std::optional<CompactCoding>& compact = std::nullopt);

struct SessionHeader {
  SessionIdentity identity;
  SessionLayout layout;
  std::optional<CompactCoding> compact;
};
// Parses the header without its first 8 bytes, for a file with data_bytes after the header. Everything that
// session_header() would not write is an error, except for JSON formatting.
Result<SessionHeader> parse_session_header(std::string_view json, std::uint64_t data_bytes);

}  // namespace kvant
