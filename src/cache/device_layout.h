// Describes how the pages of a plan lie in a device's memory, or says why the device cannot serve the plan.
// All sizes come from the library's own functions, so the layout knows no format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/batch_pages.h"
#include "cache/page_device.h"
#include "cache/page_ledger.h"
#include "cache/placed_plan.h"
#include "recipe/plan.h"

namespace kvant {

// Returns the plan with its pages in the device's memory and with a tail in BF16, the only tail format that
// the library knows. An error says what the device cannot do, and the nearest plan that the device can serve.
Result<PlacedPlan> place_on(std::shared_ptr<PageDevice> device, const std::shared_ptr<const Plan>& plan);

// Returns the rules of a layer group on a device. Entries of the tail have room for a whole page there, and
// last until the step ends.
GroupRules device_rules(const Plan& plan, GroupRules rules);

// Returns whether nothing is ever sealed, because both sides stay in BF16, as the tail holds them.
bool is_unquantized(const Plan& plan);
// Returns how many of the newest tokens stay unsealed in all layers of a plan that is placed on a device.
int device_window(const Plan& plan);
// Returns how many first tokens every head protects. 0 means that no tokens are protected, or that the first
// tokens are among the tokens that scores protect.
int device_sink(const Plan& plan);

// Return whether any head, or any head of the layer, is corrected (KVLinC).
bool is_corrected(const Plan& plan);
bool is_corrected(const Plan& plan, int layer);

// Says where the page of each (layer, head, side) lies in an entry of one kind.
struct EntryLayout {
  // Pages lie side by side, for each head the key page and then the value page. Layers that the entry does
  // not serve take no bytes.
  struct Layer {
    std::size_t offset = 0;               // The offset of the first page in the entry.
    std::vector<std::size_t> page_bytes;  // [heads][2]
    std::vector<std::int64_t>
        page_offsets;  // [heads][2]: offsets from the first page, as the library takes them

    std::size_t bytes(int head, Side side) const { return page_bytes[index(head, side)]; }
    // Returns the offset of a page in the entry.
    std::size_t place(int head, Side side) const {
      return offset + static_cast<std::size_t>(page_offsets[index(head, side)]);
    }

   private:
    static std::size_t index(int head, Side side) {
      return std::size_t{2} * static_cast<std::size_t>(head) + static_cast<std::size_t>(side);
    }
  };
  std::vector<Layer> layers;  // [n_layers]
  std::size_t bytes = 0;      // The size of an entry, a multiple of kDeviceUnit.
};

// Page tables count in units of this many bytes, so an entry may lie anywhere within +-512 GiB.
inline constexpr std::size_t kDeviceUnit = 256;

// In the library's BF16 pages, the unquantized rows of this many tokens lie side by side.
inline constexpr int kDeviceTile = 16;

// Returns the layout of sealed pages of a group's layers. Each page takes the bytes that its head's format
// needs.
EntryLayout sealed_layout(const Plan& plan, const PageLibrary& library, std::span<const int> layers);
// Returns the layout of BF16 pages of these layers with the first n_tokens tokens, a multiple of kDeviceTile.
EntryLayout plain_layout(const Plan& plan, int n_tokens, std::span<const int> layers);
// Returns how many protected rows of each head an entry has, by layer: a whole page in layers that protect by
// score, and otherwise the sink.
std::vector<int> device_protected_rows(const Plan& plan);
// Returns the layout of protected rows.
EntryLayout protected_layout(const Plan& plan);
// Returns the layout of the open page's observers. A layer's observers lie as one head, both sides in F32.
// The place of the keys holds the queries [kObservers][n_heads][head_dim]. The place of the values holds the
// LSEs [kObservers][n_heads].
EntryLayout observer_layout(const Plan& plan);

// Returns the layout of a correction's sums. The place of the keys holds S [features][head_dim] and then P
// [features] (linear_correction.h), in F32, for each KV head of a corrected layer.
EntryLayout correction_layout(const Plan& plan);

// Returns the maximum number of bytes that a batch takes while each of its sequences grows to n_tokens. Pages
// that a step opens stay in the tail until the step ends, and pages that its tokens no longer see are freed
// then. If the recipe leaves a whole prompt unsealed, only the tokens of one step count.
std::int64_t largest_device_bytes(const PlacedPlan& placed, int n_tokens, const Batch& batch);

// Returns the names of the formats of a layer, by KV head.
std::vector<const char*> head_formats(const Plan& plan, int layer, Side side);

// Holds the library's description of a layer's attention. The names belong to formats, which are never freed.
// `keys` and `values` hold the lists to which the shape points.
struct LayerShape {
  int layer;
  std::vector<const char*> keys, values;
  kvant_decode_shape of(int n_seqs, const Plan& plan) const;
};
LayerShape layer_shape(const Plan& plan, int layer);

}  // namespace kvant
