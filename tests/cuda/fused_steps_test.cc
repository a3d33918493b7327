// Decode steps whose attention rotates and stores the newest tokens itself (DecodeConfig::fuses_rope), as the
// backend captures and replays them: what they give, and what they leave in the cache, is what the same
// tokens do as rows that are rotated and stored by a kernel of their own and attended to without a graph.
//
//   fused_steps_test
//
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/cuda/cuda_backend.h"
#include "tests/cuda/attention_runner.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

/// Of a row: both ways round probabilities to 8 bits, each in its own splits of the tokens. A token too many
/// or too few is 0.08 or more.
constexpr double kTolerance = 4e-2;
/// Steps that are not replays: the first two of a shape, and shapes change as sequences grow.
constexpr int kMostForwards = 12;

/// What a sequence is, as a session's bytes.
std::string Saved(const Runner& runner, int sequence) {
  std::string folder = std::filesystem::temp_directory_path() / "blockgtq_fused_steps_XXXXXX";
  Check(mkdtemp(folder.data()) != nullptr, "a folder of its own for sessions");
  const std::string path = folder + "/session";
  runner.Save(sequence, path);
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::filesystem::remove_all(folder);
  return bytes;
}

/// The configuration that a step of `runner`'s cache runs in.
DecodeConfig StepConfig(const Runner& runner, const DeviceLimits& limits, int batch) {
  HeadTraits traits;
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::span plans =
        std::span(runner.plan().heads).subspan(static_cast<size_t>(layer) * kKvHeads, kKvHeads);
    const HeadTraits own = Require(TraitsOf(plans, runner.ropes()[layer]), "traits");
    if (layer == 0) traits = own;
    traits.Include(own);
  }
  DecodeShape shape;
  shape.batch = batch;
  shape.kv_heads = kKvHeads;
  shape.head_dim = kDim;
  shape.query_heads = kHeads / kKvHeads;
  shape.expected_tokens = 64;
  shape.has_exact = true;
  shape.window_tiles = runner.cache().window_tiles();
  shape.layers = kLayers;
  return Require(ConfigureDecode(shape, traits, limits), "configuration");
}

/// prompts: tokens of each sequence before `steps` decoded ones.
void TestSteps(Backend& backend, const DeviceLimits& limits, const CacheCase& c,
               const std::vector<int64_t>& prompts, int steps) {
  const int sequences = static_cast<int>(prompts.size());
  const std::string name = c.Name() + ", " + std::to_string(sequences) + " sequences: ";
  Runner fused(backend, c), apart(backend, c);
  Check(StepConfig(fused, limits, sequences).fuses_rope(),
        name + "attention rotates the newest token itself");
  for (int s = 0; s < sequences; ++s) {
    fused.Add();
    apart.Add();
    fused.Step({{s, prompts[static_cast<size_t>(s)]}});
    apart.Step({{s, prompts[static_cast<size_t>(s)]}});
  }

  // Strict rows attend as decoded tokens do; a step with more than one row of a sequence is not captured.
  std::vector<std::vector<std::vector<float>>> expected;  // [sequences][layers][steps * row]
  for (int s = 0; s < sequences; ++s) expected.push_back(apart.Step({{s, steps, true}}));

  const int forwards = fused.forwards();
  std::vector<Piece> pieces;
  for (int s = 0; s < sequences; ++s) pieces.push_back({s, 1});
  constexpr size_t kRow = size_t{kHeads} * kDim;
  double worst = 0;
  for (int step = 0; step < steps; ++step) {
    const std::vector<std::vector<float>> got = fused.Step(pieces);
    for (int s = 0; s < sequences; ++s) {
      for (size_t layer = 0; layer < kLayers; ++layer) {
        const auto row = [&](const std::vector<float>& rows, int at) {
          const auto first = rows.begin() + static_cast<std::ptrdiff_t>(at * kRow);
          return std::vector<float>(first, first + kRow);
        };
        const double off = Distance(row(expected[static_cast<size_t>(s)][layer], step), row(got[layer], s));
        worst = std::max(worst, off);
        Check(off <= kTolerance, name + "step " + std::to_string(step) + ", sequence " + std::to_string(s) +
                                     ", layer " + std::to_string(layer) + ": off by " + std::to_string(off));
      }
    }
  }
  const int run = fused.forwards() - forwards;
  Check(run >= 2 && run <= kMostForwards,
        name + "steps are replayed: " + std::to_string(run) + " of " + std::to_string(steps) + " were not");
  for (int s = 0; s < sequences; ++s) {
    Check(Saved(fused, s) == Saved(apart, s),
          name + "sequence " + std::to_string(s) + "'s exact tokens and codes differ in the cache");
  }
  std::printf("%-50s %d steps, %d not replayed, worst row %.1e\n", name.c_str(), steps, run, worst);
}

void Run(const DeviceLimits& limits, bool) {
  const auto gpu = Require(CreateCudaBackend({"cuda", 1}), "the backend");
  // The first token among the sinks; pages leave the window while steps are replayed, of each sequence at
  // another step.
  for (const auto& [sinks, recent] : {std::pair{4, 64}, std::pair{0, 64}, std::pair{17, 100}}) {
    TestSteps(*gpu, limits, {CacheKind::kPacked, sinks, recent}, {70}, 80);
    TestSteps(*gpu, limits, {CacheKind::kPacked, sinks, recent}, {1, 70, 110}, 80);
  }
  TestSteps(*gpu, limits, {CacheKind::kPacked, 4, 64, 40}, {1, 70}, 80);
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::Run); }
