#include "calibrate/sealed_gguf.h"

#include <ggml.h>
#include <gguf.h>

#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json_file.h"

namespace kvant {

std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  return hash;
}

namespace {
constexpr const char* kStateIdentity = "kvant.state.identity";
}  // namespace

struct SealedGguf::State {
  struct Tensor {
    std::string name;
    ggml_type type;
    std::size_t n;
    std::vector<std::byte> copy;
    std::span<const std::byte> bytes;
  };
  std::unique_ptr<gguf_context, decltype(&gguf_free)> header{gguf_init_empty(), gguf_free};
  std::vector<Tensor> tensors;
};

SealedGguf::SealedGguf() : state_(std::make_unique<State>()) {}
SealedGguf::~SealedGguf() = default;

void SealedGguf::set(const std::string& key, const std::string& text) {
  gguf_set_val_str(state_->header.get(), key.c_str(), text.c_str());
}
void SealedGguf::set(const std::string& key, std::int64_t number) {
  gguf_set_val_i64(state_->header.get(), key.c_str(), number);
}
void SealedGguf::set(const std::string& key, std::span<const std::int32_t> numbers) {
  gguf_set_arr_data(state_->header.get(), key.c_str(), GGUF_TYPE_INT32, numbers.data(), numbers.size());
}

void SealedGguf::add(const std::string& name, int type, std::size_t n, std::span<const std::byte> bytes,
                     bool copies) {
  KVANT_CHECK(n > 0 && name.size() < GGML_MAX_NAME, "a tensor that GGUF cannot hold");
  state_->tensors.push_back({name, static_cast<ggml_type>(type), n, {}, {}});
  State::Tensor& tensor = state_->tensors.back();
  if (copies) tensor.copy.assign(bytes.begin(), bytes.end());
  tensor.bytes = copies ? std::span<const std::byte>(tensor.copy) : bytes;
}
void SealedGguf::add_f32(const std::string& name, std::span<const float> values) {
  add(name, GGML_TYPE_F32, values.size(), std::as_bytes(values), /*copies=*/true);
}
void SealedGguf::add_f16(const std::string& name, std::span<const std::uint16_t> values) {
  add(name, GGML_TYPE_F16, values.size(), std::as_bytes(values), /*copies=*/true);
}
void SealedGguf::add_bf16(const std::string& name, std::span<const std::uint16_t> values) {
  add(name, GGML_TYPE_BF16, values.size(), std::as_bytes(values), /*copies=*/false);
}
void SealedGguf::add_bytes(const std::string& name, std::span<const std::byte> bytes) {
  add(name, GGML_TYPE_I8, bytes.size(), bytes, /*copies=*/false);
}
void SealedGguf::add_i8(const std::string& name, std::span<const std::int8_t> values) {
  add(name, GGML_TYPE_I8, values.size(), std::as_bytes(values), /*copies=*/true);
}

Status SealedGguf::write(const std::string& path) const {
  const ggml_init_params params{(state_->tensors.size() + 1) * ggml_tensor_overhead(), nullptr,
                                /*no_alloc=*/true};
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> shapes(ggml_init(params), ggml_free);
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> file(gguf_init_empty(), gguf_free);
  gguf_set_kv(file.get(), state_->header.get());
  for (const State::Tensor& tensor : state_->tensors) {
    ggml_tensor* shape = ggml_new_tensor_1d(shapes.get(), tensor.type, static_cast<std::int64_t>(tensor.n));
    ggml_set_name(shape, tensor.name.c_str());
    gguf_add_tensor(file.get(), shape);
  }
  std::vector<std::byte> header(gguf_get_meta_size(file.get()));
  gguf_get_meta_data(file.get(), header.data());
  const std::size_t alignment = gguf_get_alignment(file.get());
  const std::vector<std::byte> zeros(alignment);
  std::vector<std::span<const std::byte>> parts{header};
  for (const State::Tensor& tensor : state_->tensors) {
    parts.push_back(tensor.bytes);
    const std::size_t beyond = tensor.bytes.size() % alignment;
    if (beyond > 0) parts.push_back(std::span(zeros).first(alignment - beyond));
  }
  std::uint64_t hash = fnv1a({});
  for (const std::span<const std::byte> part : parts)
    hash = fnv1a({reinterpret_cast<const char*>(part.data()), part.size()}, hash);
  parts.push_back(std::as_bytes(std::span(&hash, 1)));
  return write_whole_file(path, parts);
}

void set_state(SealedGguf& file, const std::string& type, std::uint64_t identity) {
  file.set("general.type", type);
  file.set(kStateIdentity, static_cast<std::int64_t>(identity));
}

Result<std::shared_ptr<GgufFile>> open_state(const std::string& path, std::uint64_t identity) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::shared_ptr<GgufFile>();
  auto file = open_sealed_gguf(path);
  if (!file.ok()) return error("it is damaged or can't be read");
  if ((*file)->integer(kStateIdentity) != static_cast<std::int64_t>(identity))
    return error("it is of another model, text or setting");
  return file;
}

Result<std::shared_ptr<GgufFile>> open_sealed_gguf(const std::string& path) {
  auto file = GgufFile::open(path, {.file = "file of constants", .remedy = "calibrate again"});
  if (!file.ok()) return file.error();
  const std::string_view all(static_cast<const char*>((*file)->mapping()), (*file)->mapping_bytes());
  std::uint64_t stored = 0;
  if (all.size() < sizeof stored) return error("'{}' is too short: calibrate again", path);
  std::memcpy(&stored, all.data() + all.size() - sizeof stored, sizeof stored);
  if (fnv1a(all.substr(0, all.size() - sizeof stored)) != stored) {
    return error("'{}' is damaged, or not a file of kvant calibrate (its checksum is wrong): calibrate again",
                 path);
  }
  return file;
}

}  // namespace kvant
