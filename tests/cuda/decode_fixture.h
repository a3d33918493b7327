// A batch of packed sequences on host and device, its launch, and its comparison with double precision: what
// the tests of decode attention share.
#pragma once

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
#include <vector>

#include "src/cache/kv_cache.h"
#include "src/cuda/decode_attention.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/decode_case.h"
#include "tests/cuda/decode_reference.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"
#include "tests/cuda/late_rows.h"
#include "tests/cuda/new_tokens.h"

namespace blockgtq::cuda {

/// Against the reference that rounds as the kernel does, of all query heads but the worst one of a sequence.
inline constexpr double kRoundedTolerance = 1e-3;
/// The same of that head: a probability that rounds the other way is 1 / 255 of the largest.
inline constexpr double kHeadTolerance = 4e-3;
// Against exact attention: u8 probabilities alone, or int8 queries too (more than 4 query heads a KV head).
inline constexpr double kExactTolerance16BitQueries = 8e-3, kExactTolerance8BitQueries = 2.5e-2;

struct Error {
  double square = 0, size = 0;
  void Add(const std::vector<double>& reference, const uint16_t* out) {
    for (size_t i = 0; i < reference.size(); ++i) {
      const double difference = HalfToFloat(out[i]) - reference[i];
      square += std::isfinite(difference) ? difference * difference : 1e30;
      size += reference[i] * reference[i];
    }
  }
  void Add(const Error& other) { square += other.square, size += other.size; }
  double relative() const { return std::sqrt(square / std::max(size, 1e-30)); }
};

// A batch on host and device, ready to launch.
class Fixture {
 public:
  explicit Fixture(const Case& c, const DeviceLimits& device) : c_(c), rope_(RopeOf(c)) {
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

    const HeadTraits traits = Require(TraitsOf(plans_, rope_.config()), "traits");
    const HeadTable table = Require(BuildHeadTable(plans_, traits, rope_.config()), "table");
    config_ = Require(Configure(c, traits, device), "configuration");
    if (c.head_parts > 0) {
      Check(config_.head_parts == c.head_parts,
            c.name + ": it runs in " + std::to_string(config_.head_parts) + " parts");
    }
    table_ = std::make_unique<DeviceTable>(table);
    if (traits.mean_units > 0) {
      phases_ = std::make_unique<DevicePhases>(rope_.config(), c.first_position, longest);
    }
    MakePool(table, random);
    if (config_.shape.has_exact) MakeExact(config_.shape);

    queries_ = cpu::Normals(batch * plans_.size() * c.query_heads * c.head_dim, c.query_size, 5);
    std::vector<uint16_t> halves;
    for (float& q : queries_) {
      halves.push_back(FloatToHalf(q));
      q = HalfToFloat(halves.back());
    }
    if (!c.fused) device_queries_ = DeviceArray<uint16_t>(halves);
    out_ = DeviceArray<uint16_t>(halves.size());
    coded_end_ = DeviceArray<int32_t>(coded_);
    device_lengths_ = DeviceArray<int32_t>(lengths_);
    scratch_ = DeviceArray<uint8_t>(config_.scratch_bytes);
    scratch_.Fill(0xff);
    exchange_ = DeviceArray<uint8_t>(config_.exchange_bytes);
    exchange_.Fill(0);
    BindDecode(config_, scratch_.data(), exchange_.data(), params_);
    table_->Bind(params_);
    if (phases_ != nullptr) params_.phases = phases_->phases.data();
    params_.logit_scale = static_cast<float>(1.4426950408889634 / std::sqrt(double(c.head_dim)));
    params_.coded_end = coded_end_.data();
    params_.length = device_lengths_.data();
    params_.sinks = c.sinks;
    params_.window = static_cast<int32_t>(c.window);
    params_.queries = device_queries_.data();
    params_.out = out_.data();
    if (c.fused) MakeNewTokens();
  }

