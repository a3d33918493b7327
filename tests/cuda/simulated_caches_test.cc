// Simulated caches with the model on the GPU and their attention on the host, against the CPU backend, over a
// small model with random weights: logits, what observers and probes see, and a budget's calibration.
//
//   simulated_caches_test [quick]     quick: fewer caches, and no budget
//
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "src/core/half.h"
#include "src/engine/bundled_text.h"
#include "src/eval/joint_plan.h"
#include "src/eval/kld_probe.h"
#include "src/eval/partial_heads.h"
#include "src/formats/gguf_writer.h"
#include "src/text/byte_alphabet.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

constexpr int64_t kLayers = 3, kHeads = 4, kKvHeads = 2, kDim = 64, kWidth = 256, kVocabulary = 256;

/// A llama of random weights that fp16 holds exactly, which reads bytes. Keys and queries are large enough
/// for attention to choose.
void WriteModel(const std::string& path) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < kVocabulary; ++byte) tokens.push_back(ByteToAlphabet(static_cast<uint8_t>(byte)));
  tokens.back() = "th";  // a merge; no text has byte 255
  const GgufMetadata metadata = {{"general.architecture", std::string("llama")},
                                 {"llama.block_count", uint32_t{kLayers}},
                                 {"llama.context_length", uint32_t{1024}},
                                 {"llama.embedding_length", uint32_t{kWidth}},
                                 {"llama.feed_forward_length", uint32_t{kWidth}},
                                 {"llama.attention.head_count", uint32_t{kHeads}},
                                 {"llama.attention.head_count_kv", uint32_t{kKvHeads}},
                                 {"llama.attention.layer_norm_rms_epsilon", 1e-5f},
                                 {"llama.rope.freq_base", 10000.0f},
                                 {"tokenizer.ggml.model", std::string("gpt2")},
                                 {"tokenizer.ggml.pre", std::string("gpt-2")},
                                 {"tokenizer.ggml.tokens", tokens},
                                 {"tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), 1)},
                                 {"tokenizer.ggml.merges", std::vector<std::string>{"t h"}}};
  std::vector<GgufWriteTensor> tensors;
  std::vector<float> gains;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float gain) {
    tensors.push_back({name, TensorType::kF32, std::move(shape)});
    gains.push_back(gain);
  };
  add("token_embd.weight", {kVocabulary, kWidth}, 16);
  add("output.weight", {kVocabulary, kWidth}, 3);
  add("output_norm.weight", {kWidth}, 0);
  for (int64_t l = 0; l < kLayers; ++l) {
    const std::string layer = "blk." + std::to_string(l) + ".";
    add(layer + "attn_norm.weight", {kWidth}, 0);
    add(layer + "ffn_norm.weight", {kWidth}, 0);
    add(layer + "attn_q.weight", {kHeads * kDim, kWidth}, 2);
    add(layer + "attn_k.weight", {kKvHeads * kDim, kWidth}, 1);
    add(layer + "attn_v.weight", {kKvHeads * kDim, kWidth}, 1);
    add(layer + "attn_output.weight", {kWidth, kHeads * kDim}, 1);
    add(layer + "ffn_gate.weight", {kWidth, kWidth}, 1);
    add(layer + "ffn_up.weight", {kWidth, kWidth}, 1);
    add(layer + "ffn_down.weight", {kWidth, kWidth}, 1);
  }
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  Require(WriteGguf(path, metadata, tensors,
                    [&](size_t i, const GgufSink& sink) {
                      std::vector<float> x(static_cast<size_t>(tensors[i].bytes()) / sizeof(float));
                      const float size = gains[i] / std::sqrt(static_cast<float>(kWidth));
                      for (float& v : x)
                        v = gains[i] == 0 ? 1 : HalfToFloat(FloatToHalf(size * normal(random)));
                      return sink(std::as_bytes(std::span(x)));
                    }),
          "a model");
}

std::unique_ptr<LoadedModel> Open(const std::string& path, const char* device) {
  std::unique_ptr<LoadedModel> model =
      Require(LoadedModel::Open(path, {.device = device, .threads = 2}), device);
  model->backend().SetPrecision(Precision::kFloat);
  return model;
}

std::vector<Token> Ids(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> ids(count);
  for (Token& id : ids) id = static_cast<Token>(random() % kVocabulary);
  return ids;
}

