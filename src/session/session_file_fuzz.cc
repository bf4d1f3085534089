// Fuzzes session files with libFuzzer. Any bytes must give a session or an error, never a crash. Checksums
// stop nearly all random damage, but not an attacker who computes them. So the header's parser also gets the
// raw bytes, and a header that the parser accepts must survive a round trip. cmake/fuzz.cmake builds the
// target, and fuzz/seeds/session holds the seeds.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "session/session_file.h"

namespace {

const kvant::SessionIdentity kWanted{
    .model = "0123456789abcdef", .model_name = "a model", .recipe = "k=bf16,v=bf16", .constants = "none"};

void check(bool condition) {
  if (!condition) __builtin_trap();
}

void parse_header(std::string_view json) {
  const auto first = kvant::parse_session_header(json, json.size());
  if (!first.ok()) return check(!first.error().message.empty());
  if (first->identity.version != kvant::kSessionVersion) return;
  check(first->layout.bytes() == json.size());
  // The header written from the parsed values must parse again.
  const std::string made = kvant::session_header(first->identity, first->layout);
  const auto again = kvant::parse_session_header(std::string_view(made).substr(8), first->layout.bytes());
  check(again.ok() && again->layout.bytes() == first->layout.bytes());
}

void read_file(const std::uint8_t* data, std::size_t size) {
  static const int kMemory = memfd_create("fuzz.session", 0);
  static const std::string kPath = "/proc/self/fd/" + std::to_string(kMemory);
  if (ftruncate(kMemory, static_cast<off_t>(size)) == 0 &&
      pwrite(kMemory, data, size, 0) == static_cast<ssize_t>(size)) {
    const auto file = kvant::SessionFile::open(kPath, kWanted);
    if (file.ok()) {
      check(file->file_bytes() == static_cast<std::int64_t>(size));
      for (const bool ok : {file->tokens().ok(), file->text().ok(), file->sequence().ok()}) (void)ok;
    } else {
      check(!file.error().message.empty() && file.error().message.find('\n') == std::string::npos);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_file(data, size);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse_header(bytes);
  if (size > 8) parse_header(bytes.substr(8));
  return 0;
}
