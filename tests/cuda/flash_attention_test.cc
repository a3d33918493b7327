// cuDNN attention over fp16 and the merge of two parts, against double precision.
//
//   flash_attention_test [quick]    quick: a few small cases, for compute-sanitizer
//
#include "src/cuda/flash_attention.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "src/core/half.h"
#include "src/cuda/merge.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

constexpr double kTolerance = 1e-3;        // relative L2: probabilities and outputs are rounded to fp16
constexpr double kLogSumTolerance = 2e-5;  // absolute
constexpr uint16_t kUnwritten = 0xffff;    // a NaN
constexpr float kSlack = 777.0f;           // in slots without a token
constexpr int64_t kSlackTokens = 128;

struct Shape {
  int heads = 4, kv_heads = 2, head_dim = 128;
  std::string Text() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " + std::to_string(head_dim);
  }
};

std::vector<uint16_t> RandomHalves(size_t count, float size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<uint16_t> halves(count);
  for (uint16_t& h : halves) h = FloatToHalf(normal(random));
  return halves;
}

struct Attention {
  std::vector<double> out;      // [rows][heads][head_dim]
  std::vector<double> log_sum;  // [rows][heads]
};

// Row i sees tokens [first, limit(i)), no more than the last `window` of them where that is not 0. keys,
// values: [tokens][kv_heads][head_dim].
template <typename Limit>
Attention Reference(const Shape& s, const std::vector<uint16_t>& queries, const std::vector<uint16_t>& keys,
                    const std::vector<uint16_t>& values, int64_t rows, int64_t earliest, Limit limit,
                    int64_t window = 0) {
  Attention a;
  a.out.assign(rows * s.heads * s.head_dim, 0.0);
  a.log_sum.assign(rows * s.heads, -INFINITY);
  std::vector<std::future<void>> work;
  constexpr int kParts = 16;
  for (int part = 0; part < kParts; ++part) {
    work.push_back(std::async(std::launch::async, [&, part] {
      std::vector<double> logit;
      for (int64_t pair = part; pair < rows * s.heads; pair += kParts) {
        const int64_t row = pair / s.heads, end = limit(row);
        const int64_t first = window > 0 ? std::max(earliest, end - window) : earliest;
        const int kv = static_cast<int>(pair % s.heads) / (s.heads / s.kv_heads);
        logit.assign(std::max<int64_t>(end - first, 0), 0.0);
        double top = -INFINITY, sum = 0;
        for (int64_t t = first; t < end; ++t) {
          double dot = 0;
          for (int d = 0; d < s.head_dim; ++d) {
            dot += double{HalfToFloat(queries[pair * s.head_dim + d])} *
                   HalfToFloat(keys[(t * s.kv_heads + kv) * s.head_dim + d]);
          }
          logit[t - first] = dot / std::sqrt(double(s.head_dim));
          top = std::max(top, logit[t - first]);
        }
        for (double& l : logit) sum += l = std::exp(l - top);
        for (int64_t t = first; t < end; ++t) {
          for (int d = 0; d < s.head_dim; ++d) {
            a.out[pair * s.head_dim + d] +=
                logit[t - first] / sum * HalfToFloat(values[(t * s.kv_heads + kv) * s.head_dim + d]);
          }
        }
        if (end > first) a.log_sum[pair] = top + std::log(sum);
      }
    }));
  }
  for (auto& w : work) w.get();
  return a;
}

// Compares rows x heads of out and log_sum, and that what lies behind them was not written.
void Compare(const Attention& reference, const std::vector<uint16_t>& out, const std::vector<float>& log_sum,
             const std::string& name) {
  double square = 0, size = 0, worst = 0;
  for (size_t i = 0; i < reference.out.size(); ++i) {
    const double e = HalfToFloat(out[i]) - reference.out[i];
    square += std::isfinite(e) ? e * e : 1e30;
    size += reference.out[i] * reference.out[i];
  }
  const double error = std::sqrt(square / std::max(size, 1e-30));
  Check(error <= kTolerance, name + ": relative error " + std::to_string(error));
  for (size_t i = reference.out.size(); i < out.size(); ++i) {
    if (out[i] != kUnwritten) {
      Check(false, name + ": wrote past its rows");
      break;
    }
  }
  if (log_sum.empty()) return;
  for (size_t i = 0; i < reference.log_sum.size(); ++i) {
    const double e = std::fabs(log_sum[i] - reference.log_sum[i]);
    worst = std::max(worst, std::isfinite(e) || log_sum[i] == reference.log_sum[i] ? e : 1e30);
  }
  Check(worst <= kLogSumTolerance, name + ": log sum off by " + std::to_string(worst));
  for (size_t i = reference.log_sum.size(); i < log_sum.size(); ++i) {
    Check(std::isnan(log_sum[i]), name + ": wrote log sums past its rows");
  }
}

