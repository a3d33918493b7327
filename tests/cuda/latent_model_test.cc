// A tiny DeepSeek-V2 on the GPU against the CPU: logits over fp16, packed and simulated caches of latents, of
// prompts, strict rows and decoded tokens, and of several sequences at once.
//
//   latent_model_test [quick] [MODEL]    MODEL: of tests/data/models where it is left out
//
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "src/engine/calibration.h"
#include "src/engine/context.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

std::string g_model = "tests/data/models/hf/deepseek_v2";

std::vector<Token> Ids(size_t count, size_t seed) {
  std::vector<Token> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<Token>((i * 97 + i * i * 13 + seed * 31) % 256);
  return ids;
}

std::unique_ptr<LoadedModel> Open(const char* device) {
  std::unique_ptr<LoadedModel> model =
      Require(LoadedModel::Open(g_model, {.device = device, .threads = 2}, TokenizerUse::kIfThere), device);
  model->backend().SetPrecision(Precision::kFloat);
  return model;
}

/// Logits of every token of two sequences: prompts in pieces, then both decoded token by token.
std::vector<float> Logits(LoadedModel& model, const CacheOptions& options, const Plan* plan, bool strict) {
  const std::unique_ptr<Context> context = Require(Context::Create(model, options, plan), "context");
  std::vector<float> all;
  const auto run = [&](std::span<const SequenceTokens> items, size_t rows) {
    Require(context->Run(items, {.strict = strict}), "run");
    std::vector<int64_t> indices(rows);
    for (size_t i = 0; i < rows; ++i) indices[i] = static_cast<int64_t>(i);
    const std::span<const float> logits = Require(context->Logits(indices), "logits");
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const std::vector<Token> a = Ids(340, 1), b = Ids(200, 2);
  const SequenceId first = Require(context->cache().AddSequence(), "sequence");
  const SequenceId second = Require(context->cache().AddSequence(), "sequence");
  const auto part = [](const std::vector<Token>& ids, size_t begin, size_t count) {
    return std::span(ids).subspan(begin, count);
  };
  const std::vector<SequenceTokens> prompt = {{first, part(a, 0, 150)}, {second, part(b, 0, 40)}};
  run(prompt, 190);
  const std::vector<SequenceTokens> more = {{first, part(a, 150, 100)}, {second, part(b, 40, 70)}};
  run(more, 170);
  for (size_t i = 0; i < 90; ++i) {
    const std::vector<SequenceTokens> step = {{first, part(a, 250 + i, 1)}, {second, part(b, 110 + i, 1)}};
    run(step, 2);
  }
  return all;
}

double RootMeanSquare(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

/// The GPU's logits are near the CPU's: by what fp16 costs, and far nearer than what the codes cost.
void Compare(const std::string& name, const std::vector<float>& cpu, const std::vector<float>& gpu,
             double largest) {
  const double error = cpu.size() == gpu.size() ? RootMeanSquare(cpu, gpu) : INFINITY;
  char figures[80];
  std::snprintf(figures, sizeof figures, ": CPU to GPU %.2e, at most %.2e", error, largest);
  std::printf("%s%s\n", name.c_str(), figures);
  Check(error < largest, name + figures);
}

void RunAll(const DeviceLimits&, bool quick) {
  const std::unique_ptr<LoadedModel> cpu = Open("cpu"), gpu = Open("cuda");
  CacheOptions half;
  half.kind = CacheKind::kHalf;
  half.max_tokens = 640;
  const std::vector<float> exact = Logits(*cpu, half, nullptr, false);
  double size = 0;
  for (float x : exact) size += double{x} * x;
  size = std::sqrt(size / static_cast<double>(exact.size()));
  Compare("fp16 cache", exact, Logits(*gpu, half, nullptr, false), 3e-3 * size);

  const std::vector<Token> ids = Ids(400, 3);
  const std::vector<HeadCalibration> measured = Require(Measure(*gpu, ids, {}), "calibration on the GPU");
  const Plan plan = Require(MakePlan(*cpu, measured, "aligned", {3, 3, 1}), "plan");
  CacheOptions simulated;
  simulated.kind = CacheKind::kSimulated;
  simulated.max_tokens = 640;
  simulated.simulated =
      std::make_shared<const SimulatedHeads>(SimulatePlan(cpu->config(), plan, "sim:aligned"));
  const std::vector<float> twin = Logits(*cpu, simulated, nullptr, true);
  Compare("simulated cache", twin, Logits(*gpu, simulated, nullptr, true),
          0.25 * RootMeanSquare(twin, exact));
  for (const bool strict : {true, false}) {
    for (const int recent : {64, 0}) {
      if (quick && (recent == 0 || strict)) continue;
      CacheOptions options;
      options.recent = recent;
      options.max_tokens = 640;
      const std::vector<float> coded = Logits(*cpu, options, &plan, strict);
      const std::string name =
          std::string(strict ? "strict" : "chunks") + ", recent " + std::to_string(recent);
      Compare(name, coded, Logits(*gpu, options, &plan, strict), 0.25 * RootMeanSquare(coded, exact));
    }
  }
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) {
  if (!std::filesystem::exists(blockgtq::cuda::g_model))
    blockgtq::cuda::g_model = std::string(BGTQ_TEST_DATA) + "/models/hf/deepseek_v2";
  if (argc > 1 && std::string(argv[argc - 1]) != "quick") blockgtq::cuda::g_model = argv[argc - 1];
  return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::RunAll);
}
