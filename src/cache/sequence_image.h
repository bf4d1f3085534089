// A sequence as bytes, made or read piece by piece, so that steps may go on between the pieces.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/byte_stream.h"
#include "cache/cache.h"
#include "cache/device_image.h"

namespace kvant {

// What Cache::export_sequence() gives. The sequence may not change before the end.
class SequenceExport {
 public:
  // The cache outlives it. An error: see Cache::export_sequence.
  static Result<SequenceExport> start(const Cache& cache, SequenceId sequence);
  // About so many bytes more. Whether that was the end. An error: out of memory, or a step is open.
  Result<bool> advance(std::size_t n_bytes);
  std::vector<std::byte> take() { return to_.take(); }

 private:
  SequenceExport(const Cache& cache, SequenceId sequence);
  Status write_head();
  Status write_states(const Cache::Sequence& s);
  Status write_page(std::size_t group, int page);
  int n_sealed(std::size_t group) const;
  const PageLayout& layout(std::size_t group) const;

  const Cache* cache_;
  SequenceId sequence_;
  std::optional<DeviceImage> device_;  // none: pages lie in host memory
  ByteWriter to_;
  std::size_t group_ = 0;  // that is next
  int page_ = 0;           // of it
};

// What Cache::import_sequence() takes. Until its end nobody can name the sequence.
class SequenceImport {
 public:
  // Cache and bytes outlive it.
  SequenceImport(Cache& cache, std::span<const std::byte> bytes);
  // About so many bytes more. Whether that was the end. An error: see Cache::import_sequence; begin anew
  // then.
  Result<bool> advance(std::size_t n_bytes);
  // After the end, once: the caller's to free.
  SequenceId take();

 private:
  bool read_head();
  bool read_ledger(std::size_t group, int length);
  bool read_states(int length);
  bool read_heads();
  bool read_page();

  Cache* cache_;
  std::size_t n_bytes_;
  ByteReader from_;
  Cache::Sequence sequence_;
  std::optional<DeviceImage> device_;  // none: pages lie in host memory
  std::vector<int> n_sealed_;          // of the image, of each group
  bool begun_ = false;
  std::size_t group_ = 0;  // that is next
  int page_ = 0;           // of it
};

}  // namespace kvant
