// A layer of latents on the device, and attention of new rows over it from queries and keys as products leave
// them, compared with double precision over what the cache holds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "src/cuda/latent_attention.h"
#include "src/cuda/latent_store.h"
#include "tests/cuda/harness.h"
#include "tests/cuda/latent_case.h"

namespace blockgtq::cuda {

inline constexpr uint16_t kNan = 0x7e00;

struct LatentTokens {
  int64_t coded, length;  // codes of [0, coded) when the last row attends, which is token length - 1
};

struct LatentCase {
  std::string name;
  LatentSpec spec;
  int heads;
  std::vector<LatentTokens> sequences;
  int sinks = 0, rows = 1;  // rows: new tokens of every sequence
  LatentExact exact = LatentExact::kTiles;
  bool own_codes = false;  // every row is coded before it attends: recent = 0
  float query_size = 1.0f, attention_factor = 1.0f;
  int code_splits = 0, exact_splits = 0;  // 0: as many as suit the GPU
};

/// One sequence on the host: its keys, decoded ones where they are coded.
struct LatentSequence {
  std::vector<uint16_t> keys;       // fp16 [length][dim], rotated
  std::vector<float> queries, raw;  // of the new rows, before RoPE: [rows][heads * dim], [rows][dim]
  std::vector<float> decoded;       // [coded][dim]
  std::vector<std::vector<uint8_t>> records;
};

class LatentFixture {
 public:
  explicit LatentFixture(const LatentCase& c)
      : c_(c),
        plan_(MakeLatentPlan(c.spec, 17)),
        config_(LatentRope(c.spec, c.attention_factor)),
        rope_(config_),
        latents_(plan_, config_),
        dim_(plan_.head_dim) {
    for (size_t s = 0; s < c.sequences.size(); ++s) MakeSequence(c.sequences[s], 100 * s);
  }

  void Run(const DeviceLimits& limits) {
    PlaceTokens();
    Store();
    const std::vector<uint16_t> out = Attend(limits);
    double worst = 0;
    bool zero = true;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      for (int r = 0; r < c_.rows; ++r) {
        for (int h = 0; h < c_.heads; ++h) {
          const std::vector<float> expected = Expected(s, r, h);
          const size_t vector = (s * c_.rows + r) * c_.heads + h;
          const std::vector<float> got =
              Widened(std::span(out).subspan(vector * dim_ + static_cast<size_t>(c_.spec.rope_dims),
                                             static_cast<size_t>(c_.spec.latent_dims)));
          zero = zero && std::all_of(&out[vector * dim_], &out[vector * dim_ + c_.spec.rope_dims],
                                     [](uint16_t h) { return h == 0; });
          worst = std::max(worst, cpu::RelativeL2(got, expected));
        }
      }
    }
    char figures[64];
    std::snprintf(figures, sizeof figures, ": relative error %.2e", worst);
    std::printf("%s%s\n", c_.name.c_str(), figures);
    // Queries, keys and weights are fp16; a code's value is a product of a few such numbers.
    const double bound = c_.exact == LatentExact::kPages ? 1.5e-3 : 4.5e-3;
    Check(worst < bound * std::max(1.0f, c_.query_size / 2), c_.name + figures);
    Check(zero, c_.name + ": zeros before the latent");
    Check(error_.Download()[0] == INT32_MAX, c_.name + ": no error");
  }

 private:
  int64_t Position(const LatentTokens& t, int row) const { return t.length - c_.rows + row; }
  int64_t Coded(const LatentTokens& t, int row) const {
    return c_.own_codes ? Position(t, row) + 1 : t.coded;
  }