  const DecodeConfig& config() const { return config_; }
  void Launch(cudaStream_t stream) {
    Require(LaunchDecodeSchedule(config_, params_, stream), "schedule");
    Require(LaunchDecodeAttention(config_, params_, false, stream), "attention");
  }
  std::vector<uint16_t> Run() {
    out_.Fill(0xff);
    if (c_.fused) exact_.Upload(host_exact_);
    Launch(nullptr);
    Require(cudaDeviceSynchronize(), "run");
    return out_.Download();
  }
  /// Launches attention twice, each with an output of its own: the first while the kernel that writes its
  /// rows runs, the second while the first (and maybe that kernel too) does.
  std::pair<std::vector<uint16_t>, std::vector<uint16_t>> RunOverlapped() {
    DeviceArray<uint16_t> second_out(out_.size());
    out_.Fill(0xff);
    second_out.Fill(0xff);
    DecodeParams second = params_;
    second.out = second_out.data();
    second.launch = 1;
    ExactMemory second_exact;  // as another layer's: the first launch must not write what the second reads
    if (c_.fused) {
      exact_.Upload(host_exact_);
      second_exact = ExactMemory(host_exact_, lengths_, c_.sinks, params_.window_tiles);
      second.exact = second_exact.rows.data();
      second.rope = new_tokens_->Fused(second_exact);
    }
    LateRows rows;
    if (c_.fused) {
      new_tokens_->AddTo(rows);
    } else {
      rows.Add(device_queries_);
    }
    rows.Spoil();
    Require(LaunchDecodeSchedule(config_, params_, nullptr), "schedule");
    rows.Launch(nullptr);
    Require(LaunchDecodeAttention(config_, params_, true, nullptr), "attention behind what writes its rows");
    Require(LaunchDecodeAttention(config_, second, true, nullptr), "attention behind attention");
    Require(cudaDeviceSynchronize(), "run");
    if (c_.fused) {
      CheckStored();
      Check(second_exact.Download() == stored_exact_, c_.name + ": a run behind another stores other bytes");
    }
    return {out_.Download(), second_out.Download()};
  }
  /// After a run of a fused case: the newest tokens lie where RopeStoreKernel puts them, and nothing else has
  /// changed.
  void CheckStored() {
    if (!c_.fused) return;
    Check(exact_.Download() == stored_exact_, c_.name + ": exact tiles differ from those of RoPE on its own");
    Check(new_tokens_->TakeError() == INT32_MAX, c_.name + ": no error is set");
  }
  NewTokens& new_tokens() { return *new_tokens_; }
  /// Without exact tokens: they end where the codes do.
  void SetCoded(const std::vector<int32_t>& coded) {
    coded_end_.Upload(coded);
    device_lengths_.Upload(coded);
  }
  /// Block tables name no page any more before the window's first one.
  void GiveBackPages() {
    constexpr int32_t kNoPage = 1 << 22;
    if (c_.window == 0) return;
    std::vector<int32_t> tables = block_table_.Download();
    for (size_t b = 0; b < lengths_.size(); ++b) {
      std::fill_n(tables.begin() + static_cast<int64_t>(b) * params_.max_pages, FirstSeen(b) / 64, kNoPage);
    }
    block_table_.Upload(tables);
  }
  void PoisonOutput() { out_.Fill(0xff); }
  std::vector<uint16_t> Output() const { return out_.Download(); }

