// The tokens of a window out of shuffled pages: rows in order, their numbers, nothing else written. Lengths
// change between the replays of a captured launch.
//
//   window_rows_test [quick]
//
#include "src/cuda/window_rows.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

constexpr int kPage = 64;
constexpr uint16_t kUnwritten = 0xffff;

struct RowsCase {
  int kv_heads = 2, head_dim = 64;
  int64_t span = 100;
  std::vector<std::vector<int32_t>> steps;  // lengths of the sequences
};

void TestRows(const RowsCase& c) {
  const std::string name = std::to_string(c.kv_heads) + " heads of " + std::to_string(c.head_dim) +
                           ", a span of " + std::to_string(c.span);
  const int64_t sequences = static_cast<int64_t>(c.steps[0].size()), dim = c.head_dim;
  int32_t longest = 0;
  for (const auto& lengths : c.steps) longest = std::max(longest, *std::ranges::max_element(lengths));
  // Pages as the cache lays them out, a head's K before its V, with another layer's bytes between.
  const int64_t width = (longest + kPage - 1) / kPage + 1, pages = sequences * width, lead = 24;
  const int64_t tile = kPage * dim, page_stride = 2 * tile * c.kv_heads + lead;
  std::mt19937 random(7);
  std::vector<int32_t> table(static_cast<size_t>(pages));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  std::shuffle(table.begin(), table.end(), random);
  std::vector<uint16_t> pool(static_cast<size_t>(pages * page_stride));
  for (uint16_t& x : pool) x = static_cast<uint16_t>(random() % kUnwritten);
  const int64_t row = c.kv_heads * dim, row_stride = (c.span + 3) * row;

  const DeviceArray<uint16_t> device_pool(pool);
  const DeviceArray<int32_t> device_table(table);
  DeviceArray<int32_t> lengths(c.steps[0]), counts(static_cast<size_t>(sequences));
  DeviceArray<uint16_t> keys(static_cast<size_t>(sequences * row_stride)), values(keys.size());
  WindowRowsCall call;
  call.sequences = sequences;
  call.kv_heads = c.kv_heads;
  call.head_dim = c.head_dim;
  call.span = c.span;
  call.lengths = lengths.data();
  call.page_keys = device_pool.data() + lead;
  call.page_values = call.page_keys + tile;
  call.page_stride = page_stride;
  call.head_stride = 2 * tile;
  call.block_table = device_table.data();
  call.table_stride = width;
  call.keys = keys.data();
  call.values = values.data();
  call.row_stride = row_stride;
  call.counts = counts.data();
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Require(cudaStreamCreate(&stream), "stream");
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  Require(LaunchWindowRows(call, true, stream), name.c_str());
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  Require(cudaGraphInstantiate(&executable, graph, 0), "graph");
  for (const std::vector<int32_t>& step : c.steps) {
    lengths.Upload(step);
    keys.Fill(0xff), values.Fill(0xff);
    Require(cudaGraphLaunch(executable, stream), "replay");
    Require(cudaStreamSynchronize(stream), name.c_str());
    std::vector<uint16_t> k(keys.size(), kUnwritten), v = k;
    std::vector<int32_t> written;
    for (int64_t b = 0; b < sequences; ++b) {
      const int64_t length = step[static_cast<size_t>(b)], first = std::max<int64_t>(length - c.span, 0);
      written.push_back(static_cast<int32_t>(length - first));
      for (int64_t t = first; t < length; ++t) {
        for (int h = 0; h < c.kv_heads; ++h) {
          const int64_t from = lead + table[static_cast<size_t>(b * width + t / kPage)] * page_stride +
                               h * 2 * tile + t % kPage * dim;
          const int64_t to = b * row_stride + (t - first) * row + h * dim;
          std::copy_n(pool.begin() + from, dim, k.begin() + to);
          std::copy_n(pool.begin() + from + tile, dim, v.begin() + to);
        }
      }
    }
    Check(keys.Download() == k, name + ": keys");
    Check(values.Download() == v, name + ": values");
    Check(counts.Download() == written, name + ": numbers of rows");
  }
  Require(cudaGraphExecDestroy(executable), "graph");
  Require(cudaGraphDestroy(graph), "graph");
  Require(cudaStreamDestroy(stream), "stream");
}

void TestErrors() {
  WindowRowsCall call;
  Check(LaunchWindowRows(call, false, nullptr).code() == ErrorCode::kInvalidArgument, "refuses nothing");
  call.sequences = call.kv_heads = 1, call.span = 5, call.head_dim = 12;
  Check(LaunchWindowRows(call, false, nullptr).code() == ErrorCode::kInvalidArgument, "refuses head dim 12");
}

void Run(const DeviceLimits&, bool quick) {
  TestErrors();
  TestRows({2, 64, 100, {{1, 100, 101}, {99, 300, 64}}});
  TestRows({1, 128, 16, {{17}, {16}, {3}}});
  if (quick) return;
  TestRows({8, 128, 4096, {{1, 4095, 4096, 4097}, {9000, 12345, 64, 5000}}});
  TestRows({4, 256, 1024, {{1500, 2, 1023}}});
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::Run); }
