#include "calibrate/sealed_gguf.h"

#include <ggml.h>
#include <gguf.h>

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/json_file.h"

namespace kvant {

std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  return hash;
}

struct SealedGguf::State {
  struct Tensor {
    std::string name;
    ggml_type type;
    std::size_t n;
    std::vector<std::byte> bytes;
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

void SealedGguf::add(const std::string& name, int type, std::size_t n, std::span<const std::byte> bytes) {
  KVANT_CHECK(n > 0 && name.size() < GGML_MAX_NAME, "a tensor that GGUF cannot hold");
  state_->tensors.push_back({name, static_cast<ggml_type>(type), n, {bytes.begin(), bytes.end()}});
}
void SealedGguf::add_f32(const std::string& name, std::span<const float> values) {
  add(name, GGML_TYPE_F32, values.size(), std::as_bytes(values));
}
void SealedGguf::add_f16(const std::string& name, std::span<const std::uint16_t> values) {
  add(name, GGML_TYPE_F16, values.size(), std::as_bytes(values));
}
void SealedGguf::add_bf16(const std::string& name, std::span<const std::uint16_t> values) {
  add(name, GGML_TYPE_BF16, values.size(), std::as_bytes(values));
}
void SealedGguf::add_i8(const std::string& name, std::span<const std::int8_t> values) {
  add(name, GGML_TYPE_I8, values.size(), std::as_bytes(values));
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
  std::string bytes(gguf_get_meta_size(file.get()), '\0');
  gguf_get_meta_data(file.get(), bytes.data());
  const std::size_t alignment = gguf_get_alignment(file.get());
  for (const State::Tensor& tensor : state_->tensors) {
    bytes.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
  }
  const std::uint64_t hash = fnv1a(bytes);
  bytes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  return write_whole_file(path, bytes);
}

Result<std::shared_ptr<GgufFile>> open_sealed_gguf(const std::string& path) {
  auto file = GgufFile::open(path, {.file = "file of constants", .remedy = "calibrate again"});
  if (!file.ok()) return file.error();
  const std::string_view all(static_cast<const char*>((*file)->mapping()), (*file)->mapping_bytes());
  std::uint64_t stored = 0;
  if (all.size() < sizeof stored) return error("'{}' is too short: calibrate again", path);
  std::memcpy(&stored, all.data() + all.size() - sizeof stored, sizeof stored);
  if (fnv1a(all.substr(0, all.size() - sizeof stored)) != stored) {
    return error("'{}' is damaged, or no file of kvant calibrate (its checksum is wrong): calibrate again",
                 path);
  }
  return file;
}

}  // namespace kvant
