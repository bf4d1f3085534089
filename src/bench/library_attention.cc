#include "bench/library_attention.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/float16.h"
#include "base/huge_buffer.h"
#include "cache/page_counts.h"
#include "kvant/kvant.h"

namespace kvant {
namespace {

constexpr std::uint64_t kLibrarySeed = 1;
constexpr std::size_t kEntryBytes = 16;  // Tables count memory in units of this many bytes.

Result<bool> is_rotated(const SidePlan& side) {
  if (side.transform_names.empty()) return false;
  if (side.transform_names == std::vector<std::string>{"hadamard"}) return true;
  return error("libkvant_cpu: the benchmark knows no transform but hadamard");
}

bool is_sealed(const Plan& plan) {
  return !plan.heads[0].k.sealed->plain() || !plan.heads[0].v.sealed->plain();
}

// Returns the shape of one sequence, in which all heads have the formats of the first head.
kvant_decode_shape shape_of(const Plan& plan) {
  const Geometry& g = plan.geometry;
  kvant_decode_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = 1;
  shape.n_kv_heads = g.n_kv_heads;
  shape.group = g.group(0);
  shape.head_dim = g.head_dim;
  shape.softmax_scale = g.softmax_scale;
  shape.key_format = plan.heads[0].k.sealed->name().c_str();
  shape.value_format = plan.heads[0].v.sealed->name().c_str();
  return shape;
}

// LayerPages holds a layer's sealed, tail or sink pages and the table of these pages, [KV head][side][page].
struct LayerPages {
  HugeBuffer memory;
  std::vector<std::int32_t> table;
  kvant_pages view{};

  LayerPages(int n_heads, int n_pages, const std::size_t (&page_bytes)[2]) {
    const std::size_t of_head = n_pages * (page_bytes[0] + page_bytes[1]);
    memory = HugeBuffer(std::max<std::size_t>(n_heads * of_head, kEntryBytes));
    std::memset(memory.data(), 0, memory.size());
    for (int head = 0; head < n_heads; ++head) {
      for (int i = 0; i < 2 * n_pages; ++i) {
        const std::size_t at =
            head * of_head +
            (i < n_pages ? i * page_bytes[0] : n_pages * page_bytes[0] + (i - n_pages) * page_bytes[1]);
        table.push_back(static_cast<std::int32_t>(at / kEntryBytes));
      }
    }
    view.table = table.data();
    view.head_stride = std::int64_t{2} * n_pages;
    view.side_stride = n_pages;
    view.pool = memory.data();
    view.page_stride = kEntryBytes;
  }
};

struct LibraryLayer {
  LayerPages sealed, tail, sink;
};

class CallsOfLibrary final : public LibraryAttention {
 public:
  CallsOfLibrary(std::shared_ptr<const Plan> plan, int context)
      : plan_(std::move(plan)), context_(context), counts_(counts_of(context)) {
    const Geometry& g = plan_->geometry;
    values_ = random_attention_values({g.n_heads, g.n_kv_heads, g.head_dim}, kLibrarySeed);
    output_.resize(values_.q.size());
    shape_ = shape_of(*plan_);
    sink_ = sink_of(counts_);
    tail_tokens_ = counts_.tail_tokens + 1;
    lengths_.struct_size = sizeof lengths_;
    lengths_.sealed_pages = counts_.sealed > 0 ? &counts_.sealed : nullptr;
    lengths_.tail_tokens = &tail_tokens_;
    lengths_.protected_tokens = sink_ > 0 ? &sink_ : nullptr;
  }

