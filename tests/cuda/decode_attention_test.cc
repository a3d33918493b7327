// Packed decode attention on the GPU against double precision, over records made by the reference encoder.
//
//   decode_attention_test [quick | every N]
//     quick: a few small cases, for compute-sanitizer
//     every N: these and every Nth of the others, one at a time, for the emulator (tests/cuda/emulator)
//
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/cuda/decode_fixture.h"

namespace blockgtq::cuda {
namespace {

std::vector<Case> QuickCases() {
  return {
      {"quick: mixed plans, means, sinks, window",
       128,
       4,
       {Head(128, k8432, 3, {0, 7}), Head(128, k432, 3)},
       {200, 65},
       4,
       {30, 70}},
      {"quick: 8 heads", 128, 8, {Head(128, k5432), Head(128, k432)}, {200, 65}},
      {"quick: head dim 64", 64, 3, {Head(64, {{4, 32}, {2, 32}}, 4, {1})}, {130}, 4, {10}},
      {"quick: head dim 256", 256, 3, {Head(256, k256, 3, {1, 15})}, {130}, 4, {10}},
      {"quick: head dim 256, 7 heads", 256, 7, {Head(256, k256)}, {65, 64}, 4, {10, 70}},
      {"quick: warp workers",
       128,
       4,
       {Head(128, k432), Head(128, k8432)},
       {200, 65, 0},
       4,
       {30, 70, 9},
       2.0f,
       3},
  };
}

std::vector<Case> MoreCases() {
  std::vector<Case> cases;
  for (int query_heads : {4, 8}) {
    const std::string g = ", " + std::to_string(query_heads) + " query heads";
    for (int w : {1, 2, 3, 4, 5, 8}) {
      cases.push_back({"K" + std::to_string(w) + g, 128, query_heads, {Head(128, {{w, 128}})}, {1000}});
      cases.push_back({"V" + std::to_string(w) + g, 128, query_heads, {Head(128, k432, w)}, {1000}});
      cases.push_back({"D64 K" + std::to_string(w) + " V" + std::to_string(w) + g,
                       64,
                       query_heads,
                       {Head(64, {{w, 64}}, w)},
                       {1000}});
      // Odd unit counts.
      const Groups odd = w > 3 ? Groups{{w, 48}, {3, 80}} : Groups{{3, 80}, {w, 48}};
      const Groups one = w > 3 ? Groups{{w, 16}, {3, 112}} : Groups{{3, 112}, {w, 16}};
      cases.push_back({"K" + std::to_string(w) + " of 3 and of 1 unit" + g,
                       128,
                       query_heads,
                       {Head(128, odd), Head(128, one)},
                       {777}});
    }
  }
  for (int query_heads : {1, 2, 3, 5, 6, 7, 9, 10, 11, 16}) {
    cases.push_back({"G" + std::to_string(query_heads) + ", heads differ, ragged",
                     128,
                     query_heads,
                     {Head(128, k432, 3), Head(128, k8432, 2), Head(128, k5432, 4, {0})},
                     {64, 65, 127, 640, 2049},
                     4,
                     {64, 1, 100, 3, 127}});
  }
  for (int64_t length : {1, 63, 64, 65, 1000, 9000}) {
    for (int query_heads : {4, 8}) {
      const std::string n = "T" + std::to_string(length) + " G" + std::to_string(query_heads);
      cases.push_back({n, 128, query_heads, {Head(128, k432)}, {length}});
      cases.push_back({n + " whole mean", 128, query_heads, {Head(128, k432, 3, kWholeMean)}, {length}});
      cases.push_back({n + " D64 mean, sinks, window",
                       64,
                       query_heads,
                       {Head(64, {{4, 32}, {3, 16}, {2, 16}}, 3, {0, 2})},
                       {length},
                       4,
                       {64}});
    }
  }
  Case c{"8 groups",
         128,
         4,
         {Head(128, {{8, 16}, {5, 16}, {4, 16}, {4, 16}, {3, 16}, {3, 16}, {2, 16}, {1, 16}})},
         {500}};
  cases.push_back(c);
  c.name = "8 groups G8", c.query_heads = 8;
  cases.push_back(c);
  cases.push_back({"dims that fill no unit", 128, 4, {Head(128, {{4, 40}, {3, 60}, {2, 28}})}, {500}});
  cases.push_back(
      {"64 sinks, nothing coded in one sequence", 128, 4, {Head(128, k432)}, {300, 0, 40}, 64, {5, 50, 0}});
  cases.push_back({"sinks inside the only tile", 128, 8, {Head(128, k432)}, {60, 10}, 9, {0, 1}});
  cases.push_back({"sharp logits", 128, 8, {Head(128, k8432), Head(128, k432)}, {2000}, 0, {}, 5.0f});
  cases.push_back({"flat logits", 128, 8, {Head(128, k8432), Head(128, k432)}, {2000}, 0, {}, 0.2f});
  for (int query_heads : {4, 8}) {
    cases.push_back({"12 warps G" + std::to_string(query_heads),
                     128,
                     query_heads,
                     {Head(128, k8432), Head(128, k432)},
                     {3000, 65, 1000},
                     0,
                     {},
                     2.0f,
                     0,
                     1 << 20});
    cases.push_back({"12 warps, mean, G" + std::to_string(query_heads),
                     128,
                     query_heads,
                     {Head(128, k8432, 3, {0, 1}), Head(128, k432, 3)},
                     {3000, 65, 1000},
                     4,
                     {64, 3, 70},
                     2.0f,
                     0,
                     1 << 20});
    cases.push_back({"3 blocks: many segments a block G" + std::to_string(query_heads),
                     128,
                     query_heads,
                     {Head(128, k8432, 3), Head(128, k432, 3)},
                     {300, 1000, 64, 0, 500},
                     0,
                     {},
                     2.0f,
                     3});
  }
  std::vector<int64_t> many;
  for (int i = 0; i < 40; ++i) many.push_back(1 + (i * 37) % 300);
  cases.push_back(
      {"warp workers, 3 processors", 128, 4, {Head(128, k8432), Head(128, k432)}, many, 0, {}, 2.0f, 3});
  cases.push_back({"warp workers, the device's",
                   128,
                   4,
                   {Head(128, k432), Head(128, k8432), Head(128, k432), Head(128, k5432), Head(128, k432),
                    Head(128, k432), Head(128, k432)},
                   many,
                   4,
                   std::vector<int64_t>(40, 64)});
  return cases;
}

// Sliding windows: within the recent tokens, across the codes' end, within the codes, as long as the sequence
// and longer.
std::vector<Case> WindowCases(bool quick) {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, int64_t window, Case c) {
    c.name = "window of " + std::to_string(window) + ", " + name + ", G" + std::to_string(c.query_heads);
    c.window = window;
    cases.push_back(std::move(c));
  };
  if (quick) {
    add("mean", 90,
        {"", 128, 4, {Head(128, k8432, 3, {0, 7}), Head(128, k432)}, {300, 65, 0}, 4, {30, 70, 5}});
    Case own{"", 128, 4, {Head(128, k432), Head(128, k8432)}, {200, 65, 0}, 4, {30, 70, 9}, 2.0f, 3};
    add("warp workers", 100, own);
    return cases;
  }
  for (const int query_heads : {4, 8}) {
    for (const int64_t window : {1, 64, 100, 500, 1153, 5000}) {
      add("ragged, sinks, recent", window,
          {"",
           128,
           query_heads,
           {Head(128, k8432), Head(128, k432, 4)},
           {1089, 640, 65, 0, 600},
           4,
           {64, 1, 100, 9, 127}});
      add("whole mean", window,
          {"", 128, query_heads, {Head(128, k432, 3, kWholeMean)}, {1089, 640, 64}, 4, {64, 1, 100}});
      add("own codes, 17 sinks", window,
          {"", 128, query_heads, {Head(128, k432)}, {1153, 500, 9}, 17, {0, 0, 0}});
      add("own codes", window, {"", 128, query_heads, {Head(128, k432, 3, {7})}, {1153, 500, 9}});
    }
    for (const int64_t window : {33, 700}) {
      add("D64", window,
          {"", 64, query_heads, {Head(64, {{4, 32}, {3, 16}, {2, 16}}, 3, {0, 2})}, {900, 65}, 4, {64, 70}});
      add("D256", window, {"", 256, query_heads, {Head(256, k256, 3, {1, 15})}, {900, 65}, 4, {64, 70}});
      add("64 sinks", window, {"", 128, query_heads, {Head(128, k432)}, {300, 700, 40}, 64, {5, 0, 9}});
    }
  }
  for (const int64_t window : {40, 150}) {
    std::vector<int64_t> many;
    for (int i = 0; i < 40; ++i) many.push_back(1 + (i * 37) % 300);
    Case own{"", 128, 4, {Head(128, k8432), Head(128, k432)}, many, 4, std::vector<int64_t>(40, 64), 2.0f, 3};
    add("warp workers", window, own);
  }
  // Every configuration, clusters included.
  for (const int query_heads : {3, 8}) {
    for (const bool mean : {false, true}) {
      for (const int blocks : {1, 2, 4, 16}) {
        for (const bool split : {false, true}) {
          const std::vector<int> units = mean ? std::vector<int>{0, 7} : std::vector<int>{};
          Case c{"",
                 128,
                 query_heads,
                 {Head(128, k8432, 3, units), Head(128, k432)},
                 {1300, 0, 65, 700},
                 4,
                 {30, 20, 70, 129}};
          c.warps = 8, c.split_tiles = split, c.stages = 2, c.cluster_blocks = blocks, c.workers = 3;
          add(std::string(split ? "split" : "whole") + ", clusters of " + std::to_string(blocks) +
                  (mean ? ", mean" : ""),
              450, c);
        }
      }
    }
  }
  return cases;
}

std::vector<Case> Cases256() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, int query_heads, std::vector<HeadSpec> heads,
                       std::vector<int64_t> coded, int sinks = 0, std::vector<int64_t> recent = {}) {
    cases.push_back({"D256 " + name + ", G" + std::to_string(query_heads), 256, query_heads, std::move(heads),
                     std::move(coded), sinks, std::move(recent)});
  };
  const Groups mixed = {{8, 16}, {5, 48}, {4, 64}, {3, 96}, {1, 32}};
  for (int query_heads : {4, 8}) {
    for (int w : {1, 2, 3, 4, 5, 8}) {
      const std::string k = std::to_string(w);
      add("K" + k + " V" + k, query_heads, {Head(256, {{w, 256}}, w)}, {1000});
      add("K mixed V" + k, query_heads, {Head(256, mixed, w), Head(256, k256, w)}, {777});
    }
    // The largest record with the largest mean, and as many units as there can be.
    add("K8 V8 whole mean", query_heads, {Head(256, {{8, 256}}, 8, kWholeMean256)}, {300}, 4, {64});
    add("8 groups of 23 units", query_heads,
        {Head(256, {{8, 33}, {5, 33}, {4, 33}, {4, 33}, {3, 33}, {3, 33}, {2, 33}, {1, 25}})}, {500});
    for (int64_t length : {1, 64, 65, 5000}) {
      add("whole mean, T" + std::to_string(length), query_heads, {Head(256, k256, 3, kWholeMean256)},
          {length});
      // Its logits are sharp: one probability that rounds the other way shows.
      cases.back().query_size = 1.4f;
    }
    add("ragged, sinks, window", query_heads, {Head(256, mixed), Head(256, k256)}, {2000, 65, 1000}, 4,
        {64, 3, 70});
  }
  for (int query_heads : {1, 2, 3, 5, 6, 7, 9, 11, 16}) {
    add("heads differ, ragged", query_heads,
        {Head(256, k256, 3), Head(256, mixed, 2), Head(256, k256, 4, {0})}, {64, 65, 127, 640, 0}, 4,
        {64, 1, 100, 3, 127});
  }
  return cases;
}

