#include "calibrate/capture_state.h"

#include <ggml.h>

#include <algorithm>

#include "calibrate/sealed_gguf.h"

namespace kvant {
namespace {

constexpr const char* kSamplesDone = "kvant.capture.samples_done";

const std::uint16_t* find_block(const GgufFile& file, int i, std::size_t size) {
  const ggml_tensor* tensor = file.tensor(std::to_string(i));
  if (tensor == nullptr || tensor->type != GGML_TYPE_BF16) return nullptr;
  if (static_cast<std::size_t>(ggml_nelements(tensor)) != size) return nullptr;
  return static_cast<const std::uint16_t*>(file.tensor_data(tensor));
}

}  // namespace

Status write_capture(Capture& capture, std::uint64_t identity, int samples_done, const std::string& path) {
  SealedGguf file;
  set_state(file, "kvant-capture", identity);
  file.set(kSamplesDone, std::int64_t{samples_done});
  int n = 0;
  capture.for_each_block([&](const std::vector<std::uint16_t>& block) {
    if (!block.empty()) file.add_bf16(std::to_string(n), block);
    ++n;
  });
  return file.write(path);
}

Result<int> read_capture(const std::string& path, std::uint64_t identity, Capture& capture) {
  const auto file = open_state(path, identity);
  if (!file.ok()) return file.error();
  if (*file == nullptr) return 0;
  bool complete = true;
  int n = 0;
  capture.for_each_block([&](const std::vector<std::uint16_t>& block) {
    complete = complete && (block.empty() || find_block(**file, n, block.size()) != nullptr);
    ++n;
  });
  if (!complete) return error("it is of a different size");
  n = 0;
  capture.for_each_block([&](std::vector<std::uint16_t>& block) {
    if (!block.empty()) std::copy_n(find_block(**file, n, block.size()), block.size(), block.begin());
    ++n;
  });
  return static_cast<int>((*file)->integer(kSamplesDone).value_or(0));
}

}  // namespace kvant
