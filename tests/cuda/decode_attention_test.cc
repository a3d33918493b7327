// Packed decode attention on the GPU against double precision, over records made by the reference encoder.
//
//   decode_attention_test [quick | every N]
//     quick: a few small cases, for compute-sanitizer
//     every N: these and every Nth of the others, one at a time, for the emulator (tests/cuda/emulator)
//
#include "src/cuda/decode_attention.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "src/cache/kv_cache.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/decode_reference.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

constexpr double kRoundedTolerance = 1e-3;  // against the reference that rounds as the kernel does
// Against exact attention: u8 probabilities alone, or int8 queries too (more than 4 query heads a KV head).
constexpr double kExactTolerance16BitQueries = 8e-3, kExactTolerance8BitQueries = 2.5e-2;

using cpu::HeadSpec;
using Groups = std::vector<std::pair<int, int>>;  // (code width, dims)

struct Case {
  std::string name;
  int head_dim = 128, query_heads = 4;
  std::vector<HeadSpec> heads = {};
  std::vector<int64_t> coded = {};  // a sequence
  int sinks = 0;
  std::vector<int64_t> recent = {};  // fp16 tokens after the coded ones; empty: no exact part
  float query_size = 2.0f;
  int processors = 0;            // 0: the device's
  int64_t expected_tokens = -1;  // -1: the longest
  // A configuration by force, where warps > 0.
  int warps = 0;
  bool split_tiles = false;
  int stages = 3, cluster_blocks = 1, workers = 1;
  int shared_bytes = 0;  // that a block may have; 0: the device's
};

std::vector<HeadPlan> PlansOf(const Case& c) {
  std::vector<HeadPlan> plans;
  for (size_t h = 0; h < c.heads.size(); ++h) plans.push_back(cpu::MakeHeadPlan(c.heads[h], 100 + 10 * h));
  return plans;
}

Result<DecodeConfig> Configure(const Case& c, const HeadTraits& traits, const DeviceLimits& device) {
  DecodeShape shape;
  shape.batch = static_cast<int>(c.coded.size());
  shape.kv_heads = static_cast<int>(c.heads.size());
  shape.head_dim = c.head_dim;
  shape.query_heads = c.query_heads;
  shape.has_exact = !c.recent.empty();
  int64_t longest = 1;
  for (size_t b = 0; b < c.coded.size(); ++b) {
    const int64_t length = c.coded[b] + (shape.has_exact ? c.recent[b] : 0);
    longest = std::max(longest, length);
    if (!shape.has_exact) continue;
    shape.window_tiles =
        std::max(shape.window_tiles, static_cast<int>((length + 63) / 64 - c.coded[b] / 64 + 1));
  }
  shape.expected_tokens = c.expected_tokens >= 0 ? c.expected_tokens : longest;
  DeviceLimits limits = device;
  if (c.processors > 0) {
    limits = {};
    limits.processors = c.processors;
  }
  limits.shared_bytes = c.shared_bytes > 0 ? c.shared_bytes : device.shared_bytes;
  if (c.warps == 0) return ConfigureDecode(shape, traits, limits);
  return ConfigureDecodeAs(shape, traits, limits, {c.warps, false, false, c.split_tiles, false}, c.stages,
                           c.cluster_blocks, c.workers);
}

// What a Hopper GPU can do and this one cannot: clusters, and the largest configurations.
bool Runs(const Case& c, const DeviceLimits& limits) {
  constexpr int kHopperSharedBytes = 227 << 10;
  if (limits.clusters[1] > 0 && limits.shared_bytes >= kHopperSharedBytes) return true;
  const std::vector<HeadPlan> plans = PlansOf(c);
  const bool runs = Configure(c, Require(TraitsOf(plans), "traits"), limits).ok();
  if (!runs) std::printf("%-46s not on this GPU\n", c.name.c_str());
  return runs;
}

struct Error {
  double square = 0, size = 0;
  void Add(const std::vector<double>& reference, const uint16_t* out) {
    for (size_t i = 0; i < reference.size(); ++i) {
      const double difference = HalfToFloat(out[i]) - reference[i];
      square += std::isfinite(difference) ? difference * difference : 1e30;
      size += reference[i] * reference[i];
    }
  }
  double relative() const { return std::sqrt(square / std::max(size, 1e-30)); }
};