/// Logits of every token of two sequences: prompts in pieces, then both decoded token by token.
std::vector<float> Logits(LoadedModel& model, const CacheOptions& options, bool strict) {
  const std::unique_ptr<Context> context = Require(Context::Create(model, options, nullptr), "a context");
  const std::vector<Token> a = Ids(330, 1), b = Ids(230, 2);
  const SequenceId first = Require(context->cache().AddSequence(), "a sequence");
  const SequenceId second = Require(context->cache().AddSequence(), "a sequence");
  std::vector<float> all;
  const auto run = [&](size_t a_begin, size_t a_count, size_t b_begin, size_t b_count) {
    const std::vector<SequenceTokens> items = {{first, std::span(a).subspan(a_begin, a_count)},
                                               {second, std::span(b).subspan(b_begin, b_count)}};
    Require(context->Run(items, {.strict = strict}), "a pass");
    std::vector<int64_t> rows(a_count + b_count);
    std::iota(rows.begin(), rows.end(), 0);
    const std::span<const float> logits = Require(context->Logits(rows), "logits");
    all.insert(all.end(), logits.begin(), logits.end());
  };
  run(0, 150, 0, 40);
  run(150, 100, 40, 110);
  for (size_t i = 0; i < 80; ++i) run(250 + i, 1, 150 + i, 1);
  return all;
}

double Rms(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}
double Rms(std::span<const float> a) { return Rms(a, std::vector<float>(a.size(), 0.0f)); }

struct TestCase {
  const char* recipe;  // "": one side of one head, all else exact
  int sinks, recent;
  int64_t memory_tokens = 0;
};

class Caches {
 public:
  explicit Caches(LoadedModel& cpu) : cpu_(cpu) {
    const std::vector<Token> ids = Ids(400, 3);
    measured_ = Require(Measure(cpu, ids, {}), "calibration");
  }
  CacheOptions Options(const TestCase& c) const {
    CacheOptions options;
    options.kind = CacheKind::kSimulated;
    options.sinks = c.sinks;
    options.recent = c.recent;
    options.max_tokens = 768;
    if (*c.recipe == '\0') {
      const size_t at = kKvHeads + 1;  // layer 1, head 1
      const HeadPlan plan = Require(
          (*Require(FindRecipe("aligned"), "a recipe")).plan_head(measured_[at], {2, 2, 2}, 1, 1), "a plan");
      options.simulated = OneSideStored(cpu_.config(), plan, std::make_shared<RopeTable>(cpu_.config().rope),
                                        1, 1, StoredSide::kKeys);
      return options;
    }
    const Recipe& recipe = *Require(FindRecipe(c.recipe), "a recipe");
    RecipeOptions bits{2, 2, 2};
    if (recipe.k_bits > 0) bits = {recipe.k_bits, recipe.v_bits};
    bits.memory_tokens = c.memory_tokens;
    options.simulated = std::make_shared<const SimulatedHeads>(
        Require(MakeSimulated(cpu_, measured_, c.recipe, bits), c.recipe));
    return options;
  }

 private:
  LoadedModel& cpu_;
  std::vector<HeadCalibration> measured_;
};

/// The GPU's logits differ from the CPU's by float rounding, and by the few codes that it tips over, which
/// tip over others in later layers: far less than codes do.
void TestLogits(LoadedModel& cpu, LoadedModel& gpu, const Caches& caches, bool quick) {
  CacheOptions float_cache;
  float_cache.kind = CacheKind::kFloat;
  float_cache.max_tokens = 768;
  const std::vector<float> exact = Logits(cpu, float_cache, true);
  const double size = Rms(exact);
  const std::vector<TestCase> cases = {{"kivi", 4, 64},      {"", 0, 0},           {"kivi-scale-only", 0, 0},
                                       {"pmkvq", 0, 0, 200}, {"pmkvq", 1, 128},    {"q4_0", 4, 0},
                                       {"sim:paper", 0, 64}, {"sim:aligned", 0, 0}};
  for (const TestCase& c : cases) {
    if (quick && &c - cases.data() > 1) break;
    const CacheOptions options = caches.Options(c);
    for (const bool strict : {true, false}) {
      const std::vector<float> expected = Logits(cpu, options, strict);
      const double apart = Rms(expected, Logits(gpu, options, strict)), codes = Rms(expected, exact);
      char figures[200];
      std::snprintf(figures, sizeof figures,
                    "%s %s, %d sinks, %d recent: CPU to GPU %.1e, codes %.1e, of %.2f",
                    *c.recipe != '\0' ? c.recipe : "one side of a head", strict ? "strict" : "chunks",
                    c.sinks, c.recent, apart, codes, size);
      std::printf("%s\n", figures);
      Check(apart < std::max(1e-3 * size, 0.25 * codes), figures);
      Check(codes > 3e-3 * size, std::string("codes show: ") + figures);
    }
  }
}

class Collector : public AttentionObserver {
 public:
  void Observe(int, int64_t rows, const float* queries, const float* keys, const float* values) override {
    seen.insert(seen.end(), queries, queries + rows * kHeads * kDim);
    seen.insert(seen.end(), keys, keys + rows * kKvHeads * kDim);
    seen.insert(seen.end(), values, values + rows * kKvHeads * kDim);
  }
  std::vector<float> seen;
};