  void MakeSequence(const LatentTokens& t, uint64_t seed) {
    LatentSequence s;
    const int64_t before = t.length - c_.rows;
    s.keys = LatentKeys(plan_, rope_, 0, before, seed + 1);
    s.queries = cpu::Normals(static_cast<size_t>(c_.rows) * c_.heads * dim_, c_.query_size, seed + 2);
    s.raw = cpu::Normals(static_cast<size_t>(c_.rows) * dim_, 1.0f, seed + 3);
    std::vector<float> rotated(dim_);
    for (int r = 0; r < c_.rows; ++r) {
      rope_.Apply(&s.raw[r * dim_], before + r, rotated.data());
      for (float x : rotated) s.keys.push_back(FloatToHalf(x));
    }
    const int64_t coded = Coded(t, c_.rows - 1);
    const RecordLayout layout = RecordLayout::For(plan_);
    s.decoded.resize(static_cast<size_t>(coded) * dim_);
    for (int64_t first = 0; first < coded; first += kPageTokens) {
      const int64_t count = std::min<int64_t>(kPageTokens, coded - first);
      std::vector<uint8_t>& record = s.records.emplace_back(layout.bytes);
      const std::span<std::byte> bytes = std::as_writable_bytes(std::span(record));
      Require(
          reference::EncodeKeys(plan_, layout, rope_,
                                Widened(std::span(s.keys).subspan(first * dim_, count * dim_)), first, bytes),
          "reference");
      for (int64_t t = first; t < first + count; ++t)
        reference::DecodeKey(plan_, layout, rope_, bytes, t, &s.decoded[t * dim_]);
    }
    sequences_.push_back(std::move(s));
  }

