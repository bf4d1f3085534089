#include "serve/sequence_reading.h"

namespace kvant {

void SequenceReading::begin_import() {
  current_->import = std::make_unique<SequenceImport>(cache_, current_->contents.sequence.bytes());
}

void SequenceReading::give(LoadedSession contents) {
  current_->contents = std::move(contents);
  begin_import();
}

Result<bool> SequenceReading::advance(const std::function<void(const Status&)>& finish) {
  if (!current_) {
    if (wanted_.empty()) return false;
    current_.emplace(File{.name = wanted_.front()});
    wanted_.pop_front();
    disk_.read(current_->name);
    return true;
  }
  if (!current_->import) return false;
  const auto done = current_->import->advance(kPieceBytes);
  if (done.ok() && !*done) return true;
  if (!done.ok() && done.error().is_shortage) {
    begin_import();
    return done.error();
  }
  finish(done.ok() ? Status() : Status(done.error()));
  return true;
}

}  // namespace kvant