// What runs where a block may have 99 KB (compute capability 8.6 and 8.9), or 163 KB (8.0).
std::vector<Case> SmallSharedMemoryCases() {
  std::vector<Case> cases;
  for (const int shared_bytes : {99 << 10, 163 << 10}) {
    for (const int query_heads : {4, 7, 9}) {
      for (const int64_t length : {100, 1500}) {
        const auto add = [&](const std::string& name, int dim, std::vector<HeadSpec> heads) {
          Case c{name + " in " + std::to_string(shared_bytes >> 10) + " KB, G" + std::to_string(query_heads) +
                     ", T" + std::to_string(length),
                 dim,
                 query_heads,
                 std::move(heads),
                 {length, 65, length / 2},
                 4,
                 {64, 3, 70}};
          c.shared_bytes = shared_bytes;
          cases.push_back(c);
        };
        add("D128", 128, {Head(128, k432), Head(128, k8432)});
        add("D128 whole mean", 128, {Head(128, k432, 3, kWholeMean), Head(128, k432)});
        add("D64 K8 V8", 64, {Head(64, {{8, 64}}, 8, {0, 3})});
        add("D256", 256, {Head(256, k256)});
      }
    }
  }
  return cases;
}

// Every configuration on the same batch: mixed plans, ragged, sinks, window, mean.
std::vector<Case> ConfigurationCases(bool quick) {
  std::vector<Case> cases;
  const auto add = [&](int warps, bool split, int stages, int blocks, int workers, int query_heads, bool mean,
                       int head_dim = 128) {
    const std::vector<int> mean_units = mean ? std::vector<int>{0, 7} : std::vector<int>{};
    Case c{std::to_string(warps) + (split ? " split" : " whole") + ", clusters of " + std::to_string(blocks) +
               " G" + std::to_string(query_heads) + (head_dim == 128 ? "" : " D" + std::to_string(head_dim)),
           head_dim,
           query_heads,
           {Head(head_dim, head_dim == 256 ? k256 : k8432, 3, mean_units),
            Head(head_dim, head_dim == 256 ? k256 : k432)},
           {1300, 0, 65, 700},
           4,
           {30, 20, 70, 129}};
    if (quick) c.coded = {300, 0, 65}, c.recent = {30, 20, 129};
    c.warps = warps, c.split_tiles = split, c.stages = stages, c.cluster_blocks = blocks, c.workers = workers;
    cases.push_back(c);
  };
  if (quick) {
    // 4 or 3 workers that run at once, 2 of which merge: the others of their pairs start late and have less.
    for (const int workers : {4, 3}) {
      for (const int64_t window : {0, 2000}) {
        Case late{std::to_string(workers) + " workers, some late, window " + std::to_string(window),
                  128,
                  4,
                  {Head(128, k432), Head(128, k432)},
                  {3000}};
        late.warps = 8, late.stages = 2, late.workers = late.processors = workers, late.window = window;
        cases.push_back(late);
      }
    }
    add(8, false, 1, 1, 5, 4, true);
    add(8, false, 2, 4, 2, 8, false);
    add(8, true, 1, 2, 3, 8, true);
    add(8, false, 1, 2, 3, 4, true, 256);
    add(8, true, 2, 4, 2, 8, false, 256);
    return cases;
  }
  for (const int query_heads : {3, 8}) {
    for (const bool mean : {false, true}) {
      for (const int blocks : {1, 2, 4, 8, 16}) {
        for (const int workers : {1, 3, 8}) {  // segments that cross pairs, whole ones, shared pairs
          add(8, false, 2, blocks, workers, query_heads, mean);
          add(8, true, 2, blocks, workers, query_heads, mean);
        }
        add(8, false, 1, blocks, 3, query_heads, mean, 256);
        if (!mean || query_heads <= kFewQueryHeads) add(8, true, 2, blocks, 8, query_heads, mean, 256);
        add(12, false, 2, blocks, 6, query_heads, mean);
        add(8, true, 1, blocks, 20, query_heads, mean);
        add(8, false, 3, blocks, 20, query_heads, mean);
      }
    }
  }
  return cases;
}

