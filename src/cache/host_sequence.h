// HostSequence is a sequence whose pages lie in host memory. Besides its entries, the sequence has a state
// for each head. HostStore owns the memory.
#pragma once

#include <memory>
#include <vector>

#include "cache/cache.h"
#include "cache/head_state.h"
#include "cache/page_pool.h"
#include "cache/page_store.h"
#include "cache/sequence_pages.h"

namespace kvant {

class HostStore final : public SequenceStore {
 public:
  // The plan outlives the store. A byte_limit of 0 means no limit.
  HostStore(const Plan& plan, std::int64_t byte_limit);

  HostPageStore& pages(int group) const { return *pages_[group]; }
  HostPageStore& row_store() const { return *row_store_; }

  std::unique_ptr<SequencePages> make_sequence() override;
  std::int64_t page_bytes_in_use() const override { return pools_.bytes_in_use(); }
  Status save_state(ByteWriter& to, const float* state) override;
  void load_state(const std::byte* from, float* state) override;

 private:
  PagePools pools_;
  std::vector<std::unique_ptr<HostPageStore>> pages_;  // [n_groups]
  std::unique_ptr<HostPageStore> row_store_;           // protected rows
};

class HostSequence final : public SequencePages {
 public:
  explicit HostSequence(HostStore& store);

  HeadState& head(int layer, int kv_head) { return heads_[geometry().head_index(layer, kv_head)]; }
  const HeadState& head(int layer, int kv_head) const {
    return heads_[geometry().head_index(layer, kv_head)];
  }

  Result<ListedPages> list_pages(int layer, int kv_head, int first_visible) const override;

 private:
  bool on_reserve() override;
  void on_commit() override;
  void on_abort() override;
  void on_copy(const SequencePages& from) override;
  void on_truncate(int n_tokens) override;
  std::shared_ptr<SequenceNumbers> make_sums() override;
  std::shared_ptr<SequenceNumbers> make_observers(const SequenceNumbers* from) override;
  std::int64_t sums_bytes(const SequenceNumbers& sums) const override;
  std::int64_t observer_bytes() const override;
  Status on_save(std::vector<HeadImage>& images) const override;
  bool on_load(std::vector<HeadImage>& images) override;

  const Geometry& geometry() const { return store_.plan().geometry; }

  HostStore& store_;
  std::vector<HeadState> heads_;  // by Geometry::head_index
};

// Return a head of a step's slice, or of a sequence between steps, in a cache in host memory. CPU backends
// and tests use these functions. Threads may work on different heads at the same time.
HeadState& head_of(const Step& step, int slice, int layer, int kv_head);
const HeadState& head_of(const Cache& cache, SequenceId sequence, int layer, int kv_head);

}  // namespace kvant