// A batch on host and device, ready to launch.
class Fixture {
 public:
  explicit Fixture(const Case& c, const DeviceLimits& device) : c_(c), rope_(cpu::MakeRope(c.head_dim)) {
    const int64_t batch = c.coded.size();
    std::mt19937 random(7);
    plans_ = PlansOf(c);
    int64_t longest = 1;
    for (int64_t b = 0; b < batch; ++b) {
      lengths_.push_back(static_cast<int32_t>(c.coded[b] + (c.recent.empty() ? 0 : c.recent[b])));
      coded_.push_back(static_cast<int32_t>(c.coded[b]));
      longest = std::max<int64_t>(longest, lengths_.back());
    }
    rope_.Reserve(longest);
    std::vector<std::future<cpu::Sequence>> made;
    for (int64_t b = 0; b < batch; ++b) {
      for (size_t h = 0; h < plans_.size(); ++h) {
        made.push_back(std::async(std::launch::async, [this, b, h] {
          return cpu::MakeSequence(plans_[h], rope_, lengths_[b], 1000 + 97 * b + h);
        }));
      }
    }
    for (auto& m : made) sequences_.push_back(m.get());

    const HeadTraits traits = Require(TraitsOf(plans_), "traits");
    const HeadTable table = Require(BuildHeadTable(plans_, traits, rope_.config()), "table");
    config_ = Require(Configure(c, traits, device), "configuration");
    table_ = std::make_unique<DeviceTable>(table);
    MakePool(table, random);
    if (config_.shape.has_exact) MakeExact(config_.shape);

    queries_ = cpu::Normals(batch * plans_.size() * c.query_heads * c.head_dim, c.query_size, 5);
    std::vector<uint16_t> halves;
    for (float& q : queries_) {
      halves.push_back(FloatToHalf(q));
      q = HalfToFloat(halves.back());
    }
    device_queries_ = DeviceArray<uint16_t>(halves);
    out_ = DeviceArray<uint16_t>(halves.size());
    coded_end_ = DeviceArray<int32_t>(coded_);
    device_lengths_ = DeviceArray<int32_t>(lengths_);
    scratch_ = DeviceArray<uint8_t>(config_.scratch_bytes);
    scratch_.Fill(0xff);
    exchange_ = DeviceArray<uint8_t>(config_.exchange_bytes);
    exchange_.Fill(0);
    BindDecode(config_, scratch_.data(), exchange_.data(), params_);
    table_->Bind(params_);
    params_.logit_scale = static_cast<float>(1.4426950408889634 / std::sqrt(double(c.head_dim)));
    params_.coded_end = coded_end_.data();
    params_.length = device_lengths_.data();
    params_.sinks = c.sinks;
    params_.queries = device_queries_.data();
    params_.out = out_.data();
  }

  const DecodeConfig& config() const { return config_; }
  void Launch(cudaStream_t stream) {
    Require(LaunchDecodeSchedule(config_, params_, stream), "schedule");
    Require(LaunchDecodeAttention(config_, params_, false, stream), "attention");
  }
  std::vector<uint16_t> Run() {
    out_.Fill(0xff);
    Launch(nullptr);
    Require(cudaDeviceSynchronize(), "run");
    return out_.Download();
  }
  /// Launches attention twice, the second while the first ends, each with an output of its own.
  std::pair<std::vector<uint16_t>, std::vector<uint16_t>> RunOverlapped() {
    DeviceArray<uint16_t> second_out(out_.size());
    out_.Fill(0xff);
    second_out.Fill(0xff);
    DecodeParams second = params_;
    second.out = second_out.data();
    second.launch = 1;
    Launch(nullptr);
    Require(LaunchDecodeAttention(config_, second, true, nullptr), "attention behind attention");
    Require(cudaDeviceSynchronize(), "run");
    return {out_.Download(), second_out.Download()};
  }
  void SetCoded(const std::vector<int32_t>& coded) { coded_end_.Upload(coded); }
  void PoisonOutput() { out_.Fill(0xff); }
  std::vector<uint16_t> Output() const { return out_.Download(); }

