// Tests --device: the messages on a machine without a GPU or its library, and a generation on a machine with
// a GPU.
#include "cli/testing/program.h"

#include <algorithm>

namespace kvant {
namespace {

using DeviceOption = testing::Program;
using testing::Outcome;

bool have_nvidia_gpu() {
  return std::filesystem::exists("/dev/nvidiactl");
}

// Expects a refusal of one line that contains `words`.
void expect_one_sentence(const Outcome& outcome, const std::string& words) {
  EXPECT_NE(outcome.code, 0);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
}

TEST_F(DeviceOption, UnknownDevicesAreRefused) {
  expect_one_sentence(run("run -m model.gguf -p abc --device tpu"), "'tpu' is not a device");
  expect_one_sentence(run("run -m model.gguf -p abc --device cuda:x"), "'cuda:x' is not a device");
}

TEST_F(DeviceOption, WhatRunsOnTheCpuOnlySaysSo) {
  expect_one_sentence(run("eval -m model.gguf -f text.txt --device cuda --compare-backend cpu"),
                      "--compare-backend runs on the CPU only");
}

TEST_F(DeviceOption, ReportsRunRowsOfLlamaCppOnTheCpuOnly) {
  expect_one_sentence(
      run("report -m model.gguf -f text.txt -o report.html --device cuda --kv bf16,llama.cpp:q8_0"),
      "llama.cpp:q8_0 runs on the CPU only, not with --device cuda");
}

TEST_F(DeviceOption, ABackendOfTheCpuIsNotIgnored) {
  for (const char* command :
       {"run -m model.gguf -p abc", "eval -m model.gguf -f text.txt", "bench -m model.gguf",
        "serve -m model.gguf --port 0", "calibrate -m model.gguf --kv kvant-4bit",
        "report -m model.gguf -f text.txt -o report.html", "advise -m model.gguf", "info -m model.gguf",
        "tune -m model.gguf --budget 3bit -o tuned.json"}) {
    for (const char* name : {"cpu/portable", "no-such"}) {
      expect_one_sentence(run(command + std::string(" --device cuda --backend ") + name),
                          std::string("--backend ") + name);
    }
  }
  // A user may spell out the default --backend cpu, so the message must be about the device.
  expect_one_sentence(run("run -m model.gguf -p abc --device tpu --backend cpu"), "'tpu' is not a device");
  expect_one_sentence(run("eval -m model.gguf -f text.txt --device tpu --backend reference"),
                      "'tpu' is not a device");
  expect_one_sentence(run("eval -m model.gguf -f text.txt --device cuda --backend cpu"), "--backend cpu");
}

TEST_F(DeviceOption, LayersOfAGpuNeedOne) {
  expect_one_sentence(run("run -m model.gguf -p abc -ngl 3"), "--gpu-layers");
  expect_one_sentence(run("run -m model.gguf -p abc --gpu-layers -1"), "--gpu-layers");
}

TEST_F(DeviceOption, CachesOutOfAGpusMemoryNeedOne) {
  for (const char* option : {"--no-kv-offload", "-nkvo"}) {
    expect_one_sentence(run(std::string("run -m model.gguf -p abc ") + option), "--no-kv-offload");
    // With --no-kv-offload the CPU attends, so a CPU backend is allowed and the unknown device is refused
    // instead.
    expect_one_sentence(
        run(std::string("run -m model.gguf -p abc --device tpu --backend cpu/portable ") + option),
        "'tpu' is not a device");
  }
}

TEST_F(DeviceOption, WithoutAnNvidiaDriverOneSentenceSaysSo) {
  if (have_nvidia_gpu()) GTEST_SKIP() << "there is a GPU";
  expect_one_sentence(run("run -m model.gguf -p abc --device cuda"), "no driver");
  expect_one_sentence(run("run -m model.gguf -p abc --device cuda --session s"), "no driver");
  expect_one_sentence(run("run -m model.gguf -p abc --device cuda --guard"), "no driver");
  expect_one_sentence(run("eval -m model.gguf -f text.txt --device cuda"), "--device cpu");
  expect_one_sentence(run("eval -m model.gguf -f text.txt --device cuda --layers"), "--device cpu");
  expect_one_sentence(run("bench -m model.gguf --device cuda"), "--device cpu");
  expect_one_sentence(run("bench -m model.gguf --device cuda --against llama.cpp"), "--device cpu");
  expect_one_sentence(run("calibrate -m model.gguf --kv kvant-4bit --device cuda"), "--device cpu");
  expect_one_sentence(run("serve -m model.gguf --port 0 --device cuda"), "--device cpu");
  expect_one_sentence(run("report -m model.gguf -f text.txt -o report.html --device cuda"), "--device cpu");
  expect_one_sentence(run("advise -m model.gguf --device cuda"), "--device cpu");
  expect_one_sentence(run("info -m model.gguf --device cuda"), "--device cpu");
  expect_one_sentence(run("tune -m model.gguf --budget 3bit -o tuned.json --device cuda"), "--device cpu");
}

}  // namespace
}  // namespace kvant