  /// Everything but the new rows where the cache has it; NaN where nothing is.
  void PlaceTokens() {
    int64_t longest = 1;
    for (const LatentTokens& t : c_.sequences)
      longest = std::max(longest, (t.length + kPageTokens - 1) / kPageTokens);
    table_stride_ = longest + 2;
    block_bytes_ =
        (c_.exact == LatentExact::kPages ? 2 * kPageTokens * dim_ : latents_.table.record_bytes) + 64;
    const size_t blocks = sequences_.size() * table_stride_;
    std::vector<uint8_t> pool(blocks * block_bytes_, 0xff);
    std::vector<int32_t> tables(blocks, 0);
    const int64_t ring = int64_t{window_tiles_} * kPageTokens * dim_, all = ring + 64 * dim_ + 24;
    std::vector<uint16_t> exact(sequences_.size() * all, kNan);
    for (size_t s = 0; s < sequences_.size(); ++s) {
      const LatentSequence& q = sequences_[s];
      const LatentTokens& t = c_.sequences[s];
      for (int64_t page = 0; page < table_stride_; ++page)
        tables[s * table_stride_ + page] = static_cast<int32_t>((s + 1) * table_stride_ - 1 - page);
      const auto block = [&](int64_t page) {
        return pool.data() + tables[s * table_stride_ + page] * block_bytes_;
      };
      for (size_t page = 0; page < q.records.size(); ++page)
        std::copy(q.records[page].begin(), q.records[page].end(), block(page));
      uint16_t* tiles = exact.data() + s * all + 16;
      for (int64_t at = 0; at < t.length - c_.rows; ++at) {
        const uint16_t* key = &q.keys[at * dim_];
        if (at < c_.sinks) std::copy_n(key, dim_, tiles + ring + at * dim_);
        if (c_.exact == LatentExact::kTiles && at >= Coded(t, 0))
          std::copy_n(key, dim_,
                      tiles + (at / kPageTokens % window_tiles_ * kPageTokens + at % kPageTokens) * dim_);
        if (c_.exact == LatentExact::kPages)
          std::copy_n(reinterpret_cast<const uint8_t*>(key), 2 * dim_,
                      block(at / kPageTokens) + at % kPageTokens * 2 * dim_);
      }
    }
    if (c_.exact == LatentExact::kRows) {  // of the only sequence
      first_row_ = c_.sequences[0].coded / kPageTokens * kPageTokens;
      std::vector<uint16_t> rows((c_.sequences[0].length - first_row_) * dim_, kNan);
      for (int64_t at = c_.sequences[0].coded; at < c_.sequences[0].length - c_.rows; ++at)
        std::copy_n(&sequences_[0].keys[at * dim_], dim_, &rows[(at - first_row_) * dim_]);
      rows_ = DeviceArray<uint16_t>(rows);
    }
    pool_ = DeviceArray<uint8_t>(pool);
    tables_ = DeviceArray<int32_t>(tables);
    exact_ = DeviceArray<uint16_t>(exact);
    std::vector<const uint8_t*> bases;
    std::vector<RowTarget> targets;
    std::vector<int32_t> coded, lengths;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      for (int r = 0; r < c_.rows; ++r) {
        const int64_t position = Position(c_.sequences[s], r);
        RowTarget target;
        target.exact = reinterpret_cast<uint8_t*>(exact_.data() + s * all);
        target.position = static_cast<int32_t>(position);
        if (c_.exact == LatentExact::kTiles && !c_.own_codes)
          target.window_tile = static_cast<int32_t>(position / kPageTokens % window_tiles_);
        if (position < c_.sinks) target.sink_slot = target.position;
        if (c_.exact == LatentExact::kPages)
          target.page[0] = tables[s * table_stride_ + position / kPageTokens];
        targets.push_back(target);
        bases.push_back(target.exact);
        coded.push_back(static_cast<int32_t>(Coded(c_.sequences[s], r)));
        lengths.push_back(static_cast<int32_t>(position + 1));
      }
    }
    sink_offset_ = 32 + 2 * ring;
    bases_ = DeviceArray<const uint8_t*>(bases);
    targets_ = DeviceArray<RowTarget>(targets);
    coded_ = DeviceArray<int32_t>(coded);
    lengths_ = DeviceArray<int32_t>(lengths);
  }

  int64_t Rows() const { return static_cast<int64_t>(sequences_.size()) * c_.rows; }

  void Store() {
    std::vector<float> q, k;
    for (const LatentSequence& s : sequences_) {
      q.insert(q.end(), s.queries.begin(), s.queries.end());
      k.insert(k.end(), s.raw.begin(), s.raw.end());
    }
    const DeviceArray<float> device_q(q), device_k(k);
    queries_ = DeviceArray<uint16_t>(q.size());
    scales_ = DeviceArray<float>(q.size() / dim_);
    offsets_ = DeviceArray<float>(q.size() / dim_);
    LatentStoreCall call;
    call.rows = Rows();
    call.heads = c_.heads;
    call.head_dim = static_cast<int32_t>(dim_);
    call.rotary_dims = config_.rotary_dims;
    call.neox = config_.pairing == RopePairing::kNeox;
    call.attention_factor = config_.attention_factor;
    call.steps = latents_.steps.data();
    call.q = device_q.data();
    call.k = device_k.data();
    call.queries = queries_.data();
    call.query_scale = scales_.data();
    if (latents_.table.has_latent_mean) {
      call.mean = latents_.mean.data();
      call.rope_dims = c_.spec.rope_dims;
      call.query_offset = offsets_.data();
    }
    if (c_.exact == LatentExact::kRows)
      call.keys = rows_.data() + (Position(c_.sequences[0], 0) - first_row_) * dim_;
    call.targets = targets_.data();
    call.tiles.window_offset = 32;
    call.tiles.sink_offset = sink_offset_;
    call.tiles.window_tiles = window_tiles_;
    call.tiles.pool = pool_.data();
    call.tiles.page_bytes = block_bytes_;
    call.error = error_.data();
    Require(LaunchLatentStore(call, nullptr), "launch");
    Require(cudaDeviceSynchronize(), "store");
  }

  std::vector<uint16_t> Attend(const DeviceLimits& limits) {
    LatentParams p;
    latents_.Bind(p);
    p.rows = static_cast<int32_t>(Rows());
    p.heads = c_.heads;
    p.group_rows = c_.rows;
    p.logit_scale = Scale() * 1.44269504f;
    p.queries = queries_.data();
    p.query_scale = scales_.data();
    p.query_offset = latents_.table.has_latent_mean ? offsets_.data() : nullptr;
    p.coded_end = coded_.data();
    p.length = lengths_.data();
    p.sinks = c_.sinks;
    p.block_table = tables_.data();
    p.table_stride = table_stride_;
    p.pool = pool_.data();
    p.block_bytes = block_bytes_;
    p.exact_kind = c_.exact;
    p.exact = bases_.data();
    p.window_offset = 32;
    p.sink_offset = sink_offset_;
    p.window_tiles = window_tiles_;
    p.exact_rows = rows_.data();
    p.first_exact_row = first_row_;
    p.code_splits = c_.exact == LatentExact::kPages ? 0 : 1;
    p.exact_splits = 1;
    const int64_t tiles = table_stride_;
    if (p.code_splits > 0)
      p.code_splits = c_.code_splits > 0 ? c_.code_splits : LatentSplits(p, limits.processors, tiles);
    p.exact_splits = c_.exact_splits > 0 ? c_.exact_splits : LatentSplits(p, limits.processors, 3);
    DeviceArray<uint8_t> scratch(static_cast<size_t>(LatentScratchBytes(p)));
    scratch.Fill(0xff);
    BindLatentScratch(scratch.data(), p);
    DeviceArray<uint16_t> out(static_cast<size_t>(Rows()) * c_.heads * dim_);
    out.Fill(0xff);
    p.out = out.data();
    Require(LaunchLatents(p, nullptr), "launch");
    Require(cudaDeviceSynchronize(), "attention");
    return out.Download();
  }

  float Scale() const { return 1.5f / std::sqrt(static_cast<float>(dim_)); }

  std::vector<float> Expected(size_t s, int row, int head) const {
    const LatentSequence& q = sequences_[s];
    const int64_t position = Position(c_.sequences[s], row), coded = Coded(c_.sequences[s], row);
    std::vector<float> query(dim_);
    rope_.Apply(&q.queries[(static_cast<size_t>(row) * c_.heads + head) * dim_], position, query.data());
    std::vector<double> logits;
    const auto key = [&](int64_t t, size_t d) {
      return t >= c_.sinks && t < coded ? double{q.decoded[t * dim_ + d]}
                                        : double{HalfToFloat(q.keys[t * dim_ + d])};
    };
    double largest = -INFINITY;
    for (int64_t t = 0; t <= position; ++t) {
      double dot = 0;
      for (size_t d = 0; d < dim_; ++d) dot += query[d] * key(t, d);
      logits.push_back(dot * double{Scale()});
      largest = std::max(largest, logits.back());
    }
    std::vector<double> sum(static_cast<size_t>(c_.spec.latent_dims), 0.0);
    double total = 0;
    for (int64_t t = 0; t <= position; ++t) {
      const double weight = std::exp(logits[t] - largest);
      total += weight;
      for (size_t d = 0; d < sum.size(); ++d)
        sum[d] += weight * key(t, static_cast<size_t>(c_.spec.rope_dims) + d);
    }
    std::vector<float> out;
    for (double x : sum) out.push_back(static_cast<float>(x / total));
    return out;
  }

  const LatentCase& c_;
  const HeadPlan plan_;
  const RopeConfig config_;
  const RopeTable rope_;
  const DeviceLatents latents_;
  const size_t dim_;
  const int window_tiles_ = 4;
  std::vector<LatentSequence> sequences_;
  int64_t table_stride_ = 0, block_bytes_ = 0, sink_offset_ = 0, first_row_ = 0;
  DeviceArray<uint8_t> pool_;
  DeviceArray<int32_t> tables_, coded_, lengths_;
  DeviceArray<uint16_t> exact_, rows_, queries_;
  DeviceArray<float> scales_, offsets_;
  DeviceArray<const uint8_t*> bases_;
  DeviceArray<RowTarget> targets_;
  DeviceArray<int32_t> error_{std::vector<int32_t>{INT32_MAX}};
};

}  // namespace blockgtq::cuda
