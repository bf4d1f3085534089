#include "serve/cache_json.h"

#include <numeric>

#include "eval/cache_size.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

Json formats_json(const CacheGrid& grid) {
  Json formats = Json::array();
  for (const GridFormat& f : grid.formats) {
    formats.push_back({{"format", f.format},
                       {"transforms", f.transforms},
                       {"kernel", f.kernel},
                       {"fallback", f.fallback},
                       {"bits", f.bits},
                       {"page_bytes", f.page_bytes}});
  }
  return formats;
}

Json plan_json(const ServerInfo& info) {
  const CacheGrid& grid = info.grid;
  return {{"asked", grid.asked},
          {"recipe", grid.recipe},
          {"calibration", calibration_state_name(grid.calibration)},
          {"bits", info.bits},
          {"tail", grid.tail},
          {"tail_bits", grid.tail_bits},
          {"sink", grid.sink},
          {"window", grid.window},
          {"formats", formats_json(grid)},
          {"k", grid.k},
          {"v", grid.v}};
}

const char* state_name(const ServedSequence& s) {
  if (s.request == 0) return s.session.empty() ? "kept" : "session";
  return s.state == JobState::reading ? "reading" : "generating";
}

Json bytes_json(const CacheBytes& bytes) {
  return {{"sealed", bytes.sealed},
          {"protected", bytes.protected_tokens},
          {"sink", bytes.sink},
          {"tail", bytes.tail},
          {"recurrent", bytes.recurrent}};
}

Json sequence_json(const Geometry& geometry, const ServedSequence& s) {
  Json pages = Json::array();
  for (const PageRun& run : s.held.pages)
    pages.push_back({{"kind", page_kind_name(run.kind)}, {"shared", run.shared}, {"n", run.n_pages}});
  Json json = {{"id", s.id}, {"state", state_name(s)}};
  if (!s.session.empty()) json["session"] = s.session;
  if (s.request > 0) {
    json["request"] = s.request;
    json["answer"] = s.answer;
    json["prompt_tokens"] = s.usage.prompt;
    json["cached_tokens"] = s.usage.cached;
    json["generated_tokens"] = s.usage.generated;
  }
  json["tokens"] = s.held.n_tokens;
  json["bits"] = s.held.bytes.bits_all();
  json["bytes"] = bytes_json(s.held.bytes);
  json["bf16_bytes"] = bf16_bytes(geometry, s.held.n_tokens);
  json["pages"] = std::move(pages);
  json["k_bytes"] = s.held.k_bytes;
  json["v_bytes"] = s.held.v_bytes;
  return json;
}

// Returns the bytes of a sequence's pages and recurrent states.
std::int64_t page_bytes(const SequenceView& view) {
  return view.bytes.recurrent + std::accumulate(view.k_bytes.begin(), view.k_bytes.end(), std::int64_t{0}) +
         std::accumulate(view.v_bytes.begin(), view.v_bytes.end(), std::int64_t{0});
}

Json memory_json(const SchedulerOptions& options, const CacheView& view) {
  std::int64_t of_all = 0;
  for (const ServedSequence& s : view.sequences) of_all += page_bytes(s.held);
  return {{"pages", view.page_bytes},
          {"saved_by_sharing", of_all - view.page_bytes},
          {"reserved", view.status.cache_bytes},
          {"promised", view.status.promised_bytes},
          {"limit", options.memory}};
}

Json prefix_disk_json(const std::optional<PrefixDiskStatus>& disk) {
  if (!disk) return nullptr;
  return {{"files", disk->files},      {"bytes", disk->bytes},     {"limit", disk->limit},
          {"hits", disk->hits},        {"written", disk->written}, {"dropped", disk->dropped},
          {"failures", disk->failures}};
}

// Returns [KV heads, head size] of each layer. The page needs the list only for models whose layers differ.
Json heads_by_layer_json(const Geometry& g) {
  Json layers = Json::array();
  for (int layer = 0; layer < g.n_layers; ++layer) layers.push_back({g.kv_heads(layer), g.dim(layer)});
  return layers;
}

Json tokens_json(const SchedulerCounters& c) {
  return {{"read", c.prompt_tokens},
          {"cached", c.cached_tokens},
          {"generated", c.generated_tokens},
          {"prefix_hits", c.prefix_hits},
          {"prefix_misses", c.prefix_misses}};
}

}  // namespace

Json cache_json(const ServerInfo& info, const SchedulerOptions& options, const CacheView& view) {
  const Geometry& g = info.grid.geometry;
  Json sequences = Json::array();
  for (const ServedSequence& s : view.sequences) sequences.push_back(sequence_json(g, s));
  Json json = {{"schema", "kvant.cache/1"},
               {"seconds", view.seconds},
               {"model", info.model},
               {"name", info.recipe},
               {"layers", g.n_layers},
               {"kv_heads", g.n_kv_heads},
               {"head_dim", g.head_dim},
               {"page_tokens", kPageTokens},
               {"plan", plan_json(info)},
               {"memory", memory_json(options, view)},
               {"prefix_disk", prefix_disk_json(view.status.prefix_disk)},
               {"tokens", tokens_json(view.status.counters)},
               {"sequences", std::move(sequences)}};
  if (g.heads_differ()) json["heads_by_layer"] = heads_by_layer_json(g);
  return json;
}

}  // namespace kvant