// Keys and values of a batch on the device, in rows or in shuffled pages, with kSlack where there is no
// token.
class Cache {
 public:
  Cache(const Shape& s, const std::vector<std::vector<uint16_t>>& keys,
        const std::vector<std::vector<uint16_t>>& values, int64_t max_tokens, bool paged) {
    const int64_t batch = keys.size(), row = s.kv_heads * s.head_dim;
    if (paged) {
      const int64_t tiles = (max_tokens + kCachePageTokens - 1) / kCachePageTokens, lead = 3 * 64;
      const int64_t tile = int64_t{kCachePageTokens} * s.head_dim, page = 2 * tile * s.kv_heads + lead;
      std::vector<int32_t> table(batch * tiles);
      std::iota(table.begin(), table.end(), 0);
      std::mt19937 random(5);
      std::shuffle(table.begin(), table.end(), random);
      std::vector<uint16_t> data(page * table.size(), FloatToHalf(kSlack));
      for (int64_t b = 0; b < batch; ++b) {
        for (size_t i = 0; i < keys[b].size(); ++i) {
          const int64_t t = i / row, h = i % row / s.head_dim, d = i % s.head_dim;
          const int64_t at = table[b * tiles + t / kCachePageTokens] * page + lead + h * 2 * tile +
                             t % kCachePageTokens * s.head_dim + d;
          data[at] = keys[b][i];
          data[at + tile] = values[b][i];
        }
      }
      data_ = DeviceArray<uint16_t>(data);
      table_ = DeviceArray<int32_t>(table);
      view_.keys = data_.data() + lead;
      view_.values = view_.keys + tile;
      view_.token_stride = s.head_dim;
      view_.head_stride = 2 * tile;
      view_.outer_stride = page;
      view_.pages = table.size();
      view_.block_table = table_.data();
      view_.table_stride = tiles;
    } else {
      const int64_t tokens = max_tokens + kSlackTokens;  // a buffer's rows
      std::vector<uint16_t> data(2 * batch * tokens * row, FloatToHalf(kSlack));
      for (int64_t b = 0; b < batch; ++b) {
        std::copy(keys[b].begin(), keys[b].end(), &data[b * tokens * row]);
        std::copy(values[b].begin(), values[b].end(), &data[(batch + b) * tokens * row]);
      }
      data_ = DeviceArray<uint16_t>(data);
      view_.keys = data_.data();
      view_.values = data_.data() + batch * tokens * row;
      view_.token_stride = row;
      view_.head_stride = s.head_dim;
      view_.outer_stride = tokens * row;
    }
    view_.max_tokens = max_tokens;
  }
  const HalfKeyValues& view() const { return view_; }

 private:
  DeviceArray<uint16_t> data_;
  DeviceArray<int32_t> table_;
  HalfKeyValues view_;
};

AttentionHeads HeadsOf(const Shape& s) {
  return {s.heads, s.kv_heads, s.head_dim, static_cast<float>(1 / std::sqrt(double(s.head_dim)))};
}

struct PrefillCase {
  Shape shape;
  int64_t rows, tokens, max_tokens;
  bool causal = true, paged = false, log_sum = true;
  int64_t window = 0;
};

void TestPrefill(FlashAttention& flash, const PrefillCase& c) {
  const Shape& s = c.shape;
  const std::string name = "prompt of " + s.Text() + ", " + std::to_string(c.rows) + " rows over " +
                           std::to_string(c.tokens) + " of " + std::to_string(c.max_tokens) +
                           (c.causal ? ", causal" : "") + (c.paged ? ", paged" : "") +
                           (c.window > 0 ? ", a window of " + std::to_string(c.window) : "");
  const int64_t row = s.heads * s.head_dim;
  const auto queries = RandomHalves(c.rows * row, 1.5f, 1);
  const auto keys = RandomHalves(c.tokens * s.kv_heads * s.head_dim, 1, 2);
  const auto values = RandomHalves(keys.size(), 1, 3);
  const Cache cache(s, {keys}, {values}, c.max_tokens, c.paged);
  const DeviceArray<uint16_t> device_queries(queries);
  DeviceArray<uint16_t> out((c.rows + 64) * row);
  DeviceArray<float> log_sum((c.rows + 64) * s.heads);
  out.Fill(0xff);
  log_sum.Fill(0xff);
  PrefillCall call;
  call.heads = HeadsOf(s);
  call.cache = cache.view();
  call.rows = c.rows;
  call.tokens = c.tokens;
  call.causal = c.causal;
  call.window = c.window;
  call.queries = device_queries.data();
  call.out = out.data();
  call.log_sum = c.log_sum ? log_sum.data() : nullptr;
  Require(flash.Prefill(call, nullptr), name.c_str());
  Require(cudaDeviceSynchronize(), name.c_str());
  const Attention reference = Reference(
      s, queries, keys, values, c.rows, 0,
      [&](int64_t i) { return c.causal ? c.tokens - c.rows + i + 1 : c.tokens; }, c.window);
  Compare(reference, out.Download(), c.log_sum ? log_sum.Download() : std::vector<float>(), name);
}

