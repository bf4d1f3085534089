// Writes and reads the bytes of a sequence. All numbers are little-endian, and integers have 32 bits:
//
//   magic, version, layers, KV heads, head size (if layers differ, the largest numbers), length
//   the number of pages that the checkpoint has summed up
//   for each layer group: sealed pages, freed pages
//   for a model with layers without attention: the number of tokens of the checkpoint's state (0 if none),
//     then in F32 the state of the sequence unless empty, and the checkpoint's state if different
//   for each (layer, KV head): the data besides the entries (HeadImage)
//   for each layer group: its sealed entries in canonical order (PageLayout), oldest first
//     (pages whose tokens are all evicted are zero), then the unsealed pages,
//     for each head the rows of K and then the rows of V
#include "cache/sequence_image.h"

#include <array>
#include <limits>
#include <new>

namespace kvant {
namespace {

constexpr std::uint32_t kMagic = 0x7173766b;  // The characters "kvsq".
constexpr int kVersion = 2;                   // In version 1, means of tcq pages had 16 bits.
constexpr int kMaxTokens = 1 << 30;
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

std::array<std::int32_t, 5> shape_of(const Geometry& g) {
  return {static_cast<std::int32_t>(kMagic), kVersion, g.n_layers, g.n_kv_heads, g.head_dim};
}

}  // namespace

// --- export ---

SequenceExport::SequenceExport(const Cache& cache, SequenceId sequence)
    : cache_(&cache), sequence_(sequence) {}

Result<SequenceExport> SequenceExport::start(const Cache& cache, SequenceId sequence) {
  KVANT_RETURN_IF_ERROR(cache.check_idle(sequence, "export"));
  try {
    SequenceExport made(cache, sequence);
    KVANT_RETURN_IF_ERROR(made.write_head());
    return made;
  } catch (const std::bad_alloc&) {
    return cache.out_of_memory("exporting a sequence");
  }
}

int SequenceExport::n_groups() const {
  return static_cast<int>(cache_->store_->groups().size());
}

Status SequenceExport::write_head() {
  const Cache::Sequence& s = cache_->sequences_.at(sequence_);
  to_.write(shape_of(cache_->plan().geometry));
  to_.write<std::int32_t>(s.length());
  to_.write<std::int32_t>(s.pages->checkpoint_pages());
  std::size_t n_bytes = 0;
  for (int i = 0; i < n_groups(); ++i) {
    const int n_sealed = s.pages->image_sealed(i), first_page = s.pages->ledger(i).first_page();
    to_.write<std::int32_t>(n_sealed);
    to_.write<std::int32_t>(first_page);
    n_bytes +=
        static_cast<std::size_t>(n_sealed - first_page) * cache_->store_->groups()[i].layout.entry_bytes();
  }
  if (cache_->plan().geometry.is_recurrent()) KVANT_RETURN_IF_ERROR(write_states(s));
  KVANT_RETURN_IF_ERROR(s.pages->save_heads([&](int layer, int kv_head, const HeadImage& head) {
    head.save(to_, cache_->plan(), {layer, kv_head, s.length()});
  }));
  to_.reserve(n_bytes);
  page_ = s.pages->ledger(0).first_page();
  return {};
}

Status SequenceExport::write_states(const Cache::Sequence& s) {
  to_.write<std::int32_t>(s.checkpoint_tokens);
  if (s.length() > 0) KVANT_RETURN_IF_ERROR(cache_->store_->save_state(to_, s.state.get()));
  if (0 < s.checkpoint_tokens && s.checkpoint_tokens < s.length())
    KVANT_RETURN_IF_ERROR(cache_->store_->save_state(to_, s.checkpoint_state.get()));
  return {};
}

Result<bool> SequenceExport::advance(std::size_t n_bytes) {
  KVANT_RETURN_IF_ERROR(cache_->check_idle(sequence_, "export"));
  const SequencePages& pages = cache_->pages(sequence_);
  const std::size_t start = to_.size();
  try {
    for (; group_ < n_groups();
         ++group_, page_ = group_ < n_groups() ? pages.ledger(group_).first_page() : 0) {
      for (; page_ < pages_for(pages.length()); ++page_) {
        if (to_.size() - start >= n_bytes) return false;
        KVANT_RETURN_IF_ERROR(pages.save_page(to_, group_, page_));
      }
    }
  } catch (const std::bad_alloc&) {
    return cache_->out_of_memory("exporting a sequence");
  }
  return true;
}

Result<std::vector<std::byte>> Cache::export_sequence(SequenceId sequence) const {
  auto whole = SequenceExport::start(*this, sequence);
  if (!whole.ok()) return whole.error();
  if (const auto done = whole->advance(kAll); !done.ok()) return done.error();
  return whole->take();
}

// --- import ---

SequenceImport::SequenceImport(Cache& cache, std::span<const std::byte> bytes)
    : cache_(&cache), n_bytes_(bytes.size()), from_(bytes) {}

int SequenceImport::n_groups() const {
  return static_cast<int>(cache_->store_->groups().size());
}

// Returns false if memory is exhausted.
bool SequenceImport::read_head() {
  sequence_.pages = cache_->store_->make_sequence();
  const auto shape = from_.read<std::array<std::int32_t, 5>>();
  from_.require(shape == shape_of(cache_->plan().geometry));
  const int length = from_.read_int(0, kMaxTokens);
  sequence_.pages->set_checkpoint_pages(from_.read_int(-1, length / kPageTokens));
  for (int i = 0; i < n_groups() && from_.ok(); ++i) {
    if (!read_ledger(i, length)) return false;
  }
  if (cache_->plan().geometry.is_recurrent() && !read_states(length)) return false;
  if (!from_.ok()) return true;
  const auto next = [&](int layer, int kv_head) {
    const int n_sealed = n_sealed_[cache_->store_->group_of(layer)];
    return HeadImage::load(from_, cache_->plan(), {layer, kv_head, length, n_sealed});
  };
  if (!sequence_.pages->load_heads(from_, n_sealed_.front(), next)) return false;
  page_ = sequence_.pages->ledger(0).first_page();
  return true;
}

bool SequenceImport::read_ledger(int i, int length) {
  const Plan& plan = cache_->plan();
  const PageGroup& group = cache_->store_->groups()[i];
  const int sealed = n_sealed_.emplace_back(from_.read_int(0, length / kPageTokens));
  const int freed = from_.read_int(0, freed_pages(length, group.rules.sliding_window, sealed));
  // The bytes must contain what the sequence holds, before memory is taken for it.
  from_.require(from_.n_left() / group.layout.entry_bytes() >= static_cast<std::size_t>(sealed - freed));
  const int d = plan.geometry.dim(group.layers.front());
  from_.require(from_.n_left() / plan.tail->short_page_bytes(d, 1) >=
                static_cast<std::size_t>(length - sealed * kPageTokens));
  from_.require(!cache_->store_->groups_seal_alike() || !group.rules.seals || sealed == n_sealed_.front());
  return !from_.ok() || sequence_.pages->take_pages(i, length, sealed, freed);
}

bool SequenceImport::read_states(int length) {
  const auto n_bytes = static_cast<std::size_t>(cache_->plan().geometry.recurrent_bytes());
  const auto read = [&](RecurrentState& state) {
    const std::byte* from = from_.skip(n_bytes);
    if (from == nullptr) return true;
    const std::shared_ptr<float> copy = cache_->store_->take_state();
    if (copy == nullptr) return false;
    cache_->store_->load_state(from, copy.get());
    state = copy;
    return true;
  };
  sequence_.checkpoint_tokens = from_.read_int(0, length);
  if (length > 0 && !read(sequence_.state)) return false;
  if (sequence_.checkpoint_tokens == length) sequence_.checkpoint_state = sequence_.state;
  const bool has_other = 0 < sequence_.checkpoint_tokens && sequence_.checkpoint_tokens < length;
  return !has_other || read(sequence_.checkpoint_state);
}

Result<bool> SequenceImport::advance(std::size_t n_bytes) {
  if (cache_->step_open_)
    return error("cannot import a sequence while a step is open: commit or abort it first");
  const std::size_t start = from_.n_left();
  try {
    if (!std::exchange(begun_, true) && !read_head()) return cache_->out_of_memory("importing a sequence");
    SequencePages& pages = *sequence_.pages;
    for (; group_ < n_groups() && from_.ok();
         ++group_, page_ = group_ < n_groups() ? pages.ledger(group_).first_page() : 0) {
      for (; page_ < pages_for(pages.length()) && from_.ok(); ++page_) {
        if (start - from_.n_left() >= n_bytes) return false;
        if (!pages.load_page(from_, group_, page_)) return cache_->out_of_memory("importing a sequence");
      }
    }
  } catch (const std::bad_alloc&) {
    return cache_->out_of_memory("importing a sequence");
  }
  from_.require(from_.at_end());
  if (from_.ok()) KVANT_RETURN_IF_ERROR(cache_->store_->finish());
  if (from_.ok()) return true;
  const Plan& plan = cache_->plan();
  return error(
      "cannot import a sequence of {} bytes: they are not of a cache of {} with {} layers, {} KV heads and "
      "head size {}, or they are damaged; compute the sequence again",
      n_bytes_, label(plan.recipe), plan.geometry.n_layers, plan.geometry.n_kv_heads, plan.geometry.head_dim);
}

SequenceId SequenceImport::take() {
  cache_->sequences_.emplace(cache_->next_id_, std::move(sequence_));
  return cache_->next_id_++;
}

Result<SequenceId> Cache::import_sequence(std::span<const std::byte> bytes) {
  SequenceImport whole(*this, bytes);
  if (const auto done = whole.advance(kAll); !done.ok()) return done.error();
  try {
    return whole.take();
  } catch (const std::bad_alloc&) {
    return out_of_memory("importing a sequence");
  }
}

}  // namespace kvant
