#include "session/session_layout.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/json_reader.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxTokens = 1 << 30;
// The limit, in bytes, is small enough that sums of parts cannot overflow.
constexpr std::uint64_t kMaxPart = std::uint64_t{1} << 44;

struct Tensor {
  const char* name;
  const char* type;
  int element_bytes;
  SessionLayout::Part SessionLayout::*part;
};
constexpr Tensor kTensors[] = {{"checksums", "U64", 8, &SessionLayout::checksums},
                               {"tokens", "I32", 4, &SessionLayout::tokens},
                               {"sequence", "U8", 1, &SessionLayout::sequence},
                               {"text", "U8", 1, &SessionLayout::text}};

struct Field {
  const char* name;
  std::string SessionIdentity::*value;
};
constexpr Field kFields[] = {{"version", &SessionIdentity::version},
                             {"model", &SessionIdentity::model},
                             {"model_name", &SessionIdentity::model_name},
                             {"recipe", &SessionIdentity::recipe},
                             {"constants", &SessionIdentity::constants}};

std::string constants_checksum(const Constants* constants) {
  if (constants == nullptr || constants->empty()) return "none";
  std::vector<std::byte> bytes;
  const auto add = [&bytes](const void* data, std::size_t n) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + n);
  };
  constants->for_each(
      [&](int layer, int kv_head, Side side, const std::string& name, const std::vector<float>& values) {
        const std::int32_t place[] = {layer, kv_head, static_cast<std::int32_t>(side),
                                      static_cast<std::int32_t>(name.size()),
                                      static_cast<std::int32_t>(values.size())};
        add(place, sizeof(place));
        add(name.data(), name.size());
        add(values.data(), values.size() * sizeof(float));
      });
  return fmt::format("{:016x}", checksum(bytes));
}

// Returns whether a tensor has the expected type and begins where the previous tensor ends.
bool read_tensor(const Json& header, const Tensor& tensor, std::uint64_t first, SessionLayout::Part& part) {
  const auto found = header.find(tensor.name);
  if (found == header.end() || !found->is_object() || text_member(*found, "dtype") != tensor.type)
    return false;
  const auto offsets = found->find("data_offsets"), shape = found->find("shape");
  const auto is_list = [&](auto at, std::size_t n) {
    return at != found->end() && at->is_array() && at->size() == n &&
           std::ranges::all_of(*at, [](const Json& item) { return item.is_number_unsigned(); });
  };
  if (!is_list(offsets, 2) || !is_list(shape, 1)) return false;
  const auto begin = (*offsets)[0].get<std::uint64_t>(), end = (*offsets)[1].get<std::uint64_t>();
  const auto n = (*shape)[0].get<std::uint64_t>();
  if (begin != first || end < begin || end - begin > kMaxPart || n > kMaxPart) return false;
  part = {begin, end - begin};
  return part.bytes == n * tensor.element_bytes;
}

std::optional<CompactCoding> compact_coding(const Json& metadata) {
  const auto predictor = text_member(metadata, "predictor"), bytes = text_member(metadata, "sequence_bytes");
  CompactCoding compact;
  if (!predictor || !bytes) return std::nullopt;
  const char* end = bytes->data() + bytes->size();
  const auto read = std::from_chars(bytes->data(), end, compact.sequence_bytes);
  if (read.ec != std::errc() || read.ptr != end || compact.sequence_bytes > kMaxPart) return std::nullopt;
  compact.predictor = *predictor;
  return compact;
}

// Makes a text from a file fit into a message of one line.
std::string on_one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, '?');
  return text;
}

// Returns the name by which users give a session's recipe to --kv.
std::string name_of_recipe(const std::string& text) {
  // A text of a different form may name a file, which must not be read.
  if (!text.starts_with("k=")) return text;
  const auto found = parse_recipe(text);
  if (!found.ok()) return text;
  for (Recipe builtin : builtin_recipes()) {
    builtin.encode = Encode::plain;
    const bool has_tail = !builtin.tail.empty();
    if (!has_tail) builtin.tail = found->tail;
    if (to_string(builtin) != to_string(*found)) continue;
    const bool is_usual =
        has_tail || found->tail.empty() || found->tail == "bf16" || found->tail == found->k.format;
    return is_usual ? builtin.name : builtin.name + ",tail=" + found->tail;
  }
  return text;
}

Error other_recipe(const SessionIdentity& found, const SessionIdentity& wanted, const std::string& where) {
  const std::string name = on_one_line(name_of_recipe(found.recipe));
  if (name == wanted.asked_name && name != wanted.recipe_name) {
    return error(
        "the session {} needs the calibration of {}, with which it began and which is missing: give its file "
        "with --calibration, or start a new session",
        where, name);
  }
  return error(
      "the session {} is of another recipe: it began with {}, not with {}; continue it with --kv '{}', or "
      "start a new session",
      where, name, wanted.recipe_name.empty() ? wanted.recipe : wanted.recipe_name, name);
}

}  // namespace

