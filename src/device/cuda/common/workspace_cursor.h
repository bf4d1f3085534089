// Divides the workspace of a call into aligned parts. The same code first measures the workspace and then
// hands out its parts, so both always agree.
#pragma once

#include <cstddef>

namespace kvant::cuda {

inline constexpr int kWorkspaceAlignment = 256;  // alignment of a workspace and of its parts in bytes

// Divides the workspace into parts. With a null base, the cursor only measures.
class WorkspaceCursor {
 public:
  explicit WorkspaceCursor(void* base) : base_(static_cast<unsigned char*>(base)) {}
  template <class T>
  T* take(std::size_t n) {
    T* part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (n * sizeof(T) + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    return part;
  }
  std::size_t used() const { return used_; }

 private:
  unsigned char* base_;
  std::size_t used_ = 0;
};

}  // namespace kvant::cuda