  Status fill() {
    const Geometry& g = plan_->geometry;
    const auto keys = is_rotated(plan_->head(0, 0).k), values = is_rotated(plan_->head(0, 0).v);
    if (!keys.ok()) return keys.error();
    if (!values.ok()) return values.error();
    rows_.struct_size = sizeof rows_;
    rows_.type = KVANT_F32;
    rows_.keys = values_.k.data();
    rows_.values = values_.v.data();
    rows_.key_head_stride = rows_.value_head_stride = g.head_dim;
    rows_.key_row_stride = rows_.value_row_stride = std::int64_t{g.n_kv_heads} * g.head_dim;
    rows_.key_hadamard = *keys ? 1 : 0;
    rows_.value_hadamard = *values ? 1 : 0;
    const std::size_t plain = std::size_t{2} * kPageTokens * g.head_dim;
    const std::size_t sealed[2] = {kvant_page_bytes(shape_.key_format, g.head_dim),
                                   kvant_page_bytes(shape_.value_format, g.head_dim)};
    for (int i = 0; i < g.n_layers; ++i) {
      layers_.push_back({{g.n_kv_heads, counts_.sealed, sealed},
                         {g.n_kv_heads, pages_for(tail_tokens_), {plain, plain}},
                         {g.n_kv_heads, pages_for(sink_), {plain, plain}}});
      KVANT_RETURN_IF_ERROR(fill_layer(layers_.back()));
    }
    return {};
  }

