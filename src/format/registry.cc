// Implements the registry of formats, which expands formats.def and keeps the formats that have been
// requested. The file also defines the functions of Format that most formats leave as they are.
#include <cstring>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/similar_names.h"
#include "format/families.h"

namespace kvant {
namespace {

// Formats live as long as the program because readers hold bare pointers to them.
class ParsedFormats {
 public:
  const Format* find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (const auto known = formats_.find(name); known != formats_.end()) return known->second.get();
    for (const FormatFamily* family : format_families()) {
      if (auto format = family->parse(name)) {
        KVANT_CHECK(format->name() == name, "a format's name must be the text that it was parsed from");
        return (formats_[name] = std::move(format)).get();
      }
    }
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Format>> formats_;
};

}  // namespace

std::span<const FormatFamily* const> format_families() {
  static const FormatFamily* const families[] = {
#define KVANT_FORMAT_FAMILY(family) &family##_family(),
#include "format/formats.def"
#undef KVANT_FORMAT_FAMILY
  };
  return families;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const FormatFamily* family : format_families()) {
    names.insert(names.end(), family->members.begin(), family->members.end());
  }
  return names;
}

const Format* find_format(const std::string& name) {
  static ParsedFormats formats;
  return formats.find(name);
}

std::vector<std::string> similar_format_names(const std::string& name, int n) {
  return similar_names(name, format_names(), n);
}

void Format::decode_integers(const std::byte*, int, const PageContext&, float*, float*) const {
  KVANT_CHECK(false, "decode_integers of a format that is not integral");
}

void Format::read_parameters(const std::byte*, const PageContext&, const CodeTable&, CodeParameters&) const {
  KVANT_CHECK(false, "read_parameters of a format without a code scheme");
}

void Format::encode_rows(const float*, int, int, const PageContext&, std::byte*) const {
  KVANT_CHECK(row_wise(), "encode_rows of a format that is not row-wise");
  KVANT_CHECK(false, "a row-wise format must override encode_rows");
}

void Format::copy_rows(const std::byte* from, const PageContext& from_context, int n,
                       const PageContext& to_context, std::byte* to) const {
  KVANT_CHECK(n <= from_context.page_tokens && n <= to_context.page_tokens, "rows beyond a page's room");
  for (const std::size_t part : row_parts(from_context.head_dim)) {
    if (part == 0) continue;
    std::memcpy(to, from, part * n);
    from += part * from_context.page_tokens;
    to += part * to_context.page_tokens;
  }
}

}  // namespace kvant
