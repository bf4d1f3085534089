// Predicts tokens with a cache whose pages KVTC has coded and decoded, and computes bits for tables.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "eval/logit_source.h"
#include "kvtc/transform_coder.h"
#include "task/session.h"

namespace kvant {

// KVTC codes the pages of the recipe kKvtcRecipe. The first 4 tokens and the newest 128 stay unquantized.
inline constexpr const char* kKvtcRecipe = "k=bf16,v=bf16,sink=4,window=128,tail=bf16";

// Makes a source whose steps end at page boundaries. As soon as a page is sealed, its tokens are coded and
// replaced by the decoded tokens. Later queries read the decoded tokens, as they read any recipe's sealed
// pages. The bits are what an ideal entropy coder would need that knows how often each symbol of a component
// occurs in all texts. `directions` must outlive the source, and `groups` are the component groups of K and
// of V. Returns an error if layers have sliding windows, or if there are more components than channels.
Result<std::unique_ptr<LogitSource>> make_kvtc_source(
    std::string name, const Session& session, const std::array<PrincipalDirections, 2>& directions,
    const std::array<std::vector<ComponentGroup>, 2>& groups);

}  // namespace kvant
