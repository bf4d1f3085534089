// A cache whose pages are stored by KVTC and read back: predictions and bits for tables.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "eval/logit_source.h"
#include "kvtc/transform_coder.h"
#include "task/session.h"

namespace kvant {

// The cache that KVTC stores: bf16; the first 4 tokens and the newest 128 are kept as they are.
inline constexpr const char* kKvtcRecipe = "k=bf16,v=bf16,sink=4,window=128,tail=bf16";

// Its steps end with pages. As soon as a page is sealed, its tokens are coded, and what decoding gives takes
// their place: later queries see that, as they see any recipe's sealed pages. Bits are those of an ideal
// entropy coder which knows, over all texts, how often each symbol of a component comes. directions outlive
// it. groups: of K and V. An error: layers slide, or there are more components than channels.
Result<std::unique_ptr<LogitSource>> make_kvtc_source(
    std::string name, const Session& session, const std::array<PrincipalDirections, 2>& directions,
    const std::array<std::vector<ComponentGroup>, 2>& groups);

}  // namespace kvant