// Lengths change between the replays of one captured graph.
void TestDecode(FlashAttention& flash, const Shape& s, int64_t max_tokens,
                const std::vector<std::vector<int32_t>>& steps, bool paged, bool with_log_sum) {
  const int batch = static_cast<int>(steps[0].size());
  const std::string name = std::string(paged ? "paged" : "rows") + " decode of " + s.Text() + ", " +
                           std::to_string(batch) + " sequences up to " + std::to_string(max_tokens);
  std::vector<std::vector<uint16_t>> keys, values;
  for (int b = 0; b < batch; ++b) {
    int32_t longest = 0;
    for (const auto& lengths : steps) longest = std::max(longest, lengths[b]);
    keys.push_back(RandomHalves(int64_t{longest} * s.kv_heads * s.head_dim, 1, 10 + b));
    values.push_back(RandomHalves(keys.back().size(), 1, 1000 + b));
  }
  const Cache cache(s, keys, values, max_tokens, paged);
  const int64_t row = s.heads * s.head_dim;
  const auto queries = RandomHalves(batch * row, 1.5f, 4);
  const DeviceArray<uint16_t> device_queries(queries);
  DeviceArray<uint16_t> out((batch + 1) * row);
  DeviceArray<float> log_sum((batch + 1) * s.heads);
  DeviceArray<int32_t> lengths(steps[0]);
  DecodeCall call;
  call.heads = HeadsOf(s);
  call.cache = cache.view();
  call.batch = batch;
  call.lengths = lengths.data();
  call.queries = device_queries.data();
  call.out = out.data();
  call.log_sum = with_log_sum ? log_sum.data() : nullptr;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Require(cudaStreamCreate(&stream), "stream");
  Require(flash.PrepareDecode(call), name.c_str());
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  Require(flash.Decode(call, stream), name.c_str());
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  Require(cudaGraphInstantiate(&executable, graph, 0), "graph");
  for (const std::vector<int32_t>& step : steps) {
    lengths.Upload(step);
    out.Fill(0xff);
    log_sum.Fill(0xff);
    Require(cudaGraphLaunch(executable, stream), "replay");
    Require(cudaStreamSynchronize(stream), name.c_str());
    Attention all;
    for (int b = 0; b < batch; ++b) {
      const std::vector<uint16_t> query(&queries[b * row], &queries[b * row] + row);
      const Attention one =
          Reference(s, query, keys[b], values[b], 1, 0, [&](int64_t) { return int64_t{step[b]}; });
      all.out.insert(all.out.end(), one.out.begin(), one.out.end());
      all.log_sum.insert(all.log_sum.end(), one.log_sum.begin(), one.log_sum.end());
    }
    Compare(all, out.Download(), with_log_sum ? log_sum.Download() : std::vector<float>(), name);
  }
  Require(cudaGraphExecDestroy(executable), "graph");
  Require(cudaGraphDestroy(graph), "graph");
  Require(cudaStreamDestroy(stream), "stream");
}

