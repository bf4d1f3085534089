// Divides the workspace of a call into aligned parts. The same code first measures the workspace and later
// assigns the parts, so size and parts always agree.
#pragma once

#include <cstddef>

namespace kvant::cuda {

inline constexpr int kWorkspaceAlignment = 256;  // alignment of a workspace and of its parts in bytes

// Divides the workspace into parts. If the base is null, the cursor only measures the size.
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