  // Compares `out` with both references and with reference::Attention.
  std::vector<uint8_t> QueryBlocks() const { return scratch_.Download(); }  // they come first
  /// blocks: of the run that gave `out`. Touches no device memory: another thread may run it.
  void Compare(const std::vector<uint16_t>& out, const std::vector<uint8_t>& blocks) const {
    struct Outcome {
      Error rounded, exact;
      double query_distance = 0, reference_gap = 0;
    };
    std::vector<std::future<Outcome>> work;
    for (size_t pair = 0; pair < sequences_.size(); ++pair) {
      work.push_back(std::async(std::launch::async, [&, pair] {
        Outcome o;
        const size_t h = pair % plans_.size(), b = pair / plans_.size();
        const HeadReference reference(plans_[h], rope_);
        for (int column = 0; column < c_.query_heads; ++column) {
          const size_t at = (pair * c_.query_heads + column) * c_.head_dim;
          // The query block is of the head's part.
          const size_t part = pair * config_.head_parts + column / config_.part_heads;
          const std::vector<double> q(&queries_[at], &queries_[at] + c_.head_dim);
          const PreparedQuery prepared =
              ReadQueryBlock(plans_[h], config_.query_layout, config_.variant.few_heads,
                             column % config_.part_heads, blocks.data() + part * config_.query_layout.bytes);
          o.query_distance =
              std::max(o.query_distance,
                       reference.QueryDistance(q, params_.logit_scale, config_.variant.few_heads, prepared));
          std::vector<double> rounded, exact;
          double log_rounded = reference.Attend(q, params_.logit_scale, &prepared, sequences_[pair].records,
                                                c_.sinks, coded_[b], rounded, config_.rounding_tokens());
          // The definition: the codec's own reference.
          std::vector<float> defined(c_.head_dim);
          float lse;
          reference::Attention(plans_[h], RecordLayout::For(plans_[h]), rope_, &queries_[at],
                               sequences_[pair].records, c_.sinks, coded_[b],
                               static_cast<float>(1 / std::sqrt(double(c_.head_dim))), defined.data(), &lse);
          exact.assign(defined.begin(), defined.end());
          double log_exact = double{lse} * 1.4426950408889634;
          std::vector<double> tokens;
          const double log_tokens = ExactTokens(q, pair, b, tokens);
          MergeAttention(rounded, log_rounded, tokens, log_tokens);
          MergeAttention(exact, log_exact, tokens, log_tokens);
          o.rounded.Add(rounded, &out[at]);
          o.exact.Add(exact, &out[at]);
        }
        return o;
      }));
    }
    Error rounded, exact;
    double distance = 0;
    for (auto& w : work) {
      const Outcome o = w.get();
      rounded.square += o.rounded.square, rounded.size += o.rounded.size;
      exact.square += o.exact.square, exact.size += o.exact.size;
      distance = std::max(distance, o.query_distance);
    }
    const DecodeVariant& v = config_.variant;
    std::printf("%-46s %2d warps x%d, %dx%d%s%s%s%s  rounded %.1e  exact %.1e  query %.2f\n", c_.name.c_str(),
                v.warps, config_.stages, config_.workers, config_.cluster_blocks, v.few_heads ? " few" : "",
                v.mean ? " mean" : "", v.split_tiles ? " split" : "", v.warp_workers ? " own" : "",
                rounded.relative(), exact.relative(), distance);
    std::fflush(stdout);
    Check(rounded.relative() <= kRoundedTolerance, c_.name + ": differs from the rounded reference");
    Check(exact.relative() <= (v.few_heads ? kExactTolerance16BitQueries : kExactTolerance8BitQueries),
          c_.name + ": differs from exact attention");
    Check(distance <= 1.03, c_.name + ": a query is not rounded to the nearest step");
  }

