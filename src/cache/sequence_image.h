// Writes and reads a sequence as bytes, piece by piece. A server can run steps of other sequences between the
// pieces.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/byte_stream.h"
#include "cache/cache.h"

namespace kvant {

// Writes the bytes of Cache::export_sequence(). The sequence must not change before the end.
class SequenceExport {
 public:
  // The cache outlives the export. Returns the errors of Cache::export_sequence().
  static Result<SequenceExport> start(const Cache& cache, SequenceId sequence);
  // Writes about n_bytes more bytes and returns whether the export is complete. An error says that memory is
  // exhausted or that a step is open.
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
  int group_ = 0, page_ = 0;  // The next group, and the next page of this group.
};

// Reads the bytes for Cache::import_sequence(). Nobody else can name the sequence before the end.
class SequenceImport {
 public:
  // Cache and bytes outlive the import.
  SequenceImport(Cache& cache, std::span<const std::byte> bytes);
  // Reads about n_bytes more bytes and returns whether the import is complete. Returns the errors of
  // Cache::import_sequence(). After an error, the caller must begin again.
  Result<bool> advance(std::size_t n_bytes);
  // Returns the sequence, once, after the end. The caller must free the sequence.
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
  std::vector<int> n_sealed_;  // The sealed pages of the image, by group.
  bool begun_ = false;
  int group_ = 0, page_ = 0;  // The next group, and the next page of this group.
};

}  // namespace kvant