// A captured step follows lengths that change on the device.
void TestGraphFollowsLengths(const DeviceLimits& limits, int64_t window) {
  Case c{"graph", 128, 4, {Head(128, k432), Head(128, k8432)}, {3000, 500}};
  c.window = window;
  Fixture fixture(c, limits);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Require(cudaStreamCreate(&stream), "stream");
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  fixture.Launch(stream);
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  Require(cudaGraphInstantiate(&executable, graph, 0), "graph");
  for (const std::vector<int32_t>& coded : {std::vector<int32_t>{3000, 500}, {64, 499}, {0, 1}, {2999, 2}}) {
    fixture.SetCoded(coded);
    const std::vector<uint16_t> direct = fixture.Run();
    fixture.PoisonOutput();
    Require(cudaGraphLaunch(executable, stream), "replay");
    Require(cudaStreamSynchronize(stream), "replay");
    Check(fixture.Output() == direct, "graph: a replay differs from a direct launch");
  }
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
  (void)cudaStreamDestroy(stream);
}

void ExpectRefused(const Status& status, const std::string& named) {
  Check(!status.ok() && status.code() == ErrorCode::kUnsupported &&
            status.message().find(named) != std::string::npos,
        "refusal that names \"" + named + "\", got: " + status.message());
}

void TestRefusals(const DeviceLimits& limits) {
  HeadSpec half = Head(128, k432);
  half.norm_type = NormType::kHalf;
  const auto refused = [](const HeadSpec& spec) {
    const std::vector<HeadPlan> plans = {cpu::MakeHeadPlan(spec, 1)};
    return TraitsOf(plans, cpu::MakeRope(spec.head_dim)).status();
  };
  ExpectRefused(refused(half), "fp16 norms");
  ExpectRefused(refused(Head(96, {{3, 96}})), "head dim 96");
  ExpectRefused(
      refused(Head(128, {{5, 8}, {4, 8}, {3, 16}, {3, 16}, {3, 16}, {2, 16}, {2, 16}, {2, 16}, {1, 16}})),
      "9 key groups");
  DecodeShape shape;
  shape.batch = 1, shape.kv_heads = 2, shape.head_dim = 128, shape.query_heads = 17;
  HeadTraits traits = {8, 0, 6400, 3};
  ExpectRefused(ConfigureDecode(shape, traits, limits).status(), "17 query heads");
  shape.query_heads = 8, shape.batch = 1 << 20;
  ExpectRefused(ConfigureDecode(shape, traits, limits).status(), "shared memory");
  DecodeConfig own;  // warps that are workers do not rotate
  own.shape.has_exact = true;
  own.shape.window_tiles = 3;
  own.variant.warp_workers = true;
  DecodeParams params{};
  params.rope.enabled = true;
  const Status status = LaunchDecodeAttention(own, params, false, nullptr);
  Check(status.code() == ErrorCode::kInvalidArgument &&
            status.message().find("does not rotate") != std::string::npos,
        "a configuration without RoPE refuses it: " + status.message());
}

