#include "python/calibration.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <tuple>
#include <utility>

#include "calibrate/default_text.h"
#include "calibrate/first_use.h"
#include "calibrate/needs.h"
#include "calibrate/outside_calibration.h"
#include "calibrate/sealed_gguf.h"
#include "python/interruptible.h"
#include "recipe/plan.h"
#include "recipe/recipe.h"
#include "task/calibration_files.h"

namespace kvant {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using Tokens = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Moments = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// Holds a pair of channels and the share of a whole turn by which each token rotates the pair.
using Turn = std::tuple<int, int, double>;

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> array_of(std::vector<T> numbers) {
  auto* kept = new std::vector<T>(std::move(numbers));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner);
}

MatrixView<const float> view(const Rows& rows) {
  return {rows.data(), static_cast<int>(rows.shape(0)), static_cast<int>(rows.shape(1))};
}

// Returns the geometry of a model whose layers are all alike and attend to all tokens.
Geometry geometry_of(int n_layers, int n_heads, int n_kv_heads, int head_dim, float softmax_scale,
                     int trained_context) {
  if (n_layers < 1 || n_kv_heads < 1 || n_heads % n_kv_heads != 0 || head_dim < 8 || trained_context < 1)
    throw PythonError{"these numbers describe no model"};
  Geometry geometry;
  geometry.n_layers = n_layers;
  geometry.n_heads = n_heads;
  geometry.n_kv_heads = n_kv_heads;
  geometry.head_dim = head_dim;
  geometry.softmax_scale = softmax_scale;
  geometry.trained_context = trained_context;
  geometry.sliding_window.assign(n_layers, 0);
  return geometry;
}

std::vector<ChannelTurn> turns_of(const std::vector<Turn>& turns) {
  std::vector<ChannelTurn> all;
  for (const auto& [first, second, share] : turns) {
    const double positive = share - std::floor(share);
    all.push_back({first, second, static_cast<std::uint64_t>(std::ldexp(positive, 64))});
  }
  return all;
}

nb::list to_list(const std::vector<Sample>& samples) {
  nb::list all;
  for (const Sample& sample : samples)
    all.append(nb::make_tuple(array_of(sample.tokens), sample.position_offset));
  return all;
}

Recipe recipe_of(const std::string& text) {
  return value_or_raise(parse_recipe(text));
}

// Returns whether the calibration has the sensitivities to the formats of the recipe's ladder. Calibration
// stores them for all layers, heads and sides, so the function looks only for the first of them.
bool has_sensitivities(const Calibration& calibration, const Recipe& recipe, const Geometry& geometry) {
  if (recipe.budget == 0) return false;
  const std::string stored = stored_sensitivity(recipe, geometry, /*layer=*/0, /*kv_head=*/0, Side::key);
  return !calibration.constants.find(/*layer=*/0, /*kv_head=*/0, Side::key, stored).empty();
}

// Holds a range of KV heads, which a rank of tensor parallelism has.
struct HeadRange {
  int first, n;
};

Constants constants_of_heads(const Constants& all, HeadRange heads) {
  Constants found;
  all.for_each([&](int layer, int kv_head, Side side, const std::string& name, const auto& values) {
    if (kv_head >= heads.first && kv_head < heads.first + heads.n)
      found.set(layer, kv_head - heads.first, side, name, {values.begin(), values.end()});
  });
  return found;
}

// Returns the formats that the recipe's plan gives the KV heads of a range, which have the whole budget for
// themselves. For each layer and KV head, the list holds the transforms and the format of K, then the
// transforms and the format of V.
nb::list planned_heads(const Calibration& calibration, const Recipe& recipe, Geometry geometry,
                       HeadRange range) {
  if (range.n == 0) range.n = geometry.n_kv_heads;
  if (range.first < 0 || range.n < 0 || range.first + range.n > geometry.n_kv_heads)
    throw PythonError{"the model has no such KV heads"};
  geometry.n_heads = geometry.n_heads / geometry.n_kv_heads * range.n;
  geometry.n_kv_heads = range.n;
  auto constants =
      value_or_raise(constants_for(recipe, geometry, constants_of_heads(calibration.constants, range)));
  const auto plan =
      value_or_raise(resolve(recipe, geometry, std::make_shared<const Constants>(std::move(constants))));
  nb::list layers;
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    nb::list heads;
    for (int head = 0; head < geometry.kv_heads(layer); ++head) {
      const HeadPlan& found = plan->head(layer, head);
      heads.append(nb::make_tuple(found.k.transform_names, found.k.sealed->name(), found.v.transform_names,
                                  found.v.sealed->name()));
    }
    layers.append(heads);
  }
  return layers;
}

