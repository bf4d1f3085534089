#include "device/cpu/kernels/code_page.h"

namespace kvant::cpu {

CodePage code_page(const PageSide& side, const CodeScheme& scheme) {
  return {reinterpret_cast<const std::uint8_t*>(side.bytes),
          scheme.meaning,
          scheme.bits,
          scheme.group_channels,
          side.context->head_dim / scheme.group_channels,
          side.context->table.biased.data()};
}

void read_code_parameters(const PageSide& side, CodeParameters& parameters) {
  for (auto* values : {&parameters.token_scale, &parameters.token_offset, &parameters.channel_scale,
                       &parameters.channel_offset}) {
    values->clear();
  }
  side.format->read_parameters(side.bytes, *side.context, side.context->table, parameters);
}

}  // namespace kvant::cpu