 private:
  void MakePool(const HeadTable& table, std::mt19937& random) {
    const size_t lead = 48;  // other layers' bytes ahead of this one's
    const int64_t page_bytes = table.layer_bytes + 2 * lead;
    int64_t pages = 0, max_pages = 1;
    for (int32_t n : lengths_)
      pages += (n + 63) / 64, max_pages = std::max<int64_t>(max_pages, (n + 63) / 64);
    std::vector<int32_t> order(pages), tables(lengths_.size() * max_pages, 0);
    for (int64_t i = 0; i < pages; ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<uint8_t> pool(std::max<int64_t>(pages, 1) * page_bytes);
    for (uint8_t& byte : pool) byte = static_cast<uint8_t>(random());
    int64_t next = 0;
    for (size_t b = 0; b < lengths_.size(); ++b) {
      for (int64_t j = 0; j < (lengths_[b] + 63) / 64; ++j) {
        const int32_t page = order[next++];
        tables[b * max_pages + j] = page;
        for (size_t h = 0; h < plans_.size(); ++h) {
          const auto& record = sequences_[b * plans_.size() + h].storage[j];
          std::memcpy(&pool[page * page_bytes + lead + table.heads[h].header.record_offset], record.data(),
                      record.size());
        }
      }
    }
    pool_ = DeviceArray<uint8_t>(pool);
    block_table_ = DeviceArray<int32_t>(tables);
    params_.pool = pool_.data() + lead;
    params_.page_bytes = page_bytes;
    params_.block_table = block_table_.data();
    params_.max_pages = max_pages;
  }

  // Tiles as src/cache/kv_cache.h lays them out, of two layers; the layer under test is the second.
  void MakeExact(const DecodeShape& shape) {
    const int dim = c_.head_dim, batch = shape.batch, sink_tokens = (c_.sinks + 15) / 16 * 16;
    const int64_t sink_bytes = ExactTileBytes(true, dim, sink_tokens),
                  tile_bytes = ExactTileBytes(true, dim, 64);
    const int64_t window_layer = int64_t{shape.kv_heads} * shape.window_tiles * tile_bytes,
                  sink_layer = shape.kv_heads * sink_bytes;
    params_.sink_tile_tokens = sink_tokens;
    params_.window_offset = window_layer;
    params_.sink_offset = 2 * window_layer + sink_layer;
    const auto store = [&](uint16_t* tile, int tokens, const cpu::Sequence& s, int64_t t) {
      const int64_t slot = t % 64;
      for (int d = 0; d < dim; ++d) {
        tile[d * tokens + slot] = FloatToHalf(s.keys[t * dim + d]);
        tile[dim * tokens + slot * dim + d] = FloatToHalf(s.values[t * dim + d]);
      }
    };
    std::vector<const uint8_t*> rows;
    for (int b = 0; b < batch; ++b) {
      std::vector<uint16_t> exact(static_cast<size_t>(window_layer + sink_layer), 0x7e00);  // NaN; 2 layers
      for (int h = 0; h < shape.kv_heads; ++h) {
        const cpu::Sequence& s = sequences_[b * shape.kv_heads + h];
        for (int64_t t = 0; t < std::min<int64_t>(c_.sinks, lengths_[b]); ++t) {
          store(&exact[(params_.sink_offset + h * sink_bytes) / 2], sink_tokens, s, t);
        }
        for (int64_t t = coded_[b]; t < lengths_[b]; ++t) {
          const int64_t ring = t / 64 % shape.window_tiles;
          store(&exact[(params_.window_offset + (h * shape.window_tiles + ring) * tile_bytes) / 2], 64, s, t);
        }
      }
      exact_.emplace_back(exact);
      rows.push_back(reinterpret_cast<const uint8_t*>(exact_.back().data()));
    }
    exact_rows_ = DeviceArray<const uint8_t*>(rows);
    params_.exact = exact_rows_.data();
  }

  double ExactTokens(const std::vector<double>& q, size_t pair, size_t b, std::vector<double>& out) const {
    const int dim = c_.head_dim;
    out.assign(dim, 0.0);
    if (c_.recent.empty()) return -INFINITY;
    std::vector<std::pair<int64_t, double>> logits;
    double top = -INFINITY, total = 0;
    for (int64_t t = 0; t < lengths_[b]; ++t) {
      if (t >= c_.sinks && t < coded_[b]) continue;
      double logit = 0;
      for (int d = 0; d < dim; ++d) logit += q[d] * ThroughHalf(sequences_[pair].keys[t * dim + d]);
      logits.emplace_back(t, logit * params_.logit_scale);
      top = std::max(top, logits.back().second);
    }
    for (const auto& [t, logit] : logits) {
      const double w = std::exp2(logit - top);
      total += w;
      for (int d = 0; d < dim; ++d) out[d] += w * ThroughHalf(sequences_[pair].values[t * dim + d]);
    }
    for (double& x : out) x /= total > 0 ? total : 1;
    return logits.empty() ? -INFINITY : top + std::log2(total);
  }

  Case c_;
  RopeTable rope_;
  std::vector<HeadPlan> plans_;
  std::vector<int32_t> lengths_, coded_;
  std::vector<cpu::Sequence> sequences_;  // [batch * heads]
  std::vector<float> queries_;
  DecodeConfig config_;
  DecodeParams params_{};
  std::unique_ptr<DeviceTable> table_;
  DeviceArray<uint8_t> pool_, scratch_, exchange_;
  DeviceArray<int32_t> block_table_, coded_end_, device_lengths_;
  DeviceArray<uint16_t> device_queries_, out_;
  std::vector<DeviceArray<uint16_t>> exact_;  // [batch]
  DeviceArray<const uint8_t*> exact_rows_;
};

/// Runs cases one after another, and up to `in_flight` comparisons with the references beside them: those
/// take most of the time.
class Cases {
 public:
  Cases(const DeviceLimits& limits, size_t in_flight) : limits_(limits), in_flight_(in_flight) {}
  ~Cases() { Finish(0); }