void bind_outside_calibration(nb::module_& m) {
  nb::class_<OutsideCalibration>(m, "OutsideCalibration")
      .def_static(
          "make",
          [](const std::string& description, const std::string& fingerprint, const Geometry& geometry,
             const std::vector<std::vector<Turn>>& turns, const std::string& recipe, const std::string& text,
             const std::string& device, std::uint64_t seed) {
            OutsideModel model{description, fingerprint, geometry, {}};
            for (const std::vector<Turn>& of_layer : turns) model.turns.push_back(turns_of(of_layer));
            return value_or_raise(OutsideCalibration::make(
                std::move(model), {recipe_of(recipe)}, {.seed = seed}, text.empty() ? 0 : fnv1a(text),
                {.weights = "transformers", .backend = "torch", .device = device}));
          },
          "description"_a, "fingerprint"_a, "geometry"_a, "turns"_a, "recipe"_a, "text"_a, "device"_a,
          "seed"_a)
      .def("samples",
           [](const OutsideCalibration& of, const Tokens& tokens, int bos) {
             return to_list(value_or_raise(of.samples({tokens.data(), tokens.size()}, bos)));
           })
      .def("query_contexts",
           [](const OutsideCalibration& of, const Tokens& tokens, int bos) {
             return to_list(value_or_raise(of.query_contexts({tokens.data(), tokens.size()}, bos)));
           })
      .def("first_scored",
           [](const OutsideCalibration&, int n_tokens) { return first_scored_query(n_tokens); })
      .def("store", [](OutsideCalibration& of, int sequence, int layer, const Rows& q, const Rows& k,
                       const Rows& v) { of.store(sequence, layer, view(q), view(k), view(v)); })
      .def("add_moments",
           [](OutsideCalibration& of, int layer, int kv_head, const Moments& moments) {
             of.add_moments(layer, kv_head, {moments.data(), moments.size()});
           })
      .def_prop_ro("weighs", &OutsideCalibration::weighs)
      .def("begin_context", [](OutsideCalibration& of, int context,
                               int threads) { value_or_raise(of.begin_context(context, threads)); })
      .def("add_gradient",
           [](OutsideCalibration& of, int layer, const Rows& q, const Rows& k, const Rows& v,
              const Rows& gradient) { of.add_gradient(layer, view(q), view(k), view(v), view(gradient)); })
      .def("end_context",
           [](OutsideCalibration& of, int context, int n_scored) { of.end_context(context, n_scored); })
      .def("learn", [](OutsideCalibration& of, int threads) {
        std::atomic<bool> stop{false};
        return value_or_raise(interruptible(stop, [&] { return of.learn(threads, &stop); }));
      });
}

void bind_files(nb::module_& m) {
  nb::class_<Geometry>(m, "Geometry")
      .def(
          "__init__",
          [](Geometry* geometry, int n_layers, int n_heads, int n_kv_heads, int head_dim, float softmax_scale,
             int trained_context) {
            new (geometry) Geometry(
                geometry_of(n_layers, n_heads, n_kv_heads, head_dim, softmax_scale, trained_context));
          },
          "n_layers"_a, "n_heads"_a, "n_kv_heads"_a, "head_dim"_a, "softmax_scale"_a, "trained_context"_a);
  nb::class_<Calibration>(m, "Calibration")
      .def_static("read", [](const std::string& path) { return value_or_raise(read_calibration(path)); })
      .def("write",
           [](const Calibration& calibration, const std::string& path) {
             std::error_code ignored;  // ignored, because the writer reports the failure
             std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
             value_or_raise(write_calibration(calibration, path));
           })
      .def_ro("model", &Calibration::model)
      .def_ro("fingerprint", &Calibration::fingerprint)
      .def_prop_ro("numbers",
                   [](const Calibration& of) {
                     const LayersAndHeads numbers = layers_and_heads(of.constants);
                     return std::pair{numbers.layers, numbers.kv_heads};
                   })
      .def("has_sensitivities",
           [](const Calibration& of, const std::string& recipe, const Geometry& geometry) {
             return has_sensitivities(of, recipe_of(recipe), geometry);
           })
      .def("stored",
           [](const Calibration& of, const std::string& wanted) {
             nb::list all;  // list of tuples (layer, KV head, side, values)
             of.constants.for_each(
                 [&](int layer, int kv_head, Side side, const std::string& name, const auto& values) {
                   if (name == wanted)
                     all.append(nb::make_tuple(layer, kv_head, static_cast<int>(side), array_of(values)));
                 });
             return all;
           })
      .def(
          "planned_heads",
          [](const Calibration& of, const std::string& recipe, const Geometry& geometry, int first_kv_head,
             int n_kv_heads) {
            return planned_heads(of, recipe_of(recipe), geometry, {first_kv_head, n_kv_heads});
          },
          "recipe"_a, "geometry"_a, "first_kv_head"_a = 0, "n_kv_heads"_a = 0)
      .def_prop_ro("quality",
                   [](const Calibration& calibration) {
                     nb::list all;
                     for (const RecipeQuality& q : calibration.quality)
                       all.append(nb::make_tuple(q.recipe, q.key_error, q.value_error, q.output_error));
                     return all;
                   })
      .def("constants", [](const Calibration& calibration, const std::string& recipe,
                           const Geometry& geometry) {
        nb::list all;  // list of tuples (layer, KV head, side, name, values)
        const Constants found =
            value_or_raise(constants_for(recipe_of(recipe), geometry, calibration.constants));
        found.for_each([&](int layer, int kv_head, Side side, const std::string& name, const auto& values) {
          all.append(nb::make_tuple(layer, kv_head, static_cast<int>(side), name, array_of(values)));
        });
        return all;
      });
  m.def("calibration_path", [](const std::string& recipe, const Geometry& geometry,
                               const std::string& fingerprint, const std::string& text) {
    return first_use_path(calibration_folder(), recipe_of(recipe), geometry, fingerprint, text);
  });
  m.def("default_calibration_text", &default_calibration_text);
}

}  // namespace

void bind_calibration(nanobind::module_& m) {
  bind_files(m);
  bind_outside_calibration(m);
}

}  // namespace kvant
