// A sequence as bytes, made or read piece by piece, so that steps may go on between the pieces.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/byte_stream.h"
#include "cache/cache.h"

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
  int n_groups() const;

  const Cache* cache_;
  SequenceId sequence_;
  ByteWriter to_;
  int group_ = 0, page_ = 0;  // that is next, of it
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
  bool read_ledger(int group, int length);
  bool read_states(int length);
  int n_groups() const;

  Cache* cache_;
  std::size_t n_bytes_;
  ByteReader from_;
  Cache::Sequence sequence_;
  std::vector<int> n_sealed_;  // of the image, of each group
  bool begun_ = false;
  int group_ = 0, page_ = 0;  // that is next, of it
};

}  // namespace kvant