// A prompt in two parts, prefix and diagonal, merged in place; and parts that hold no token.
void TestMerge(FlashAttention& flash, const Shape& s, int64_t rows, int64_t prefix) {
  const std::string name = "merge of " + s.Text() + ", " + std::to_string(rows) + " rows after " +
                           std::to_string(prefix) + " tokens";
  const int64_t row = s.heads * s.head_dim, kv_row = s.kv_heads * s.head_dim, tokens = prefix + rows;
  const auto queries = RandomHalves(rows * row, 1.5f, 6);
  const auto keys = RandomHalves(tokens * kv_row, 1, 7), values = RandomHalves(tokens * kv_row, 1, 8);
  const Cache cache(s, {keys}, {values}, tokens, false);
  const DeviceArray<uint16_t> device_queries(queries);
  DeviceArray<uint16_t> out(rows * row), diagonal_out(rows * row);
  DeviceArray<float> log_sum(rows * s.heads), diagonal_log_sum(rows * s.heads);
  PrefillCall call;
  call.heads = HeadsOf(s);
  call.cache = cache.view();
  call.rows = rows;
  call.tokens = prefix;
  call.causal = false;
  call.queries = device_queries.data();
  call.out = out.data();
  call.log_sum = log_sum.data();
  Require(flash.Prefill(call, nullptr), name.c_str());
  call.cache.keys += prefix * kv_row;
  call.cache.values += prefix * kv_row;
  call.cache.max_tokens = call.tokens = rows;
  call.causal = true;
  call.out = diagonal_out.data();
  call.log_sum = diagonal_log_sum.data();
  Require(flash.Prefill(call, nullptr), name.c_str());
  const AttentionPart part = {out.data(), log_sum.data()},
                      diagonal = {diagonal_out.data(), diagonal_log_sum.data()};
  Require(LaunchMerge(part, diagonal, rows, s.heads, s.head_dim, out.data(), log_sum.data(), true, nullptr),
          name.c_str());
  Require(cudaDeviceSynchronize(), name.c_str());
  const Attention whole =
      Reference(s, queries, keys, values, rows, 0, [&](int64_t i) { return prefix + i + 1; });
  Compare(whole, out.Download(), log_sum.Download(), name);

  // An empty part, whose output is NaN, changes nothing; two empty ones give zeros.
  DeviceArray<uint16_t> empty_out(rows * row);
  empty_out.Fill(0xff);
  DeviceArray<float> empty_log_sum(std::vector<float>(rows * s.heads, -INFINITY));
  const AttentionPart empty = {empty_out.data(), empty_log_sum.data()};
  Require(LaunchMerge(empty, part, rows, s.heads, s.head_dim, diagonal_out.data(), diagonal_log_sum.data(),
                      false, nullptr),
          name.c_str());
  Require(LaunchMerge(empty, empty, rows, s.heads, s.head_dim, empty_out.data(), nullptr, false, nullptr),
          name.c_str());
  Require(cudaDeviceSynchronize(), name.c_str());
  Check(diagonal_out.Download() == out.Download(), name + ": an empty part changes the output");
  Check(diagonal_log_sum.Download() == log_sum.Download(), name + ": an empty part changes the sum");
  Check(empty_out.Download() == std::vector<uint16_t>(rows * row, 0), name + ": empty parts give zeros");
}

void TestErrors(FlashAttention& flash) {
  const auto refuses = [](const Status& status, ErrorCode code, const std::string& word) {
    Check(status.code() == code && status.message().find(word) != std::string::npos,
          "refuses '" + word + "': " + status.message());
  };
  PrefillCall prefill;
  prefill.heads = {4, 2, 100, 1.0f};
  prefill.rows = prefill.tokens = prefill.cache.max_tokens = 64;
  prefill.cache.token_stride = 200, prefill.cache.head_stride = 104;
  refuses(flash.PreparePrefill(prefill), ErrorCode::kUnsupported, "head dim 100");
  prefill.heads = {5, 2, 128, 1.0f};
  refuses(flash.PreparePrefill(prefill), ErrorCode::kInvalidArgument, "5 query heads over 2");
  prefill.heads = {4, 2, 128, 1.0f};
  prefill.cache.token_stride = 257;
  refuses(flash.PreparePrefill(prefill), ErrorCode::kInvalidArgument, "strides");
  prefill.cache.token_stride = 256, prefill.cache.head_stride = 128;
  prefill.tokens = 32;
  refuses(flash.PreparePrefill(prefill), ErrorCode::kInvalidArgument, "64 rows over 32 tokens");
  prefill.tokens = 64, prefill.causal = false, prefill.window = 16;
  refuses(flash.PreparePrefill(prefill), ErrorCode::kInvalidArgument, "a window of 16 that is not causal");

  DecodeCall decode;
  decode.heads = {4, 2, 128, 1.0f};
  decode.batch = 1;
  decode.cache.max_tokens = 1 << 10;
  decode.cache.token_stride = 128, decode.cache.head_stride = 2 * 64 * 128;
  decode.cache.outer_stride = 4 * 64 * 128, decode.cache.pages = 100, decode.cache.table_stride = 15;
  const DeviceArray<int32_t> lengths(std::vector<int32_t>{1});
  decode.lengths = lengths.data();
  refuses(flash.PrepareDecode(decode), ErrorCode::kInvalidArgument, "block table of 15 pages");
  decode.cache.table_stride = 16;
  cudaStream_t stream;
  cudaGraph_t graph;
  Require(cudaStreamCreate(&stream), "stream");
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  refuses(flash.Decode(decode, stream), ErrorCode::kInvalidArgument, "before the stream is captured");
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  Require(cudaGraphDestroy(graph), "graph");
  Require(cudaStreamDestroy(stream), "stream");
}

