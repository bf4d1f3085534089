#include "cache/page_pool.h"

#include <algorithm>

#include "base/check.h"

namespace kvant {
namespace {

constexpr std::size_t kAlignment = 64;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

PagePool::PagePool(std::size_t page_bytes, SlabMemory& memory, MemoryBudget& budget)
    : page_bytes_(page_bytes),
      stride_(aligned(page_bytes)),
      pages_per_slab_(static_cast<int>(kSlabBytes / stride_)),
      memory_(memory),
      budget_(budget) {
  KVANT_CHECK(pages_per_slab_ > 0, "a slab holds at least one page");
}

PagePool::~PagePool() {
  for (int i = 0; i < static_cast<int>(slabs_.size()); ++i) {
    if (slabs_[i].memory != nullptr) drop_slab(i);
  }
}

std::byte* PagePool::data(PageId page) const {
  return slabs_[page / pages_per_slab_].memory + (page % pages_per_slab_) * stride_;
}

bool PagePool::add_slab() {
  auto empty = std::find_if(slabs_.begin(), slabs_.end(), [](const Slab& s) { return s.memory == nullptr; });
  const int slab = static_cast<int>(empty - slabs_.begin());
  if (empty ==
      slabs_.end()) {  // The bookkeeping grows first, so a failed allocation leaves no half-made slab.
    held_.resize(held_.size() + pages_per_slab_);
    slabs_.emplace_back();
  }
  free_.reserve(held_.size());
  if (!budget_.take(kSlabBytes)) return false;
  std::byte* memory = memory_.take();
  if (memory == nullptr) {
    budget_.give_back(kSlabBytes);
    return false;
  }
  slabs_[slab].memory = memory;
  for (int i = pages_per_slab_ - 1; i >= 0; --i) free_.push_back(slab * pages_per_slab_ + i);
  return true;
}

void PagePool::drop_slab(int slab) {
  memory_.give_back(slabs_[slab].memory);
  slabs_[slab] = Slab{};
  budget_.give_back(kSlabBytes);
  std::erase_if(free_, [&](PageId p) { return p / pages_per_slab_ == slab; });
}

PageId PagePool::allocate() {
  if (free_.empty() && !add_slab()) return kNoPage;
  const PageId page = free_.back();
  free_.pop_back();
  held_[page] = true;
  ++slabs_[page / pages_per_slab_].pages_in_use;
  ++pages_in_use_;
  return page;
}

void PagePool::release(PageId page) {
  KVANT_CHECK(held_[page], "released a free page");
  held_[page] = false;
  --pages_in_use_;
  free_.push_back(page);
  // One empty slab stays. A tail that comes and goes would else return memory to the operating system each
  // time.
  const int slab = page / pages_per_slab_;
  if (--slabs_[slab].pages_in_use == 0 && static_cast<int>(free_.size()) > 2 * pages_per_slab_)
    drop_slab(slab);
}

}  // namespace kvant