  void Run(const Case& c, bool overlapped) {
    auto fixture = std::make_unique<Fixture>(c, limits_);
    const std::vector<uint16_t> first = fixture->Run(), second = fixture->Run();
    Check(first == second, c.name + ": two runs differ");
    if (overlapped) {
      const auto [ahead, behind] = fixture->RunOverlapped();
      Check(ahead == first, c.name + ": a run ahead of one that overlaps it differs");
      Check(behind == first, c.name + ": a run that overlaps the one ahead of it differs");
    }
    Compared compared;
    compared.done = std::async(
        std::launch::async,
        [f = fixture.get(), first, blocks = fixture->QueryBlocks()] { f->Compare(first, blocks); });
    compared.fixture = std::move(fixture);
    running_.push_back(std::move(compared));
    Finish(in_flight_);
  }

 private:
  struct Compared {
    std::unique_ptr<Fixture> fixture;
    std::future<void> done;
  };
  void Finish(size_t left) {
    while (running_.size() > left) {
      running_.front().done.get();
      running_.pop_front();
    }
  }
  const DeviceLimits& limits_;
  size_t in_flight_;
  std::deque<Compared> running_;
};

HeadSpec Head(int head_dim, Groups groups, int value_width = 3, std::vector<int> mean = {}) {
  HeadSpec spec;
  spec.head_dim = head_dim;
  spec.groups = std::move(groups);
  spec.value_width = value_width;
  spec.mean_units = std::move(mean);
  return spec;
}
const Groups k432 = {{4, 32}, {3, 64}, {2, 32}};
const Groups k8432 = {{8, 16}, {4, 48}, {3, 32}, {2, 32}};
const Groups k5432 = {{5, 16}, {4, 16}, {3, 48}, {2, 48}};
const std::vector<int> kWholeMean = {0, 1, 2, 3, 4, 5, 6, 7};
const Groups k256 = {{4, 64}, {3, 128}, {2, 64}};
const std::vector<int> kWholeMean256 = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

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
        add(8, true, 2, blocks, 8, query_heads, mean, 256);
        add(12, false, 2, blocks, 6, query_heads, mean);
        add(8, true, 1, blocks, 20, query_heads, mean);
        add(8, false, 3, blocks, 20, query_heads, mean);
      }
    }
  }
  return cases;
}

// A captured step follows lengths that change on the device.
void TestGraphFollowsLengths(const DeviceLimits& limits) {
  const Case c{"graph", 128, 4, {Head(128, k432), Head(128, k8432)}, {3000, 500}};
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
    return TraitsOf(plans).status();
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
}

void Run(const DeviceLimits& limits, bool quick, size_t every, size_t in_flight) {
  Cases runner(limits, in_flight);
  const auto run_some = [&](const std::vector<Case>& cases, size_t step, bool overlapped) {
    for (size_t i = 0; i < cases.size(); i += step) {
      if (Runs(cases[i], limits)) runner.Run(cases[i], overlapped);
    }
  };
  run_some(QuickCases(), 1, true);
  run_some(ConfigurationCases(true), 1, true);
  if (quick) return;
  run_some(MoreCases(), every, false);
  run_some(Cases256(), every, false);
  run_some(SmallSharedMemoryCases(), every, false);
  run_some(ConfigurationCases(false), every, true);
  TestGraphFollowsLengths(limits);
  TestRefusals(limits);
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) {
  const bool some = argc > 2 && std::strcmp(argv[1], "every") == 0;
  const int every = some ? std::max(1, std::atoi(argv[2])) : 1;
  // The emulator's kernels must not run beside other threads.
  const size_t in_flight = some ? 0 : std::max(1u, std::thread::hardware_concurrency() / 2);
  return blockgtq::cuda::RunTests(
      argc, argv, [every, in_flight](const blockgtq::cuda::DeviceLimits& limits, bool quick) {
        blockgtq::cuda::Run(limits, quick, static_cast<size_t>(every), quick ? 0 : in_flight);
      });
}
