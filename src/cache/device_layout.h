// DeviceLayout: what the pages of a plan look like on a device, or why the device can't have the plan.
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

// The plan with its pages in the device's memory, and a tail in BF16, the only one that the library knows. An
// error: what the device can't do, and the nearest that it can.
Result<PlacedPlan> place_on(std::shared_ptr<PageDevice> device, const std::shared_ptr<const Plan>& plan);

// The rules of a layer group on a device, whose entries of the tail have room for a whole page and last until
// the step ends.
GroupRules device_rules(const Plan& plan, GroupRules rules);

// Whether nothing is ever sealed: both sides stay in BF16, as the tail holds them.
bool is_unquantized(const Plan& plan);
// The newest tokens that stay unsealed in all layers of a plan that is placed on a device.
int device_window(const Plan& plan);
// The first tokens that are kept beside the sealed pages in an entry of their own; 0: none are, or they are
// among the tokens that the recipe protects by their scores (device_protection.h).
int device_sink(const Plan& plan);

// Whether any head, or one of the layer, is corrected (KVLinC).
bool is_corrected(const Plan& plan);
bool is_corrected(const Plan& plan, int layer);

// Where the page of each (layer, head, side) lies in an entry of one kind.
struct EntryLayout {
  // Pages lie side by side: of each head the key page, then the value page. Those of layers that aren't the
  // entry's take no bytes.
  struct Layer {
    std::size_t offset = 0;                  // of the first, in the entry
    std::vector<std::size_t> page_bytes;     // [heads][2]
    std::vector<std::int64_t> page_offsets;  // [heads][2]: behind the first, as the library takes them

    std::size_t bytes(int head, Side side) const { return page_bytes[index(head, side)]; }
    // In the entry.
    std::size_t place(int head, Side side) const {
      return offset + static_cast<std::size_t>(page_offsets[index(head, side)]);
    }

   private:
    static std::size_t index(int head, Side side) {
      return std::size_t{2} * static_cast<std::size_t>(head) + static_cast<std::size_t>(side);
    }
  };
  std::vector<Layer> layers;  // [n_layers]
  std::size_t bytes = 0;      // of an entry: a multiple of kDeviceUnit
};

// Page tables count in units of so many bytes, so that an entry may lie anywhere within +-512 GiB.
inline constexpr std::size_t kDeviceUnit = 256;

// Tokens whose unquantized rows lie side by side in the library's BF16 pages.
inline constexpr int kDeviceTile = 16;

// Entries of sealed pages of a group's layers, each of which takes as much as its head's format does.
EntryLayout sealed_layout(const Plan& plan, const PageLibrary& library, std::span<const int> layers);
// Entries of BF16 pages of these layers with the first n_tokens tokens, a multiple of kDeviceTile.
EntryLayout plain_layout(const Plan& plan, int n_tokens, std::span<const int> layers);
// Entries of the sink, of the layers that have one.
EntryLayout sink_layout(const Plan& plan);
// Entries of protected rows of the layers that protect by score: 128 of each head.
EntryLayout protected_layout(const Plan& plan);
// Entries of the open page's observers: of each layer, as of one head, queries
// [kObservers][n_heads][head_dim] in the keys' place, and their log-sum-exps [kObservers][n_heads] in the
// values', both in F32.
EntryLayout observer_layout(const Plan& plan);

// Entries of a correction's sums: of each KV head of a corrected layer S [features][head_dim], then z
// [features], in F32, in the keys' place.
EntryLayout correction_layout(const Plan& plan);

// The maximum number of bytes that a batch takes while each of its sequences grows to n_tokens: what a step
// opens stays in the tail until it ends, and what its tokens no longer see is freed then. Of a prompt that
// the recipe leaves unsealed as a whole, a step counts.
std::int64_t largest_device_bytes(const PlacedPlan& placed, int n_tokens, const Batch& batch);

// The names of the formats of a layer, by KV head.
std::vector<const char*> head_formats(const Plan& plan, int layer, Side side);

// The library's description of a layer's attention. The names are those of formats, which live on; `keys` and
// `values` hold the lists that the shape points to.
struct LayerShape {
  int layer;
  std::vector<const char*> keys, values;
  kvant_decode_shape of(int n_seqs, const Plan& plan) const;
};
LayerShape layer_shape(const Plan& plan, int layer);

}  // namespace kvant
