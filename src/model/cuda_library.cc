#include "model/cuda_library.h"

#include "model/shared_library.h"

namespace kvant {

Result<PageLibrary> load_page_library() {
  const auto library = SharedLibrary::open("libkvant_cuda.so", program_places());
  if (!library.ok()) {
    return error(
        "--device cuda needs libkvant_cuda.so next to the program ({}): scripts/build.sh default builds it "
        "if nvcc is installed; or use --device cpu",
        library.error().message);
  }
  const SharedLibrary& l = **library;
  decltype(&kvant_version) version = nullptr;
  constexpr int kMajor = KVANT_VERSION / 1000, kMinor = KVANT_VERSION % 1000;
  // An older library with the same major number would ignore the members that later versions have added to
  // structures.
  if (!l.find("kvant_version", version) || version() / 1000 != kMajor || version() < KVANT_VERSION) {
    const int found = version == nullptr ? 0 : version();
    return error(
        "libkvant_cuda.so has version {}.{} of its interface, but this program needs {}.{}: rebuild it",
        found / 1000, found % 1000, kMajor, kMinor);
  }
  PageLibrary p{};
  bool complete = true;
#define KVANT_PAGE_CALL(call) complete = complete && l.find("kvant_" #call, p.call);
#include "cache/page_calls.def"
#undef KVANT_PAGE_CALL
  if (!complete)
    return error("libkvant_cuda.so is from a different version of kvant than the program: rebuild it");
  return p;
}

}  // namespace kvant