/// What an observer sees, and what a simulated cache makes of a pass that an fp16 cache drives.
void TestOnlookers(LoadedModel& cpu, LoadedModel& gpu, const Caches& caches) {
  std::vector<float> observed[2], probed[2];
  LoadedModel* const models[] = {&cpu, &gpu};
  const std::vector<Token> ids = Ids(200, 4);
  for (int m = 0; m < 2; ++m) {
    const auto add = [&](const CacheOptions& options) {
      auto context = Require(Context::Create(*models[m], options, nullptr), "a context");
      Require(context->cache().AddSequence(), "a sequence");
      return context;
    };
    const CacheOptions simulated = caches.Options({"kivi", 0, 64});
    const SequenceTokens item{0, ids};
    Collector collector;
    Require(add(simulated)->Run({&item, 1}, {.strict = true, .observer = &collector}), "an observed pass");
    observed[m] = std::move(collector.seen);

    CacheOptions half;
    half.kind = CacheKind::kHalf;
    half.max_tokens = 256;
    const auto driving = add(half), beside = add(simulated);
    Context* const others[] = {beside.get()};
    const ContextProbe probe{others, [&](int, std::span<const Activations* const> outputs) -> Status {
                               std::vector<float> rows(ids.size() * kHeads * kDim);
                               BGTQ_RETURN_IF_ERROR(models[m]->backend().ReadRows(
                                   *outputs[1], static_cast<int64_t>(ids.size()), rows.data()));
                               probed[m].insert(probed[m].end(), rows.begin(), rows.end());
                               return Status::Ok();
                             }};
    Require(driving->Run({&item, 1}, {.strict = true, .probe = &probe}), "a probed pass");
    Check(beside->cache().state(0).length == static_cast<int64_t>(ids.size()), "a probe's cache grows");
  }
  const double seen = Rms(observed[0], observed[1]) / Rms(observed[0]);
  Check(seen < 2e-2, "what an observer sees is off by " + std::to_string(seen));
  const double outputs = Rms(probed[0], probed[1]) / Rms(probed[0]);
  Check(outputs < 5e-2, "a probe's outputs are off by " + std::to_string(outputs));
  std::printf("observed %.1e, probed %.1e\n", seen, outputs);
}

/// A budget gives a plan of its bytes, about as good as the one made on the CPU.
void TestBudget(LoadedModel& cpu, LoadedModel& gpu) {
  JointOptions options;
  options.protection = {0, 0};
  options.tokens = 512;
  options.probe_tokens = options.probe_positions = 192;
  options.bytes = 44;
  ResultsFile of_cpu = ResultsFile::InMemory(), of_gpu = ResultsFile::InMemory();
  const std::string_view text = BundledCalibrationText();
  const JointResult expected = Require(CalibrateJointly(cpu, text, options, of_cpu), "a budget on the CPU");
  const JointResult got = Require(CalibrateJointly(gpu, text, options, of_gpu), "a budget on the GPU");
  const double bytes = got.plan.bytes_per_token_per_head();
  Check(bytes <= options.bytes && bytes > 0.95 * options.bytes,
        "bytes of the plan: " + std::to_string(bytes));
  const double ratio = got.budget.measured_kld / expected.budget.measured_kld;
  Check(ratio > 0.8 && ratio < 1.25, "its divergence, over that of the CPU's plan: " + std::to_string(ratio));
  double furthest = 0, cpu_sum = 0, gpu_sum = 0;
  for (size_t i = 0; i < of_cpu.samples().size(); ++i) {
    const double a = of_cpu.samples()[i]["kld"].get<double>(), b = of_gpu.samples()[i]["kld"].get<double>();
    furthest = std::max(furthest, std::abs(std::log(b / a)));
    cpu_sum += a;
    gpu_sum += b;
  }
  // Rounding may give a head another of the sixteen rotations.
  Check(furthest < 0.7, "a probe's divergence is off by a factor of " + std::to_string(std::exp(furthest)));
  Check(std::abs(gpu_sum / cpu_sum - 1) < 0.15,
        "all probes' divergence, over the CPU's: " + std::to_string(gpu_sum / cpu_sum));
  std::printf("budget of %.0f bytes: %.2f, divergence %.4f (CPU %.4f), probes within %.1e\n", options.bytes,
              bytes, got.budget.measured_kld, expected.budget.measured_kld, furthest);
  const JointResult again = Require(CalibrateJointly(gpu, text, options, of_gpu), "the budget again");
  Check(again.probes_found == got.budget.probes, "probes are taken up from the results");
}

void RunAll(const DeviceLimits&, bool quick) {
  const std::string path = std::filesystem::temp_directory_path() / "blockgtq_simulated_caches_test.gguf";
  WriteModel(path);
  const std::unique_ptr<LoadedModel> cpu = Open(path, "cpu"), gpu = Open(path, "cuda");
  Check(gpu->backend().has_simulated_caches(), "the backend has simulated caches");
  const Caches caches(*cpu);
  TestLogits(*cpu, *gpu, caches, quick);
  TestOnlookers(*cpu, *gpu, caches);
  if (!quick) TestBudget(*cpu, *gpu);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::RunAll); }