  Result<double> layer_seconds() override {
    using Clock = std::chrono::steady_clock;
    kvant_new_rows rows = rows_;
    rows.n_rows = 1;
    rows.queries = values_.q.data();
    const auto start = Clock::now();
    for (const LibraryLayer& pages : layers_) {
      kvant_decode_layer layer = layer_of(pages);
      layer.new_rows = &rows;
      layer.q = values_.q.data();
      layer.out = output_.data();
      layer.q_type = layer.out_type = KVANT_F32;
      layer.q_head_stride = layer.out_head_stride = shape_.head_dim;
      layer.out_hadamard = rows.value_hadamard;
      KVANT_RETURN_IF_ERROR(checked(kvant_decode_attention(&shape_, &lengths_, &layer, nullptr, 0, nullptr)));
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / n_layers();
  }

  double layer_bytes() const override { return bytes_of(counts_.sealed, tail_tokens_ + sink_); }
  // Bits are the mean over the positions of a page, as for a cache of the engine (mean_bits()).
  double bits() const override {
    const Geometry& g = plan_->geometry;
    const int first = std::max(0, context_ - kPageTokens) + 1;
    double sum = 0;
    for (int n = first; n <= context_; ++n) {
      const PageCounts counts = counts_of(n);
      sum += 8 * bytes_of(counts.sealed, counts.tail_tokens + sink_of(counts)) /
             (2.0 * n * g.n_kv_heads * g.head_dim);
    }
    return sum / (context_ - first + 1);
  }
  int n_layers() const override { return static_cast<int>(layers_.size()); }
  std::vector<std::string> kernels() const override { return {kvant_decode_kernel(&shape_)}; }

 private:
  // If pages are never quantized, all tokens lie in the tail.
  PageCounts counts_of(int n_tokens) const {
    if (is_sealed(*plan_)) return page_counts(n_tokens, plan_->layers[0].window);
    PageCounts counts;
    counts.tail_tokens = n_tokens;
    return counts;
  }
  int sink_of(const PageCounts& counts) const { return counts.sealed > 0 ? plan_->layers[0].sink : 0; }
  double bytes_of(int n_sealed, int n_plain) const {
    const int d = plan_->geometry.head_dim;
    const double of_pages = static_cast<double>(kvant_page_bytes(shape_.key_format, d) +
                                                kvant_page_bytes(shape_.value_format, d));
    return plan_->geometry.n_kv_heads * (n_sealed * of_pages + 4.0 * d * n_plain);
  }
  static Status checked(kvant_status status) {
    if (status == KVANT_OK) return {};
    return error("libkvant_cpu: {}", kvant_last_error());
  }

  kvant_decode_layer layer_of(const LibraryLayer& pages) const {
    kvant_decode_layer layer{};
    layer.struct_size = sizeof layer;
    layer.sealed = pages.sealed.view;
    layer.tail = pages.tail.view;
    layer.protected_pages = pages.sink.view;
    layer.sink = sink_;
    return layer;
  }

  // All sealed pages hold the same rows, so only page 0 is sealed, and the other pages are copies of page 0.
  Status fill_layer(const LibraryLayer& pages) {
    const kvant_decode_layer layer = layer_of(pages);
    std::vector<std::int32_t> seq(kPageTokens), token(kPageTokens);
    kvant_new_rows rows = rows_;
    rows.seq = seq.data();
    rows.tail_token = token.data();
    for (int first = 0; first < tail_tokens_; first += kPageTokens) {
      rows.n_rows = std::min(kPageTokens, tail_tokens_ - first);
      for (int i = 0; i < rows.n_rows; ++i) token[i] = first + i;
      KVANT_RETURN_IF_ERROR(checked(kvant_append(&shape_, &layer, &rows, nullptr)));
    }
    if (counts_.sealed == 0) return {};
    const std::int32_t zero = 0;
    rows.n_rows = kPageTokens;
    kvant_seal_range range{};
    range.struct_size = sizeof range;
    range.sealed_page = range.first_rows = &zero;
    range.max_pages = range.keep_sink = 1;
    range.rows = &rows;
    KVANT_RETURN_IF_ERROR(checked(kvant_seal_pages(&shape_, &layer, &range, nullptr)));
    for (int i = 0; i < 2 * shape_.n_kv_heads; ++i) {
      const char* const format = i % 2 == 0 ? shape_.key_format : shape_.value_format;
      const std::int32_t* const ids = layer.sealed.table + i * counts_.sealed;
      const auto at = [&](int page) {
        return static_cast<std::byte*>(const_cast<void*>(layer.sealed.pool)) +
               ids[page] * layer.sealed.page_stride;
      };
      for (int page = 1; page < counts_.sealed; ++page)
        std::memcpy(at(page), at(0), kvant_page_bytes(format, shape_.head_dim));
    }
    return {};
  }

  std::shared_ptr<const Plan> plan_;
  int context_;
  PageCounts counts_;
  std::int32_t tail_tokens_ = 0, sink_ = 0;
  kvant_decode_shape shape_{};
  kvant_decode_lengths lengths_{};
  kvant_new_rows rows_{};
  std::vector<LibraryLayer> layers_;
  AttentionValues values_;
  std::vector<float> output_;
};

// Returns an error that says what the contender or the library cannot do.
Status check_library_plan(const Plan& plan) {
  for (const HeadPlan& head : plan.heads) {
    if (head.k.sealed->name() != plan.heads[0].k.sealed->name() ||
        head.v.sealed->name() != plan.heads[0].v.sealed->name() ||
        !head.k.sealed->needed_constants().empty() || !head.v.sealed->needed_constants().empty())
      return error("libkvant_cpu: the benchmark takes recipes of one format a side, without codebooks");
  }
  const kvant_decode_shape shape = shape_of(plan);
  const kvant_plan asked{sizeof asked, &shape, plan.tail->name().c_str(),
                         is_sealed(plan) ? std::uint32_t{KVANT_SEALING | KVANT_SEALED_ROWS} : 0, 0};
  if (kvant_supports(&asked, nullptr) == KVANT_OK) return {};
  return error("libkvant_cpu: {}", kvant_last_error());
}

}  // namespace

Result<std::unique_ptr<LibraryAttention>> LibraryAttention::make(std::shared_ptr<const Plan> plan,
                                                                 int context) {
  KVANT_RETURN_IF_ERROR(check_library_plan(*plan));
  auto made = std::make_unique<CallsOfLibrary>(std::move(plan), context);
  KVANT_RETURN_IF_ERROR(made->fill());
  return std::unique_ptr<LibraryAttention>(std::move(made));
}

}  // namespace kvant
