#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "format/format.h"
#include "recipe/builtin.h"
#include "recipe/parser_property.h"
#include "recipe/recipe.h"
#include "recipe/recipe_fields.h"
#include "transform/transform.h"

namespace kvant::recipe_parser_test {
namespace {

Recipe parsed(const std::string& text) {
  auto recipe = parse_recipe(text);
  EXPECT_TRUE(recipe.ok()) << text << ": " << recipe.error().message;
  return recipe.ok() ? *recipe : Recipe{};
}

std::string message_of(const std::string& text) {
  const auto recipe = parse_recipe(text);
  EXPECT_FALSE(recipe.ok()) << text;
  return recipe.ok() ? "" : recipe.error().message;
}

void expect_in(const std::string& part, const std::string& whole) {
  EXPECT_NE(whole.find(part), std::string::npos) << "'" << part << "' is not in: " << whole;
}

TEST(BuiltinRecipes, ComeBackFromTheirPrintedForms) {
  for (const Recipe& recipe : builtin_recipes()) {
    SCOPED_TRACE(recipe.name);
    check_printed_forms(recipe);
    EXPECT_EQ(parsed(recipe.name), recipe);
  }
}

TEST(BuiltinRecipes, HaveNamesOfTheirOwnAndASummary) {
  std::vector<std::string> names;
  for (const Recipe& recipe : builtin_recipes()) {
    EXPECT_FALSE(recipe.summary.empty()) << recipe.name;
    EXPECT_EQ(recipe.name.find_first_of(",;= "), std::string::npos) << recipe.name;
    names.push_back(recipe.name);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(BuiltinRecipes, HoldWhatTheMethodsSay) {
  EXPECT_EQ(to_string(parsed("kivi-2bit")), "k=ch2g128,v=tok2g128,window=128");
  EXPECT_EQ(to_string(parsed("quarot-4bit")), "k=hadamard:tok4g128,v=hadamard:tok4g128,window=128");
  EXPECT_EQ(parsed("quarot-4bit").tier, Tier::comparison);
  EXPECT_EQ(to_string(parsed("q4_0")), "k=tok4g32s,v=tok4g32s");
  EXPECT_EQ(to_string(parsed("f16")), "k=f16,v=f16");
  EXPECT_EQ(to_string(parsed("vecinfer-2bit")), "k=smooth+hadamard:vq-d4b8,v=vq-d4b8,sink=4,window=128");
  EXPECT_EQ(to_string(parsed("kvarn-k4v2")), "k=hadamard:vch4,v=hadamard:vtok2,sink=128,tail=f16");
  EXPECT_EQ(to_string(parsed("vllm-tq-3bit-nc")), "k=hadamard:lm3n,v=tok3g512,k@edge2=bf16,v@edge2=bf16");
  EXPECT_EQ(to_string(parsed("ultraquant")), "k=hadamard:mxfp4c156,v=mxfp4c156,k@edge2=bf16,v@edge2=bf16");
  EXPECT_EQ(to_string(parsed("nova-2bit")),
            "k=mean+nova:npq-d4b8,v=oscar+hadamard:tok2g128c92,sink=64,window=256");
  EXPECT_EQ(to_string(parsed("turboattention-mix")),
            "k=prog4,v=prog4,sink=4,mix=0.5,mix_k=prog2,mix_v=prog2,softmax=sas,products=integer,tail=int8");
  EXPECT_EQ(to_string(parsed("turbo3-sparse-v")), "k=rhadamard:lm3,v=rhadamard:lm3,skip=1e-6");
  EXPECT_EQ(to_string(parsed("vquant-k4v2")), "k=ch4g128,v=tok2g128,window=128,protect=0.05");
}

TEST(RecipeParser, ReadsEveryKey) {
  const Recipe recipe = parsed("k=mean+hadamard:ch4g128,v=tok2g64,sink=4,window=256,prefill=all");
  EXPECT_EQ(recipe.k, (SideRecipe{{"mean", "hadamard"}, "ch4g128"}));
  EXPECT_EQ(recipe.v, (SideRecipe{{}, "tok2g64"}));
  EXPECT_EQ(recipe.sink, 4);
  EXPECT_EQ(recipe.window, 256);
  EXPECT_EQ(recipe.prefill, kPrefillAll);
  EXPECT_EQ(recipe.name, "");
  EXPECT_EQ(parsed("prefill=512").prefill, 512);
  EXPECT_EQ(parsed("bf16").prompt, PromptAttention::exact);
  EXPECT_EQ(parsed("prompt=int4").prompt, PromptAttention::int4);
  EXPECT_EQ(parsed("prompt=sage").prompt, PromptAttention::sage);
}

TEST(RecipeParser, ReadsTheKeysOfTheMethods) {
  const Recipe recipe = parsed(
      "k=prog4,v=prog4,prompt=int8,protect=0.05,evict=0.5,mix=0.5,mix_metric=entropy,mix_k=prog2,mix_v=prog3,"
      "softmax=sas-paper,"
      "products=integer,skip=1e-6,correction=relative,tail=tok8g32s");
  EXPECT_EQ(recipe.prompt, PromptAttention::int8);
  EXPECT_EQ(recipe.protect, 0.05);
  EXPECT_EQ(recipe.evict, 0.5);
  EXPECT_EQ(recipe.mix, 0.5);
  EXPECT_EQ(recipe.mix_metric, "entropy");
  EXPECT_EQ(recipe.mix_k, "prog2");
  EXPECT_EQ(recipe.mix_v, "prog3");
  EXPECT_EQ(recipe.softmax, Softmax::sas_paper);
  EXPECT_EQ(recipe.products, Products::integer);
  EXPECT_EQ(recipe.skip, 1e-6);
  EXPECT_EQ(recipe.correction, Correction::relative);
  EXPECT_EQ(recipe.tail, "tok8g32s");
  expect_in(",skip=1e-6,", to_string(recipe));
  check_printed_forms(recipe);
  EXPECT_EQ(to_string(parsed("kivi-2bit,protect=0,mix_k=,softmax=exact,tail=")),
            to_string(parsed("kivi-2bit")));
}

TEST(RecipeParser, ReadsTheLayersOfTheCorrection) {
  const Recipe some = parsed("kvlinc-2bit,correction_layers=3-9");
  EXPECT_EQ(some.correction_layers, (LayerRange{3, 9}));
  EXPECT_TRUE(some.correction_layers.contains(9));
  EXPECT_FALSE(some.correction_layers.contains(10));
  expect_in(",correction_layers=3-9", to_string(some));
  check_printed_forms(some);
  const Recipe one = parsed("kvlinc-2bit,correction_layers=7");
  EXPECT_EQ(one.correction_layers, (LayerRange{7, 7}));
  check_printed_forms(one);
  EXPECT_EQ(to_string(parsed("kvlinc-2bit,correction_layers=1,correction_layers=all")),
            to_string(parsed("kvlinc-2bit")));
  for (const char* text : {"", "9-3", "1-", "-2", "x", "0 - 1", "1-2-3"})
    expect_in("write 'all', LAYER or FIRST-LAST", message_of(std::string("correction_layers=") + text));
}

TEST(RecipeParser, ReadsBackEveryNumberThatItPrints) {
  for (const char* text :
       {"0", "1", "0.1", "1e-6", "1e-16", "0.30000000000000004", "4.9406564584124654e-324"}) {
    const Recipe recipe = parsed(std::string("skip=") + text);
    check_printed_forms(recipe);
  }
  EXPECT_EQ(parsed("skip=0.000001"), parsed("skip=1e-06"));
}

TEST(RecipeParser, DefaultsToAnUnquantizedCache) {
  EXPECT_EQ(parsed("sink=0"), Recipe{});
  EXPECT_EQ(to_string(Recipe{}), "k=bf16,v=bf16");
}

TEST(RecipeParser, ChangesANamedRecipeAndItsName) {
  const Recipe recipe = parsed("kivi-2bit, window=0 ,v=tok4g128");
  EXPECT_EQ(recipe.name, "kivi-2bit,window=0,v=tok4g128");
  EXPECT_EQ(recipe.window, 0);
  EXPECT_EQ(recipe.k.format, "ch2g128");
  EXPECT_EQ(recipe.v.format, "tok4g128");
  EXPECT_EQ(parsed(recipe.name), recipe);
}

TEST(RecipeParser, ReadsOverridesInOrder) {
  const Recipe recipe = parsed("kivi-2bit,k@0-3=bf16,v@18.1=hadamard:tok4g128,k@2-4.0=fp8");
  ASSERT_EQ(recipe.overrides.size(), 3U);
  EXPECT_EQ(recipe.overrides[0], (SideOverride{Side::key, 0, 3, -1, {{}, "bf16"}}));
  EXPECT_EQ(recipe.overrides[1], (SideOverride{Side::value, 18, 18, 1, {{"hadamard"}, "tok4g128"}}));
  EXPECT_EQ(recipe.overrides[2], (SideOverride{Side::key, 2, 4, 0, {{}, "fp8"}}));
  check_printed_forms(recipe);
}

TEST(RecipeParser, LetsASideForAllLayersReplaceItsOverrides) {
  const Recipe recipe = parsed("k@0-3=bf16,v@1=fp8,k=ch4g128");
  ASSERT_EQ(recipe.overrides.size(), 1U);
  EXPECT_EQ(recipe.overrides[0].side, Side::value);
}

TEST(RecipeParser, TakesEveryFormatForAPlainRecipe) {
  for (const std::string& format : format_names()) {
    const Recipe recipe = parsed(format);
    EXPECT_EQ(recipe.name, format);
    EXPECT_EQ(recipe.k, (SideRecipe{{}, format}));
    EXPECT_EQ(recipe.v, (SideRecipe{{}, format}));
  }
  const Recipe pair = parsed("hadamard:tok8g32s/tok4g128,sink=4");
  EXPECT_EQ(to_string(pair), "k=hadamard:tok8g32s,v=tok4g128,sink=4");
  EXPECT_EQ(pair.name, "hadamard:tok8g32s/tok4g128,sink=4");
}

TEST(RecipeParser, TakesEveryTransform) {
  for (const std::string& name : transform_names()) {
    EXPECT_EQ(parsed("k=" + name + ":fp8").k.transforms, std::vector<std::string>{name});
  }
}

TEST(PlainRecipe, UnderstandsLlamaCppNames) {
  for (const LlamaCppType& type : llama_cpp_types()) {
    ASSERT_NE(find_format(type.format), nullptr) << type.name;
    const auto recipe = plain_recipe(type.name, "f16");
    ASSERT_TRUE(recipe.ok());
    EXPECT_EQ(recipe->k.format, type.format);
    EXPECT_EQ(recipe->v.format, "f16");
    EXPECT_EQ(recipe->name, std::string(type.name) + "/f16");
  }
}

// llama.cpp's blocks hold 32 values in 34, 24, 22, 20 and 18 bytes.
TEST(PlainRecipe, GivesLlamaCppNamesTheBitsThatTheyHaveThere) {
  const std::pair<const char*, double> expected[] = {
      {"q8_0", 8.5}, {"q5_1", 6.0}, {"q5_0", 5.5}, {"q4_1", 5.0}, {"q4_0", 4.5}};
  for (const auto& [name, bits] : expected) {
    EXPECT_EQ(find_format(plain_recipe(name, name)->k.format)->bits(64), bits) << name;
  }
}

TEST(RecipeErrors, NameTheNearestRecipe) {
  expect_in("kivi-2bit", message_of("kivi-2bits"));
  expect_in("unknown recipe or format 'kivi-2bits'", message_of("kivi-2bits"));
  expect_in("quarot-4bit", message_of("quarto-4bit,sink=4"));
  expect_in("tok4g128", message_of("tok4g127"));
  expect_in("known recipes: kvant-4bit, kvant-3bit", message_of("xxxxxxxxxxxxxxxxxxxxx"));
  expect_in("or a file FILE.json", message_of("xxxxxxxxxxxxxxxxxxxxx"));
}

TEST(RecipeErrors, SuggestTheRecipeOfTheWantedBits) {
  for (const char* name : {"int4", "4", "4bit", "w4"}) expect_in("did you mean kvant-4bit", message_of(name));
  for (const char* name : {"int4", "4"}) {
    EXPECT_EQ(message_of(name).find("int8"), std::string::npos) << message_of(name);
    EXPECT_EQ(message_of(name).find("lm3"), std::string::npos) << message_of(name);
  }
  expect_in("did you mean kivi-2bit", message_of("kivi-2bits"));
  expect_in("tok4g128", message_of("tok4g127"));
}

TEST(RecipeErrors, NameTheNearestKeyTransformAndFormat) {
  expect_in("did you mean window", message_of("kivi-2bit,windw=0"));
  expect_in("did you mean hadamard", message_of("k=hadamrd:ch4g128"));
  expect_in("k: unknown format 'ch4g129'; did you mean ch4g128", message_of("k=ch4g129"));
  expect_in("known transforms: hadamard", message_of("v=:fp8"));
  expect_in("unknown format 'q4_9'; did you mean q4_1, q4_0 or q8_0?", message_of("q8_0/q4_9"));
  const std::string patterns = message_of("k=xxxxxxxxxxxxxxxxxxxxx");
  expect_in("known formats: bf16|f16, fp8, fp8-s1, tok<B>g<N>", patterns);
  EXPECT_LT(patterns.size(), 400U);
}

TEST(RecipeErrors, SayWhatAValueMayBe) {
  expect_in("sink: '129' is not a number of tokens from 0 to 128", message_of("sink=129"));
  expect_in("sink: '-1'", message_of("sink=-1"));
  expect_in("sink: ''", message_of("sink="));
  expect_in("window: '100' is not a multiple of 128", message_of("window=100"));
  expect_in("window: '99999999999999999999'", message_of("window=99999999999999999999"));
  expect_in("prefill: '0' is neither 'all' nor a multiple of 128", message_of("prefill=0"));
  expect_in("prefill: '130'", message_of("prefill=130"));
  expect_in("protect: '0.6' is not a number from 0 to 0.5", message_of("protect=0.6"));
  expect_in("evict: '1.5' is not a number from 0 to 1", message_of("evict=1.5"));
  expect_in("prompt: 'fp8' is not one of exact, int8, int4", message_of("prompt=fp8"));
  for (const char* text : {"", "-0", "nan", "inf", "5%", "1e-999", "0x1", " "}) {
    expect_in("is not a number from 0 to 1", message_of(std::string("skip=") + text));
    expect_in("is not a number from 0 to 1", message_of(std::string("mix=") + text));
  }
  expect_in("mix_metric: 'gap' is not one of gap-std, entropy, min-max, variation",
            message_of("mix_metric=gap"));
  expect_in("softmax: 'fast' is not one of exact, sas, sas-paper", message_of("softmax=fast"));
  expect_in("products: 'int' is not one of real, integer", message_of("products=int"));
  expect_in("correction: 'on' is not one of none, absolute, relative", message_of("correction=on"));
  expect_in("mix_k: unknown format 'ch4g129'; did you mean ch4g128", message_of("mix_k=ch4g129"));
  expect_in("mix_v: unknown format 'hadamard:fp8'", message_of("mix_v=hadamard:fp8"));
  expect_in("tail: unknown format 'int7'", message_of("tail=int7"));
  expect_in("tail: the format ch4g128 cannot store single tokens", message_of("tail=ch4g128"));
}

TEST(RecipeErrors, SayWhereTheTextIsNotARecipe) {
  expect_in("does not begin with a name", message_of(""));
  expect_in("does not begin with a name", message_of(",sink=4"));
  expect_in("'' is not of the form key=value", message_of("bf16,"));
  expect_in("'fp8' is not of the form key=value", message_of("bf16,fp8"));
  for (const char* key : {"k@", "k@-", "k@3-1", "k@a", "k@0.", "k@0-3.x", "v@0-", "k@99999"}) {
    expect_in("does not name layers", message_of(std::string(key) + "=fp8"));
  }
  expect_in("cannot read the recipe file 'no/such/file.json': No such file", message_of("no/such/file.json"));
  expect_in("'/etc/recipe.txt' is not a recipe file: the name must end in .json",
            message_of("/etc/recipe.txt"));
  expect_in("'../mine' is not a recipe file", message_of("../mine"));
}

TEST(RecipeErrors, QuoteNothingUnprintable) {
  const std::string message = message_of(std::string(5000, '\x01'));
  EXPECT_LT(message.size(), 1500U);
  for (char c : message) EXPECT_TRUE(c >= ' ' && c <= '~');
}

TEST(RecipeList, StartsARecipeAtEveryItemWithoutAKey) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(split_recipe_list("bf16,kivi-2bit,window=0,sink=4,q8_0/q4_0"),
            (Texts{"bf16", "kivi-2bit,window=0,sink=4", "q8_0/q4_0"}));
  EXPECT_EQ(split_recipe_list("bf16;k=fp8,v=bf16; k=bf16,v=fp8"),
            (Texts{"bf16", "k=fp8,v=bf16", "k=bf16,v=fp8"}));
  EXPECT_EQ(split_recipe_list(""), Texts{});
  EXPECT_EQ(split_recipe_list(";,;"), Texts{});
}

TEST(RecipeJson, TakesEveryKeyAsTextOrNumber) {
  const auto recipe = recipe_from_json(R"({"name": "mine", "recipe": "kivi-2bit", "v": "tok4g128", "sink": 4,
      "window": "256", "prefill": "all", "tier": "comparison", "overrides": ["k@0-3=bf16", "k@1=fp8"]})");
  ASSERT_TRUE(recipe.ok()) << recipe.error().message;
  EXPECT_EQ(to_string(*recipe), "k=ch2g128,v=tok4g128,sink=4,window=256,prefill=all,k@0-3=bf16,k@1=fp8");
  EXPECT_EQ(recipe->name, "mine");
  EXPECT_EQ(recipe->tier, Tier::comparison);
}

TEST(RecipeJson, PrintsEveryFieldOfTheTable) {
  const std::string json = to_json(parsed("kivi-2bit,k@3=fp8"));
  for (const RecipeField& field : recipe_fields()) expect_in("\"" + std::string(field.key) + "\": ", json);
  expect_in("\"window\": 128", json);
  expect_in("\"k@3=fp8\"", json);
}

TEST(RecipeJson, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not valid JSON"},
      {"[1]", "must be a JSON object"},
      {R"({"windw": 0})", "did you mean window"},
      {R"({"window": 100})", "not a multiple of 128"},
      {R"({"window": []})", "'window' must be a string or a number"},
      {R"({"sink": 1.5})", "sink: '1.5'"},
      {R"({"recipe": 3})", "'recipe' must be the name"},
      {R"({"recipe": "kivi-2bits"})", "kivi-2bit"},
      {R"({"recipe": "other.json"})", "unknown recipe"},
      {R"({"overrides": "k@0=fp8"})", "'overrides' must be a list"},
      {R"({"overrides": ["k=fp8"]})", "'overrides' must hold strings"},
      {R"({"tier": "best"})", "neither 'product' nor 'comparison'"},
  };
  for (const auto& [json, part] : cases) {
    const auto recipe = recipe_from_json(json);
    ASSERT_FALSE(recipe.ok()) << json;
    expect_in(part, recipe.error().message);
  }
}

TEST(RecipeJson, IsReadFromAFileAndOverridden) {
  const auto path = std::filesystem::temp_directory_path() / "kvant_recipe_parser_test.json";
  std::ofstream(path) << R"({"k": "ch2g128", "v": "tok2g128"})";
  const Recipe recipe = parsed(path.string() + ",sink=4");
  EXPECT_EQ(to_string(recipe), "k=ch2g128,v=tok2g128,sink=4");
  EXPECT_EQ(recipe.name, path.string() + ",sink=4");
  std::ofstream(path) << R"({"k": "ch2g129"})";
  expect_in("recipe file", message_of(path.string()));
  std::filesystem::remove(path);
}

TEST(RecipeLabel, IsTheNameOrTheStringForm) {
  EXPECT_EQ(label(parsed("kivi-2bit")), "kivi-2bit");
  EXPECT_EQ(label(parsed("k=fp8")), "k=fp8,v=bf16");
}

// The seeds are the inputs from which the fuzzer starts and the inputs that it has found.
TEST(RecipeFuzzSeeds, AreHandled) {
  const auto folder = std::filesystem::path(__FILE__).parent_path() / "../../fuzz/seeds/recipe";
  int n_seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    SCOPED_TRACE(entry.path().string());
    check_parsers(text.str());
    ++n_seeds;
  }
  EXPECT_GT(n_seeds, 5);
}

}  // namespace
}  // namespace kvant::recipe_parser_test
