// Registers the pairs of formats that have no kernel of their own. An entry is made when a caller first
// requests it. The entry then stays forever, because callers keep the name in it.
#include <cstring>
#include <memory>
#include <string>

#include "device/cuda/common/limits.h"
#include "device/cuda/decode/decode_registry.h"
#include "device/cuda/page/growing_list.h"
#include "device/cuda/page/known_format.h"
#include "device/cuda/page/page_format.h"

namespace kvant::cuda {

DecodeKernel generic_kernel_64();
DecodeKernel generic_kernel_128();
DecodeKernel generic_kernel_256();
DecodeKernel generic_kernel_512();

namespace {

// Holds the texts to which the kernel points.
struct GenericEntry {
  std::string key, value, name;
  DecodeKernel kernel{};
};

// Describes one side's pages for the generic kernel.
AnyPage describe(const char* name, const PageFormat& format, int d) {
  AnyPage page{};
  page.format = format;
  page.code_bytes = format.plain() ? 0 : code_bytes(format.layout, d);
  if (format.kind == CodeKind::vector)
    page.codebook_bytes = 2 * static_cast<int>(find_known_format(name)->format->constant_size(d));
  page.table_at = -1;
  constexpr int kIntegerTokens = 64;
  const int block = format.grid == GridAxis::of_integers ? kIntegerTokens : format.group;
  page.block_shift = block >= 128 ? 2 : block >= 64 ? 1 : 0;
  const int bits = format.layout.bits;
  page.stretch = format.symmetric && bits == 1 ? 2 : 1;
  page.zero_factor = format.symmetric ? -static_cast<float>(1 << bits) / 2 : 1;
  if (format.grid == GridAxis::of_tokens && format.groups(d) == 1) {
    page.format.grid = GridAxis::none;
    page.format.factor = TokenFactor::grid;
  }
  page.unit = 1;
  if (page.format.grid == GridAxis::of_tokens) {
    // The page is decoded to halves of values. 128 times the scale of an 8-bit number, or twice the scale of
    // a 1-bit number, may exceed the range of half precision although the values do not.
    page.unit = 2;
    page.stretch /= page.unit;
    page.zero_factor /= page.unit;
  }
  return page;
}

int device_bytes(const char* name, int d) {
  return round_up_16(static_cast<int>(find_known_format(name)->format->page_bytes(d)));
}

std::unique_ptr<const GenericEntry> make_entry(const char* key_format, const PageFormat& key,
                                               const char* value_format, const PageFormat& value,
                                               int head_dim) {
  auto entry = std::make_unique<GenericEntry>();
  entry->key = key_format;
  entry->value = value_format;
  entry->name = "cuda/sm90/generic:" + entry->key + "+" + entry->value;
  DecodeKernel& kernel = entry->kernel;
  kernel = head_dim == 64    ? generic_kernel_64()
           : head_dim == 128 ? generic_kernel_128()
           : head_dim == 256 ? generic_kernel_256()
                             : generic_kernel_512();
  kernel.name = entry->name.c_str();
  kernel.key_format = entry->key.c_str();
  kernel.value_format = entry->value.c_str();
  kernel.key_bytes = device_bytes(key_format, head_dim);
  kernel.value_bytes = device_bytes(value_format, head_dim);
  kernel.key_page = describe(key_format, key, head_dim);
  kernel.value_page = describe(value_format, value, head_dim);
  return entry;
}

// Entries are stored in buckets, because there are thousands of pairs and callers request them individually.
constexpr unsigned kBuckets = 256;
unsigned bucket_of(const char* key_format, const char* value_format) {
  unsigned hash = 0;
  for (const char* name : {key_format, value_format})
    for (; *name != 0; ++name) hash = hash * 31 + static_cast<unsigned char>(*name);
  return hash % kBuckets;
}

}  // namespace

const DecodeKernel* find_generic_kernel(const char* key_format, const char* value_format, int head_dim) {
  static constinit GrowingList<std::unique_ptr<const GenericEntry>> buckets[kBuckets];
  auto& entries = buckets[bucket_of(key_format, value_format)];
  const auto* entry = entries.find([&](const auto& e) {
    return e->kernel.head_dim == head_dim && std::strcmp(e->kernel.key_format, key_format) == 0 &&
           std::strcmp(e->kernel.value_format, value_format) == 0;
  });
  if (entry != nullptr) return &(*entry)->kernel;
  PageFormat key, value;
  if (!is_head_dim(head_dim) || !find_page_format(key_format, head_dim, key) ||
      !find_page_format(value_format, head_dim, value))
    return nullptr;
  return &(*entries.add(make_entry(key_format, key, value_format, value, head_dim)))->kernel;
}

const char* name_on(const Gpu& gpu, const DecodeKernel& kernel) {
  if (gpu.has.ptx_version == kH100.has.ptx_version) return kernel.name;
  struct Name {
    const char *on_hopper, *architecture;
    std::unique_ptr<const std::string> here;
  };
  static constinit GrowingList<Name> names;
  const Name* name =
      names.find([&](const Name& n) { return n.on_hopper == kernel.name && n.architecture == gpu.has.name; });
  if (name == nullptr) {
    std::string here = kernel.name;
    here.replace(here.find(kH100.has.name), std::strlen(kH100.has.name), gpu.has.name);
    name = names.add({kernel.name, gpu.has.name, std::make_unique<const std::string>(std::move(here))});
  }
  return name->here->c_str();
}

}  // namespace kvant::cuda