  std::vector<uint8_t> QueryBlocks() const { return scratch_.Download(); }  // they come first
  /// Compares `out` with both references and with reference::Attention. blocks: of the run that gave `out`.
  /// Touches no device memory: another thread may run it.
  void Compare(const std::vector<uint16_t>& out, const std::vector<uint8_t>& blocks) const {
    struct Outcome {
      Error rounded, exact, worst;  // rounded: but for the worst head
      double query_distance = 0;
    };
    std::vector<std::future<Outcome>> work;
    for (size_t pair = 0; pair < sequences_.size(); ++pair) {
      work.push_back(std::async(std::launch::async, [&, pair] {
        Outcome o;
        const size_t h = pair % plans_.size(), b = pair / plans_.size();
        const HeadReference reference(plans_[h], rope_, c_.first_position);
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
                                                FirstCoded(b), coded_[b], rounded, config_.rounding_tokens());
          double log_exact;
          if (c_.first_position == 0) {  // the definition: the codec's own reference
            std::vector<float> defined(c_.head_dim);
            float lse;
            reference::Attention(plans_[h], RecordLayout::For(plans_[h]), rope_, &queries_[at],
                                 sequences_[pair].records, FirstCoded(b), coded_[b],
                                 static_cast<float>(1 / std::sqrt(double(c_.head_dim))), defined.data(),
                                 &lse);
            exact.assign(defined.begin(), defined.end());
            log_exact = double{lse} * 1.4426950408889634;
          } else {
            log_exact = reference.Attend(q, params_.logit_scale, nullptr, sequences_[pair].records,
                                         FirstCoded(b), coded_[b], exact);
          }
          std::vector<double> tokens;
          const double log_tokens = ExactTokens(q, pair, b, tokens);
          MergeAttention(rounded, log_rounded, tokens, log_tokens);
          MergeAttention(exact, log_exact, tokens, log_tokens);
          Error head;
          head.Add(rounded, &out[at]);
          if (c_.query_heads > 1 && head.relative() > o.worst.relative()) std::swap(head, o.worst);
          o.rounded.Add(head);
          o.exact.Add(exact, &out[at]);
        }
        return o;
      }));
    }
    Error rounded, exact;
    double distance = 0, worst_head = 0;
    for (auto& w : work) {
      const Outcome o = w.get();
      rounded.Add(o.rounded);
      exact.Add(o.exact);
      distance = std::max(distance, o.query_distance);
      worst_head = std::max(worst_head, o.worst.relative());
    }
    const DecodeVariant& v = config_.variant;
    std::printf("%-46s %2d warps x%d, %dx%d%s%s%s%s  rounded %.1e (a head %.1e)  exact %.1e  query %.2f\n",
                c_.name.c_str(), v.warps, config_.stages, config_.workers, config_.cluster_blocks,
                v.few_heads ? " few" : "", v.mean ? " mean" : "", v.split_tiles ? " split" : "",
                v.warp_workers ? " own" : "", rounded.relative(), worst_head, exact.relative(), distance);
    std::fflush(stdout);
    Check(rounded.relative() <= kRoundedTolerance, c_.name + ": differs from the rounded reference");
    Check(worst_head <= kHeadTolerance, c_.name + ": a query head differs from the rounded reference");
    Check(exact.relative() <= (v.few_heads ? kExactTolerance16BitQueries : kExactTolerance8BitQueries),
          c_.name + ": differs from exact attention");
    Check(distance <= 1.03, c_.name + ": a query is not rounded to the nearest step");
  }

 private:
  int64_t FirstSeen(size_t b) const {
    return c_.window > 0 ? std::max<int64_t>(lengths_[b] - c_.window, 0) : 0;
  }
  int64_t FirstCoded(size_t b) const { return std::max<int64_t>(c_.sinks, FirstSeen(b)); }

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
    for (int b = 0; b < batch; ++b) {
      const int32_t stored = lengths_[b] - (c_.fused ? 1 : 0);
      std::vector<uint16_t> exact(static_cast<size_t>(window_layer + sink_layer), 0x7e00);  // NaN; 2 layers
      for (int h = 0; h < shape.kv_heads; ++h) {
        const cpu::Sequence& s = sequences_[b * shape.kv_heads + h];
        for (int64_t t = FirstSeen(b); t < std::min(c_.sinks, stored); ++t) {
          store(&exact[(params_.sink_offset + h * sink_bytes) / 2], sink_tokens, s, t);
        }
        for (int64_t t = std::max<int64_t>(coded_[b], FirstSeen(b)); t < stored; ++t) {
          const int64_t ring = t / 64 % shape.window_tiles;
          store(&exact[(params_.window_offset + (h * shape.window_tiles + ring) * tile_bytes) / 2], 64, s, t);
        }
      }
      host_exact_.push_back(std::move(exact));
    }
    exact_ = ExactMemory(host_exact_, lengths_, c_.sinks, std::max(shape.window_tiles, 1));
    params_.exact = exact_.rows.data();
  }

  // The newest tokens and the queries become those that RoPE on its own makes of rows before RoPE.
  void MakeNewTokens() {
    const size_t dim = c_.head_dim, heads = plans_.size();
    new_tokens_ = std::make_unique<NewTokens>(rope_.config(), lengths_.size(), static_cast<int>(heads),
                                              c_.query_heads, c_.query_size);
    const NewTokens::Rotated rotated = new_tokens_->RotateAndStore(params_, exact_);
    stored_exact_ = exact_.Download();
    for (size_t i = 0; i < queries_.size(); ++i) queries_[i] = HalfToFloat(rotated.q[i]);
    for (size_t pair = 0; pair < sequences_.size(); ++pair) {
      const size_t newest = (lengths_[pair / heads] - 1) * dim;
      for (size_t d = 0; d < dim; ++d) {
        sequences_[pair].keys[newest + d] = HalfToFloat(rotated.k[pair * dim + d]);
        sequences_[pair].values[newest + d] = HalfToFloat(rotated.v[pair * dim + d]);
      }
    }
    params_.rope = new_tokens_->Fused(exact_);
  }

  double ExactTokens(const std::vector<double>& q, size_t pair, size_t b, std::vector<double>& out) const {
    const int dim = c_.head_dim;
    out.assign(dim, 0.0);
    if (c_.recent.empty()) return -INFINITY;
    std::vector<std::pair<int64_t, double>> logits;
    double top = -INFINITY, total = 0;
    for (int64_t t = FirstSeen(b); t < lengths_[b]; ++t) {
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
  std::unique_ptr<DevicePhases> phases_;  // where some head has a mean
  DeviceArray<uint8_t> pool_, scratch_, exchange_;
  DeviceArray<int32_t> block_table_, coded_end_, device_lengths_;
  DeviceArray<uint16_t> device_queries_, out_;
  ExactMemory exact_;
  std::vector<std::vector<uint16_t>> host_exact_;  // before a run
  // Where the case is fused.
  std::unique_ptr<NewTokens> new_tokens_;
  std::vector<std::vector<uint16_t>> stored_exact_;  // with the newest tokens
};

/// Runs cases one after another, and up to `in_flight` comparisons with the references beside them: those
/// take most of the time.
class Cases {
 public:
  Cases(const DeviceLimits& limits, size_t in_flight) : limits_(limits), in_flight_(in_flight) {}
  ~Cases() { Finish(0); }

  void Run(const Case& c, bool overlapped) {
    auto fixture = std::make_unique<Fixture>(c, limits_);
    fixture->GiveBackPages();
    const std::vector<uint16_t> first = fixture->Run(), second = fixture->Run();
    Check(first == second, c.name + ": two runs differ");
    fixture->CheckStored();
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
  /// Every `step`th of them that runs on this GPU.
  void RunSome(const std::vector<Case>& cases, size_t step, bool overlapped) {
    for (size_t i = 0; i < cases.size(); i += step) {
      if (Runs(cases[i], limits_)) Run(cases[i], overlapped);
    }
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

/// The main function of a test of decode attention: arguments [quick | every N].
/// run(cases, limits, quick, every): quick for compute-sanitizer; every Nth case, one at a time, for the
/// emulator.
template <typename Run>
int RunDecodeTests(int argc, char** argv, Run run) {
  const bool some = argc > 2 && std::strcmp(argv[1], "every") == 0;
  const int every = some ? std::max(1, std::atoi(argv[2])) : 1;
  // The emulator's kernels must not run beside other threads.
  const size_t in_flight = some ? 0 : std::max(1u, std::thread::hardware_concurrency() / 2);
  return RunTests(argc, argv, [&](const DeviceLimits& limits, bool quick) {
    Cases cases(limits, quick ? 0 : in_flight);
    run(cases, limits, quick, static_cast<size_t>(every));
  });
}

}  // namespace blockgtq::cuda
