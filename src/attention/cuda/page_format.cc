#include "attention/cuda/page_format.h"

#include <algorithm>
#include <optional>

#include "format/format.h"
#include "format/name_reader.h"

namespace kvant::cuda {
namespace {

CodeLayout number_layout(int bits) {
  return {bits == 8 ? CodeOrder::pairs : CodeOrder::planes, bits, 1};
}

std::optional<PageFormat> read_plain(NameReader name) {
  PageFormat format;
  if (name.take("bf16")) {
    format.kind = CodeKind::bf16;
  } else if (name.take("f16")) {
    format.kind = CodeKind::f16;
  } else {
    return std::nullopt;
  }
  return format;
}

std::optional<PageFormat> read_fp8(NameReader name) {
  if (!name.take("fp8")) return std::nullopt;
  PageFormat format;
  format.kind = CodeKind::e4m3;
  format.layout = number_layout(8);
  format.factor = TokenFactor::single;
  return format;
}

std::optional<PageFormat> read_grid(NameReader name) {
  PageFormat format;
  if (name.take("tok")) {
    format.grid = GridAxis::of_tokens;
  } else if (name.take("ch")) {
    format.grid = GridAxis::of_channels;
  } else {
    return std::nullopt;
  }
  format.layout = number_layout(name.take_number());
  name.take("g");
  format.group = name.take_number();
  format.symmetric = name.take("s");
  if (name.take("c")) return std::nullopt;  // no kernel clips what it seals
  return format;
}

std::optional<PageFormat> read_progressive(NameReader name) {
  if (!name.take("prog")) return std::nullopt;
  PageFormat format;
  format.grid = GridAxis::of_integers;
  format.layout = number_layout(name.take_number());
  format.factor = TokenFactor::block;
  format.as_printed = name.take("-paper");
  return format;
}

std::optional<PageFormat> read_lloyd_max(NameReader name) {
  if (!name.take("lm")) return std::nullopt;
  PageFormat format;
  format.kind = CodeKind::level;
  const int bits = name.take_number();
  format.layout = {bits == 2 ? CodeOrder::quads : CodeOrder::pairs, bits, 1};
  format.factor = TokenFactor::half;
  format.unbiased = name.take("u");
  return format;
}

std::optional<PageFormat> read_trellis(NameReader name) {
  if (!name.take("tcq")) return std::nullopt;
  PageFormat format;
  format.kind = CodeKind::state;
  format.layout = {CodeOrder::trellis, name.take_number(), 1};
  format.factor = TokenFactor::octave;
  return format;
}

std::optional<PageFormat> read_vector(NameReader name) {
  PageFormat format;
  format.kind = CodeKind::vector;
  if (name.take("n")) format.factor = TokenFactor::half;
  format.own_codebooks = name.take("pq-d");
  if (!format.own_codebooks && !name.take("vq-d")) return std::nullopt;
  const int channels = name.take_number();
  name.take("b");
  format.layout = {CodeOrder::vectors, name.take_number(), channels};
  return format;
}

// Streams of codes are interleaved in whole pieces, and a lane's channels share a group of scales (up to 32
// of them, of larger heads).
bool can_be_read(const PageFormat& format, int d) {
  if (format.plain()) return true;
  if (code_bytes(format.layout, d) % (16 * kLanes) != 0) return false;
  return format.grid != GridAxis::of_tokens || std::min(format.group, d) % std::min(d / 4, 32) == 0;
}

}  // namespace

bool find_page_format(const std::string& name, int d, PageFormat& format) {
  if (find_format(name) == nullptr) return false;  // so that the name is well-formed from here on
  for (const auto read :
       {read_plain, read_fp8, read_grid, read_progressive, read_lloyd_max, read_trellis, read_vector}) {
    if (const auto found = read(NameReader(name))) {
      format = *found;
      return can_be_read(format, d);
    }
  }
  return false;
}

}  // namespace kvant::cuda
