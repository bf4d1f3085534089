// Feeds arbitrary bytes to the JSON reader. An accepted value must allow copies, comparisons and printing,
// and its text must be readable again.
#include <cstddef>
#include <cstdint>

#include "base/json_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto json = kvant::parse_json({reinterpret_cast<const char*>(data), size});
  if (!json.ok()) return 0;
  const nlohmann::ordered_json copy = *json;
  KVANT_CHECK(copy == *json, "a copy differs");
  const auto again = kvant::parse_json(copy.dump());
  KVANT_CHECK(again.ok(), "what was printed is refused");
  for (const char* key : {"a", "schema"}) {
    (void)kvant::text_member(copy, key);
    (void)kvant::number_member(copy, key);
    (void)kvant::numbers_member(copy, key);
  }
  return 0;
}
