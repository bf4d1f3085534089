#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "attention/cuda/api/caller_structs.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

// A structure as a later version would have it: its last member is newer than the first callers.
struct Extended {
  std::size_t struct_size;
  std::int32_t old_member, other_old_member;
  std::int64_t new_member;
};
template <>
inline constexpr std::size_t kFirstSize<Extended> = offsetof(Extended, new_member);
template <>
inline constexpr Reason kNoStruct<Extended> = "extended is null, or its struct_size is not its size";

namespace {

TEST(CallerStructs, MembersThatAnOlderCallerDoesNotHaveAreZero) {
  Extended of_caller{kFirstSize<Extended>, 1, 2, -1};  // -1: whatever follows in the caller's memory
  Extended read;
  ASSERT_EQ(read_struct(&of_caller, &read), nullptr);
  EXPECT_EQ(read.old_member, 1);
  EXPECT_EQ(read.other_old_member, 2);
  EXPECT_EQ(read.new_member, 0);
  of_caller.struct_size = sizeof of_caller;
  ASSERT_EQ(read_struct(&of_caller, &read), nullptr);
  EXPECT_EQ(read.new_member, -1);
}

TEST(CallerStructs, AMemberLessThanTheFirstVersionIsRefusedByName) {
  const Extended of_caller{kFirstSize<Extended> - 1, 1, 2, 3};
  Extended read;
  EXPECT_STREQ(read_struct(&of_caller, &read), kNoStruct<Extended>);
  EXPECT_STREQ(read_struct<Extended>(nullptr, &read), kNoStruct<Extended>);
}

// A call that is valid but for one thing, and what the reason must name.
struct Mistake {
  const char* named;
  std::function<void(kvant_decode_shape&, kvant_decode_lengths&, kvant_decode_layer&, kvant_dequantization&)>
      make;
};

TEST(LastError, NamesTheArgumentThatIsWrong) {
  alignas(16) static std::int32_t some[64]{};
  static constexpr std::int64_t kOdd[] = {0, 8}, kNegative[] = {-16, 0}, kFar[] = {0, std::int64_t{1} << 36};
  const std::vector<Mistake> mistakes{
      {"kvant_decode_shape", [](auto& shape, auto&, auto&, auto&) { shape.struct_size = 1; }},
      {"kvant_decode_lengths", [](auto&, auto& lengths, auto&, auto&) { lengths.struct_size = 1; }},
      {"kvant_decode_layer", [](auto&, auto&, auto& layer, auto&) { layer.struct_size = 1; }},
      {"kvant_dequantization", [](auto&, auto&, auto&, auto& rows) { rows.struct_size = 1; }},
      {"n_kv_heads", [](auto& shape, auto&, auto&, auto&) { shape.n_kv_heads = 65; }},
      {"format", [](auto& shape, auto&, auto&, auto&) { shape.key_format = nullptr; }},
      {"n_seqs", [](auto&, auto&, auto&, auto& rows) { rows.n_seqs = 0; }},
      {"first_page", [](auto&, auto&, auto&, auto& rows) { rows.first_page = -1; }},
      {"n_pages", [](auto&, auto&, auto&, auto& rows) { rows.n_pages = 0; }},
      {"first_head", [](auto&, auto&, auto&, auto& rows) { rows.first_head = 1; }},
      {"layer.sealed", [](auto&, auto&, auto& layer, auto&) { layer.sealed.pool = nullptr; }},
      {"layer.sealed", [](auto&, auto&, auto& layer, auto&) { layer.sealed.page_stride = 8; }},
      {"layer.sealed_offsets", [](auto&, auto&, auto& layer, auto&) { layer.sealed_offsets = kOdd; }},
      {"layer.sealed_offsets", [](auto&, auto&, auto& layer, auto&) { layer.sealed_offsets = kNegative; }},
      {"layer.sealed_offsets", [](auto&, auto&, auto& layer, auto&) { layer.sealed_offsets = kFar; }},
      {"layer.tail", [](auto&, auto& lengths, auto&, auto&) { lengths.tail_tokens = some; }},
      {"layer.protected_pages", [](auto&, auto&, auto& layer, auto&) { layer.sink = 4; }},
      {"layer.sink", [](auto&, auto&, auto& layer, auto&) { layer.sink = -1; }},
      {"strides", [](auto&, auto&, auto&, auto& rows) { rows.head_stride = 4; }},
      {"aligned", [](auto&, auto&, auto&, auto& rows) { rows.keys = reinterpret_cast<char*>(some) + 2; }},
      {"codebooks", [](auto& shape, auto&, auto&, auto&) { shape.key_format = "vq-d4b8"; }},
  };
  for (const Mistake& mistake : mistakes) {
    kvant_decode_shape shape{sizeof shape, 1, 1, 1, 128, 1.0F, "ch4g128", "tok4g128"};
    kvant_decode_lengths lengths{};
    lengths.struct_size = sizeof lengths;
    lengths.sealed_pages = some;
    kvant_decode_layer layer{};
    layer.struct_size = sizeof layer;
    layer.sealed.table = some;
    layer.sealed.pool = some;
    kvant_dequantization rows{};
    rows.struct_size = sizeof rows;
    rows.n_seqs = rows.n_pages = rows.n_heads = 1;
    mistake.make(shape, lengths, layer, rows);
    EXPECT_EQ(kvant_dequantize(&shape, &lengths, &layer, &rows, nullptr), KVANT_INVALID_ARGUMENT)
        << mistake.named;
    EXPECT_NE(std::strstr(kvant_last_error(), mistake.named), nullptr) << kvant_last_error();
  }
}

TEST(LastError, SaysWhyThereIsNoKernel) {
  kvant_decode_shape shape{sizeof shape, 1, 1, 1, 96, 1.0F, "ch4g128", "tok4g128"};
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  EXPECT_STREQ(kvant_last_error(), "head_dim must be 64, 128 or 256");
  shape.head_dim = 128;
  shape.group = 17;
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  EXPECT_STREQ(kvant_last_error(), "shape.group must be 1 to 16");
}

TEST(LastError, IsOfTheThreadThatWasRefused) {
  EXPECT_EQ(kvant_transform(nullptr, nullptr), KVANT_INVALID_ARGUMENT);
  const std::string here = kvant_last_error();
  std::string there;
  std::thread([&] {
    kvant_merge(0, 0, 0, 0, nullptr, nullptr, nullptr);
    there = kvant_last_error();
  }).join();
  EXPECT_NE(there, here);
  EXPECT_EQ(kvant_last_error(), here);
}

TEST(CheckDevice, SaysWhyWhereItRefuses) {
  int n = 0;
  const bool is_there = cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
  const kvant_status status = kvant_check_device();
  if (!is_there) {
    EXPECT_EQ(status, KVANT_CUDA_ERROR);
    EXPECT_GT(std::strlen(kvant_last_error()), 0U);
    return;
  }
  cudaDeviceProp device;
  ASSERT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  EXPECT_EQ(status, device.major >= 8 ? KVANT_OK : KVANT_UNSUPPORTED);
}

}  // namespace
}  // namespace kvant::cuda