SessionIdentity session_identity(const Plan& plan, std::string fingerprint, std::string model_name) {
  Recipe named = plan.recipe, usual = plan.recipe;
  named.tail = plan.tail->name();
  usual.tail.clear();
  // The encoder only says how pages were encoded, which readers need not know.
  named.encode = usual.encode = Encode::plain;
  return {.model = std::move(fingerprint),
          .model_name = std::move(model_name),
          .recipe = to_string(named),
          .constants = constants_checksum(plan.constants.get()),
          .recipe_with_usual_tail = plan.tail == usual_tail(plan) ? to_string(usual) : "",
          .recipe_name = plan.name,
          .asked_name = label(plan.asked)};
}

Status check_identity(const SessionIdentity& found, const SessionIdentity& wanted, const std::string& where) {
  if (found.version != wanted.version && found.version != kCompactSessionVersion) {
    return error("the session {} is of version '{}', and this kvant reads '{}': start a new one", where,
                 on_one_line(found.version), wanted.version);
  }
  if (found.model != wanted.model) {
    return error(
        "the session {} is of another model: '{}' ({}), not '{}' ({}); start a new one, or load that model",
        where, on_one_line(found.model_name), on_one_line(found.model), wanted.model_name, wanted.model);
  }
  if (found.recipe != wanted.recipe &&
      (wanted.recipe_with_usual_tail.empty() || found.recipe != wanted.recipe_with_usual_tail)) {
    return other_recipe(found, wanted, where);
  }
  if (found.constants != wanted.constants) {
    return error(
        "the session {} was made with other constants ({}, not {}): the model has been recalibrated since, "
        "or --calibration differs; start a new one",
        where, on_one_line(found.constants), wanted.constants);
  }
  return {};
}

SessionLayout session_layout(std::uint64_t n_tokens, std::uint64_t sequence_bytes, std::uint64_t text_bytes) {
  SessionLayout layout;
  layout.tokens.bytes = n_tokens * sizeof(std::int32_t);
  layout.sequence.bytes = sequence_bytes;
  layout.text.bytes = text_bytes;
  layout.checksums.bytes =
      8 * (1 + layout.tokens.n_chunks() + layout.sequence.n_chunks() + layout.text.n_chunks());
  layout.tokens.first = layout.checksums.end();
  layout.sequence.first = layout.tokens.end();
  layout.text.first = layout.sequence.end();
  return layout;
}

std::string session_header(const SessionIdentity& identity, const SessionLayout& layout,
                           const std::optional<CompactCoding>& compact) {
  Json metadata;
  for (const Field& field : kFields) metadata[field.name] = identity.*field.value;
  metadata["version"] = compact ? kCompactSessionVersion : kSessionVersion;
  if (compact) {
    metadata["predictor"] = compact->predictor;
    metadata["sequence_bytes"] = std::to_string(compact->sequence_bytes);  // All metadata values are strings.
  }
  Json header = {{"__metadata__", std::move(metadata)}};
  for (const Tensor& tensor : kTensors) {
    const SessionLayout::Part& part = layout.*tensor.part;
    header[tensor.name] = {{"dtype", tensor.type},
                           {"shape", {part.bytes / tensor.element_bytes}},
                           {"data_offsets", {part.first, part.end()}}};
  }
  std::string json = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  json.resize((json.size() + 7) / 8 * 8, ' ');
  static_assert(std::endian::native == std::endian::little);
  const std::uint64_t length = json.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + json;
}

Result<SessionHeader> parse_session_header(std::string_view json, std::uint64_t data_bytes) {
  const auto parsed = parse_json(json);
  if (!parsed.ok()) return parsed.error();
  const auto metadata = parsed->is_object() ? parsed->find("__metadata__") : parsed->end();
  if (metadata == parsed->end()) return error("it has no metadata");
  SessionHeader header;
  for (const Field& field : kFields) {
    auto value = text_member(*metadata, field.name);
    if (!value) return error("its metadata have no '{}'", field.name);
    header.identity.*field.value = std::move(*value);
  }
  if (header.identity.version == kCompactSessionVersion) {
    header.compact = compact_coding(*metadata);
    if (!header.compact) return error("its metadata don't say how it is coded");
  } else if (header.identity.version != kSessionVersion) {
    return header;  // The tensors of a different version may differ.
  }
  std::uint64_t end = 0;
  for (const Tensor& tensor : kTensors) {
    SessionLayout::Part& part = header.layout.*tensor.part;
    if (!read_tensor(*parsed, tensor, end, part))
      return error("its tensor '{}' is not as it must be", tensor.name);
    end = part.end();
  }
  const SessionLayout& found = header.layout;
  const std::uint64_t n_tokens = found.tokens.bytes / sizeof(std::int32_t);
  const SessionLayout expected = session_layout(n_tokens, found.sequence.bytes, found.text.bytes);
  if (n_tokens > kMaxTokens || found.checksums.bytes != expected.checksums.bytes)
    return error("its sizes are impossible");
  if (end != data_bytes) return error("it has {} bytes of data instead of {}", data_bytes, end);
  return header;
}

}  // namespace kvant
