#include "eval/f32_gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "model/gguf_file.h"
#include "model/tiny_model.h"

namespace kvant {
namespace {

TEST(DequantizeToF32, KeepsMetadataAndDequantizedValues) {
  TinyModel shape;
  shape.matrix_type = GGML_TYPE_Q4_0;
  const auto file = write_tiny_model(shape);
  const auto before = GgufFile::open(file->path());
  ASSERT_TRUE(before.ok());
  const auto dequantized = dequantize_to_f32(file->path());
  ASSERT_TRUE(dequantized.ok()) << dequantized.error().message;
  const auto after = GgufFile::open(dequantized->path());
  ASSERT_TRUE(after.ok()) << after.error().message;
  EXPECT_EQ((*after)->integer("llama.block_count"), 2);
  ASSERT_EQ((*after)->tensor_names(), (*before)->tensor_names());
  for (const std::string& name : (*before)->tensor_names()) {
    const ggml_tensor* from = (*before)->tensor(name);
    const ggml_tensor* to = (*after)->tensor(name);
    ASSERT_EQ(to->type, GGML_TYPE_F32) << name;
    ASSERT_EQ(ggml_nelements(to), ggml_nelements(from)) << name;
    std::vector<float> expected(ggml_nelements(from));
    if (from->type == GGML_TYPE_F32) {
      std::memcpy(expected.data(), (*before)->tensor_data(from), ggml_nbytes(from));
    } else {
      ggml_get_type_traits(from->type)
          ->to_float((*before)->tensor_data(from), expected.data(), ggml_nelements(from));
    }
    EXPECT_EQ(std::memcmp((*after)->tensor_data(to), expected.data(), ggml_nbytes(to)), 0) << name;
  }
}

TEST(DequantizeToF32, DeletesItsFile) {
  const auto file = write_tiny_model({});
  std::string path;
  {
    const auto dequantized = dequantize_to_f32(file->path());
    ASSERT_TRUE(dequantized.ok());
    path = dequantized->path();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace kvant
