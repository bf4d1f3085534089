// libFuzzer target for session files: any bytes give a session or an error, never a crash. Checksums stop
// nearly all damage, and not somebody who computes them: so the header's parser gets the bytes as they are,
// too, and what it takes must come out again. See cmake/fuzz.cmake; the seeds are in fuzz/seeds/session.
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
  // Twice: with any size of the file, then with the one that the header asks for.
  const auto first = kvant::parse_session_header(json, json.size());
  if (!first.ok()) check(!first.error().message.empty());
  const auto layout = kvant::session_layout(json.size() % 7, json.size() % 1000, json.size() % 5);
  const std::string made = kvant::session_header(kWanted, layout);
  const auto again = kvant::parse_session_header(std::string_view(made).substr(8), layout.bytes());
  check(again.ok() && again->layout.bytes() == layout.bytes());
  if (!first.ok() || first->identity.version != kvant::kSessionVersion) return;
  check(first->layout.bytes() == json.size());
}

void read_file(const std::uint8_t* data, std::size_t size) {
  const int memory = memfd_create("fuzz.session", 0);
  if (memory < 0) return;
  if (write(memory, data, size) == static_cast<ssize_t>(size)) {
    const auto file = kvant::SessionFile::open("/proc/self/fd/" + std::to_string(memory), kWanted);
    if (file.ok()) {
      check(file->file_bytes() == static_cast<std::int64_t>(size));
      for (const bool ok : {file->tokens().ok(), file->text().ok(), file->sequence().ok()}) (void)ok;
    } else {
      check(!file.error().message.empty() && file.error().message.find('\n') == std::string::npos);
    }
  }
  close(memory);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_file(data, size);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse_header(bytes);
  if (size > 8) parse_header(bytes.substr(8));
  return 0;
}
