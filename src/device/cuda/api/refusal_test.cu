#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/common/caller_structs.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

// Is a structure of a later version, whose last member is newer than the first callers.
struct Extended {
  std::size_t struct_size;
  std::int32_t old_member, other_old_member;
  std::int64_t new_member;
};
template <>
inline constexpr std::size_t kFirstSize<Extended> = offsetof(Extended, new_member);

}  // namespace kvant::cuda

template <>
inline constexpr kvant::device::Reason kvant::device::kNoStruct<kvant::cuda::Extended> =
    "extended is null, or its struct_size is not its size";

namespace kvant::cuda {
namespace {

TEST(CallerStructs, MembersThatAnOlderCallerDoesNotHaveAreZero) {
  // The value -1 stands for whatever follows in the caller's memory.
  Extended of_caller{kFirstSize<Extended>, 1, 2, -1};
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

// Makes one mistake in an otherwise valid call; the reason must name it.
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
      {"dequantization.type", [](auto&, auto&, auto&, auto& rows) { rows.type = KVANT_F32; }},
      {"dequantization.channels", [](auto&, auto&, auto&, auto& rows) { rows.channels = 136; }},
      {"dequantization.channels must be a multiple of 16",
       [](auto& shape, auto&, auto&, auto& rows) { shape.head_dim = 512, rows.channels = 24; }},
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

TEST(LastError, NamesTheArgumentOfRowsThatIsWrong) {
  alignas(16) static float some[256]{};
  kvant_transformation rows{};
  rows.struct_size = sizeof rows;
  rows.n_rows = rows.n_heads = 1;
  rows.head_dim = 128;
  rows.rows = some;
  const auto expect_refused = [&](const char* named, const auto& make) {
    kvant_transformation wrong = rows;
    make(wrong);
    EXPECT_EQ(kvant_transform(&wrong, nullptr), KVANT_INVALID_ARGUMENT) << named;
    EXPECT_NE(std::string(kvant_last_error()).find(named), std::string::npos) << kvant_last_error();
  };
  expect_refused("transformation.type", [](auto& t) { t.type = static_cast<kvant_type>(3); });
  expect_refused("source_is_f16", [](auto& t) { t.source_is_f16 = 1; });
  expect_refused("source_is_f16", [](auto& t) { t.source = some, t.source_is_f16 = t.source_is_f32 = 1; });
  expect_refused("multiples of 8", [](auto& t) { t.source = some, t.source_channels = 84; });
  expect_refused("source_channels must be multiples of 16",
                 [](auto& t) { t.source = some, t.head_dim = 512, t.source_channels = 24; });
  expect_refused("without a source", [](auto& t) { t.row_channels = 96; });

  kvant_decode_shape shape{sizeof shape, 1, 1, 1, 128, 1.0F, "ch4g128", "tok4g128"};
  alignas(16) static std::int32_t table[4]{};
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.tail = {table, 0, 0, 0, 0, some, 16, 0, 0, 0};
  kvant_new_rows appended{};
  appended.struct_size = sizeof appended;
  appended.n_rows = 1;
  appended.seq = appended.tail_token = table;
  appended.keys = appended.values = appended.queries = some;
  const auto expect_not_appended = [&](const char* named, const auto& make) {
    kvant_new_rows wrong = appended;
    make(wrong);
    EXPECT_EQ(kvant_append(&shape, &layer, &wrong, nullptr), KVANT_INVALID_ARGUMENT) << named;
    EXPECT_NE(std::string(kvant_last_error()).find(named), std::string::npos) << kvant_last_error();
  };
  expect_not_appended("rows.type", [](auto& r) { r.type = static_cast<kvant_type>(-1); });
  expect_not_appended("value_channels", [](auto& r) { r.value_channels = 200; });
  expect_not_appended("rotated", [](auto& r) { r.key_channels = 80, r.key_hadamard = 1; });
  shape.head_dim = 512;
  expect_not_appended("value_channels must be multiples of 16", [](auto& r) { r.value_channels = 24; });
}

TEST(LastError, SaysWhyThereIsNoKernel) {
  kvant_decode_shape shape{sizeof shape, 1, 1, 1, 96, 1.0F, "ch4g128", "tok4g128"};
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  EXPECT_STREQ(kvant_last_error(), "head_dim must be 64, 128, 256 or 512");
  shape.head_dim = 128;
  shape.group = 17;
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  EXPECT_STREQ(kvant_last_error(), "shape.group must be 1 to 16");
}

TEST(LastError, NamesTheArgumentOfAStepThatIsWrong) {
  static std::int32_t some[1]{};
  kvant_step_table table{sizeof table, some, 1, nullptr, 0, 1, 1, 4, some};
  kvant_step step{};
  step.struct_size = sizeof step;
  step.n_requests = 3;
  step.max_new_tokens = 4;
  step.max_queries = 2;
  step.n_seqs = 9;
  step.n_rows = 12;
  step.seq_lens = some;
  const auto expect_refused = [&](const char* named, const auto& make) {
    kvant_step wrong = step;
    kvant_step_table wrong_table = table;
    make(wrong, wrong_table);
    EXPECT_EQ(kvant_plan_step(&wrong, nullptr), KVANT_INVALID_ARGUMENT) << named;
    EXPECT_NE(std::string(kvant_last_error()).find(named), std::string::npos) << kvant_last_error();
  };
  expect_refused("kvant_step", [](auto& s, auto&) { s.struct_size = 8; });
  expect_refused("step.n_requests", [](auto& s, auto&) { s.n_requests = 0; });
  expect_refused("step.max_new_tokens", [](auto& s, auto&) { s.max_new_tokens = 129; });
  expect_refused("step.max_queries", [](auto& s, auto&) { s.max_queries = 9; });
  expect_refused("step.n_seqs", [](auto& s, auto&) { s.n_seqs = 6; });
  expect_refused("step.n_rows", [](auto& s, auto&) { s.n_rows = 13; });
  expect_refused("query_begins is null", [](auto& s, auto&) { s.n_rows = 11; });
  expect_refused("step.window", [](auto& s, auto&) { s.window = -1; });
  expect_refused("step.sliding_window", [](auto& s, auto&) { s.sliding_window = -1; });
  expect_refused("step.sink", [](auto& s, auto&) { s.sink = 129; });
  expect_refused("step.first_tokens", [](auto& s, auto&) { s.sliding_window = 10; });
  expect_refused("step.seq_lens", [](auto& s, auto&) { s.seq_lens = nullptr; });
  expect_refused("row_tail_token", [](auto& s, auto&) { s.row_seq = some; });
  expect_refused("due_sealed_page", [](auto& s, auto&) { s.due_tail_page = some; });
  expect_refused("kvant_step_table", [](auto& s, auto& t) { t.struct_size = 1, s.tail = &t; });
  expect_refused("step.tail: blocks", [](auto& s, auto& t) { t.table = nullptr, s.tail = &t; });
  expect_refused("step.sealed.places", [](auto& s, auto& t) { t.places = some, s.sealed = &t; });
  expect_refused("step.tail: n_entries", [](auto& s, auto& t) { t.units = 0, s.tail = &t; });
  expect_refused("step.tail: n_pages", [](auto& s, auto& t) { t.ring = 1, s.tail = &t; });
  expect_refused("step.tail: n_pages", [](auto& s, auto& t) { s.window = 500, s.tail = &t; });
  expect_refused("step.sealed: pages_of_block",
                 [](auto& s, auto& t) { t.pages_of_block = 2, s.sealed = &t; });
  expect_refused("step.tail: pages_of_block", [](auto& s, auto& t) {
    t.pages_of_block = 2, t.page_units = 1, t.ring = 4, t.places = some, s.tail = &t;
  });
  expect_refused("step.sealed: n_pages",
                 [](auto& s, auto& t) { s.sliding_window = 1000, s.first_tokens = some, s.sealed = &t; });
}

TEST(LastError, NamesTheArgumentOfLayersThatAreSealedTogether) {
  alignas(16) static std::int32_t some[64]{};
  const kvant_decode_shape shape{sizeof shape, 1, 1, 1, 128, 1.0F, "ch4g128", "tok4g128"};
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.sealed = layer.tail = {some, 0, 0, 0, 0, some, 16, 0, 0, 0};
  kvant_seal_range range{};
  range.struct_size = sizeof range;
  range.tail_page = range.sealed_page = some;
  range.max_pages = 1;
  const auto expect_refused = [&](const char* named, const auto& make) {
    kvant_decode_layer wrong_layer = layer;
    kvant_seal_range wrong = range;
    make(wrong, wrong_layer);
    EXPECT_EQ(kvant_seal_pages(&shape, &wrong_layer, &wrong, nullptr), KVANT_INVALID_ARGUMENT) << named;
    EXPECT_NE(std::string(kvant_last_error()).find(named), std::string::npos) << kvant_last_error();
  };
  expect_refused("range.n_layers", [](auto& r, auto&) { r.n_layers = -1; });
  expect_refused("too many pages", [](auto& r, auto&) { r.n_layers = 2, r.max_pages = 1 << 30; });
  expect_refused("masks", [](auto& r, auto& l) {
    r.n_layers = 2, l.masks = reinterpret_cast<const std::uint32_t*>(some);
  });
  expect_refused("codebooks", [](auto& r, auto& l) { r.n_layers = 2, l.key_codebooks = some; });
  expect_refused("key_metrics", [](auto& r, auto& l) {
    r.n_layers = 2, l.key_metrics = reinterpret_cast<const float*>(some);
  });
  expect_refused("layer.protected_pages", [](auto& r, auto& l) { r.keep_sink = 1, l.sink = 4; });
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
    EXPECT_EQ(status, KVANT_DEVICE_ERROR);
    EXPECT_GT(std::strlen(kvant_last_error()), 0U);
    return;
  }
  cudaDeviceProp device;
  ASSERT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  EXPECT_EQ(status, device.major >= 8 ? KVANT_OK : KVANT_UNSUPPORTED);
}

}  // namespace
}  // namespace kvant::cuda