void Run(const DeviceLimits&, bool quick) {
  const auto flash = Require(FlashAttention::Create(), "cuDNN");
  TestPrefill(*flash, {{4, 2, 64}, 17, 90, 256});
  TestPrefill(*flash, {{4, 2, 128}, 64, 200, 256, true, true});
  TestDecode(*flash, {8, 2, 128}, 512, {{1, 130, 64}, {500, 63, 65}}, true, true);
  TestMerge(*flash, {6, 2, 128}, 37, 100);
  TestErrors(*flash);
  if (quick) {
    TestPrefill(*flash, {{4, 2, 64}, 100, 150, 256, true, false, false, 70});
    return;
  }

  // Each new combination compiles a kernel in cuDNN, so few are tried at every head dim.
  for (int head_dim : {64, 128, 256}) {
    TestPrefill(*flash, {{8, 1, head_dim}, 1, 1000, 4096, true, true});
    TestPrefill(*flash, {{3, 3, head_dim}, 300, 300, 4096});
    TestPrefill(*flash, {{5, 1, head_dim}, 64, 1024, 1024, false});
    TestMerge(*flash, {8, 2, head_dim}, 128, 1000);
  }
  for (bool paged : {false, true}) {
    TestPrefill(*flash, {{7, 1, 128}, 128, 1111, 4096, true, paged});
    TestPrefill(*flash, {{4, 1, 128}, 512, 2049, 4096, true, paged, false});
    TestPrefill(*flash, {{6, 2, 128}, 200, 777, 4096, false, paged});
  }
  TestPrefill(*flash, {{8, 4, 128}, 512, 512, 4096});
  TestPrefill(*flash, {{2, 1, 128}, 2048, 2500, 2500});
  TestPrefill(*flash, {{2, 1, 128}, 2048, 4000, 8192});
  TestPrefill(*flash, {{2, 1, 64}, 1500, 3000, 8192, true, true});
  TestMerge(*flash, {3, 1, 64}, 5, 1);

  std::mt19937 random(3);
  for (int head_dim : {64, 128, 256}) {
    const std::vector<int> groups =
        head_dim == 128 ? std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8} : std::vector<int>{1, 7};
    for (const int group : groups) {
      std::vector<std::vector<int32_t>> steps(3);
      for (auto& lengths : steps) {
        for (int b = 0; b < 5; ++b) lengths.push_back(static_cast<int32_t>(1 + random() % 2000));
      }
      steps[0][0] = 1, steps[1][1] = 2048, steps[2][2] = 64;
      TestDecode(*flash, {2 * group, 2, head_dim}, 2048, steps, true, group % 2 == 0);
    }
    TestDecode(*flash, {8, 2, head_dim}, 1024, {{1000, 3}, {5, 1024}}, false, true);
  }
  TestDecode(*flash, {16, 2, 128}, 65536, {{40000}, {7}, {65536}}, true, false);
  // Rows of a small window.
  TestDecode(*flash, {4, 2, 64}, 64, {{20, 3}, {64, 1}}, false, false);
  TestDecode(*flash, {4, 2, 128}, 128, {{100, 128, 7}}, false, false);
  // Sliding windows: shorter than a tile of keys, not a multiple of one, within one chunk and across chunks.
  for (int head_dim : {64, 128, 256}) {
    TestPrefill(*flash, {{8, 2, head_dim}, 512, 512, 512, true, false, false, 100});
    TestPrefill(*flash, {{4, 1, head_dim}, 300, 811, 1024, true, false, false, 512});
  }
  TestPrefill(*flash, {{4, 2, 128}, 1, 100, 128, true, false, false, 100});
  TestPrefill(*flash, {{4, 2, 128}, 2048, 2048, 2048, true, false, false, 1});
  TestPrefill(*flash, {{4, 2, 128}, 2048, 2063, 4096, true, false, true, 16});
  TestPrefill(*flash, {{2, 1, 128}, 700, 4700, 8192, true, false, false, 4001});
  std::printf("%lld plans, %lld bytes of workspace, %s\n", static_cast<long long>(flash->plans()),
              static_cast<long long>(flash->workspace_bytes()), flash->LibraryVersion().c_str());
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::Run); }