// More pairs than processors: 12 warps a block for long contexts, 8 for short ones and where shared memory is
// short.
void TestWarpsOfLargeBatches(const DeviceLimits& device) {
  DeviceLimits limits;
  limits.processors = 132;
  limits.shared_bytes = device.shared_bytes;
  limits.l2_bytes = 50 << 20;
  for (const int mean_units : {0, 8}) {
    for (const int query_heads : {4, 8}) {
      DecodeShape shape;
      shape.batch = 40, shape.kv_heads = 4, shape.head_dim = 128, shape.query_heads = query_heads;
      HeadTraits traits = {8, mean_units, 6400, 3};
      traits.direct_units = mean_units > 0 ? 1 : 0;
      for (const int64_t tokens : {512, 32768}) {
        shape.expected_tokens = tokens;
        const DecodeConfig config = Require(ConfigureDecode(shape, traits, limits), "configuration");
        const bool fits = limits.shared_bytes > 200 << 10;
        const int wanted = tokens > 1024 && fits ? 12 : 8;
        Check(config.variant.warps == wanted,
              "40 sequences of " + std::to_string(tokens) + " with " + std::to_string(query_heads) +
                  " query heads a KV head: " + std::to_string(config.variant.warps) + " warps");
      }
    }
  }
}

// Two pairs of 2,048 tiles and 30 clusters of 4 blocks of 12 warps, all that run at once: as many clusters as
// merge in the kernel before start late, and have two rounds of 48 tiles where the others have three.
void TestLateWorkers(const DeviceLimits& limits) {
  if (limits.clusters[2] == 0) return;  // no clusters, no early start
  constexpr int kWorkers = 30, kRound = 48, kTiles = 2048;
  DecodeShape shape;
  shape.batch = 1, shape.kv_heads = 2, shape.head_dim = 128, shape.query_heads = 8;
  shape.expected_tokens = kTiles * kTileTokens;
  DecodeConfig config =
      Require(ConfigureDecodeAs(shape, {8, 0, 6400, 3}, limits, {12}, 2, 4, kWorkers), "configuration");
  Check(config.resident_workers == limits.clusters[2], "clusters of 4 that run at once");
  config.resident_workers = kWorkers;
  DeviceArray<uint8_t> scratch(config.scratch_bytes), exchange(config.exchange_bytes);
  exchange.Fill(0);
  const DeviceArray<int32_t> coded_end(std::vector<int32_t>{kTiles * kTileTokens});
  DecodeParams params{};
  BindDecode(config, scratch.data(), exchange.data(), params);
  params.coded_end = coded_end.data();
  Require(LaunchDecodeSchedule(config, params, nullptr), "schedule");
  Require(cudaDeviceSynchronize(), "schedule");
  const size_t at = reinterpret_cast<const uint8_t*>(params.ranges) - scratch.data();
  const std::vector<uint8_t> bytes = scratch.Download(at, kWorkers * sizeof(WorkRange));
  std::vector<WorkRange> ranges(kWorkers);
  std::memcpy(ranges.data(), bytes.data(), bytes.size());
  for (int place = 0; place < kWorkers; ++place) {
    const WorkRange& r = ranges[place];
    const int tiles = r.end - r.begin;
    const std::string name = "worker " + std::to_string(r.worker) + ", place " + std::to_string(place);
    Check(place < kWorkers - 2 ? tiles > 2 * kRound && tiles <= 3 * kRound : tiles == 2 * kRound,
          name + " has " + std::to_string(tiles) + " tiles");
    Check(place >= 2 || r.worker == place * kWorkers / 2, name + ": workers that merge start first");
    Check(r.head == r.begin / kTiles && r.tile == r.begin % kTiles && r.tiles == kTiles, name + "'s segment");
  }
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.worker < b.worker; });
  int end = 0;
  for (int w = 0; w < kWorkers; ++w) {
    Check(ranges[w].worker == w && ranges[w].begin == end,
          "worker " + std::to_string(w) + " follows the last");
    end = ranges[w].end;
  }
  Check(end == 2 * kTiles, "all tiles have a worker");
}

void Run(Cases& cases, const DeviceLimits& limits, bool quick, size_t every) {
  cases.RunSome(QuickCases(), 1, true);
  cases.RunSome(ConfigurationCases(true), 1, true);
  cases.RunSome(WindowCases(true), 1, true);
  TestWarpsOfLargeBatches(limits);
  TestLateWorkers(limits);
  if (quick) return;
  cases.RunSome(MoreCases(), every, false);
  cases.RunSome(Cases256(), every, false);
  cases.RunSome(SmallSharedMemoryCases(), every, false);
  cases.RunSome(ConfigurationCases(false), every, true);
  cases.RunSome(WindowCases(false), every, false);
  TestGraphFollowsLengths(limits, 0);
  TestGraphFollowsLengths(limits, 200);
  TestRefusals(limits);
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunDecodeTests(argc, argv, blockgtq::cuda::Run); }
