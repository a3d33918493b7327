// Decode attention that rotates and stores the newest token itself (FusedRope), on the GPU: its output
// against double precision, and what it stores against the kernel that does nothing else.
//
//   decode_fused_test [quick | every N]     as decode_attention_test
//
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/decode_fixture.h"

namespace blockgtq::cuda {
namespace {

// The kernel rotates and stores the newest token: in the first and the last slot of a window tile, within the
// sinks, without any, as a sequence's only token, in the page whose first tokens are coded.
std::vector<Case> FusedCases(bool quick) {
  std::vector<Case> cases;
  RopeConfig partial = {128, 96, RopePairing::kNeox, 1e6};
  partial.attention_factor = 1.25f;
  const auto add = [&](const std::string& name, const RopeConfig& rope, int query_heads, bool mean,
                       std::vector<int64_t> coded, std::vector<int64_t> recent) -> Case& {
    const int dim = rope.head_dim;
    const Groups groups = dim == 64 ? Groups{{4, 32}, {3, 16}, {2, 16}} : dim == 128 ? k8432 : k256;
    Case c{"fused: " + name + " D" + std::to_string(dim) + " G" + std::to_string(query_heads),
           dim,
           query_heads,
           {Head(dim, groups, 3, mean ? std::vector<int>{0} : std::vector<int>{}), Head(dim, groups)},
           std::move(coded),
           4,
           std::move(recent)};
    c.rope = rope;
    c.fused = true;
    cases.push_back(c);
    return cases.back();
  };
  const auto force = [](Case& c, int warps, bool split, int blocks, int workers) {
    c.warps = warps, c.split_tiles = split, c.stages = 2, c.cluster_blocks = blocks, c.workers = workers;
  };
  const RopeConfig norm64 = {64, 64, RopePairing::kNorm}, neox128 = {128, 128, RopePairing::kNeox, 1e6},
                   neox256 = {256, 256, RopePairing::kNeox};
  // In so little shared memory 9 query heads run as 4 parts of 3: the last has none.
  const auto add_part_without_heads = [&](const RopeConfig& rope, int shared_bytes, int sinks,
                                          std::vector<int64_t> coded, std::vector<int64_t> recent) {
    Case& c = add("a part without heads, " + std::to_string(sinks) + " sinks", rope, 9, true,
                  std::move(coded), std::move(recent));
    c.sinks = sinks, c.shared_bytes = shared_bytes, c.head_parts = 4;
  };
  if (quick) {
    add("first and last slot, sinks", neox128, 4, false, {64, 64, 0, 0}, {65, 64, 3, 1});
    force(add("mean, window", partial, 8, true, {200, 65}, {30, 3}), 8, true, 4, 2);
    cases.back().window = 60;
    add("ragged", norm64, 3, false, {130, 0}, {10, 64});
    force(add("a worker of many segments", neox256, 9, false, {65, 0}, {70, 1}), 8, false, 1, 3);
    add("no sinks", norm64, 4, true, {0, 130, 0}, {1, 10, 64}).sinks = 0;
    add("in the page of the last codes", neox128, 5, false, {1, 100, 190}, {1, 3, 2});
    add_part_without_heads(norm64, 52 << 10, 4, {130, 0}, {10, 64});
    return cases;
  }
  for (const auto& [rope, shared_bytes] : {std::pair{norm64, 52 << 10}, std::pair{neox128, 70 << 10},
                                           std::pair{partial, 70 << 10}, std::pair{neox256, 99 << 10}}) {
    for (const int sinks : {0, 4}) {
      add_part_without_heads(rope, shared_bytes, sinks, {300, 64, 0}, {20, 65, 1});
    }
    for (const int query_heads : {1, 4, 8, 11}) {
      const bool mean = query_heads % 4 == 0;
      add(mean ? "no sinks, mean" : "no sinks", rope, query_heads, mean, {64, 128, 0, 0}, {65, 128, 3, 1})
          .sinks = 0;
      add(mean ? "in the page of the last codes, mean" : "in the page of the last codes", rope, query_heads,
          mean, {1, 100, 190, 321}, {1, 3, 2, 63});
      add("in the page of the last codes, no sinks, window of 70", rope, query_heads, mean, {1, 100, 190},
          {1, 3, 2})
          .window = 70;
      cases.back().sinks = 0;
    }
  }
  const std::vector<int64_t> windows = {0, 1, 100};
  for (const RopeConfig& rope : {norm64, neox128, partial, neox256}) {
    for (const int query_heads : {1, 4, 7, 8, 16}) {
      const bool mean = query_heads % 4 == 0;
      for (const int64_t window : windows) {
        const std::string name = "window of " + std::to_string(window) + (mean ? ", mean" : "");
        add(name, rope, query_heads, mean, {64, 128, 0, 0}, {65, 128, 3, 1}).window = window;
      }
    }
  }
  for (const int query_heads : {3, 8, 12}) {
    for (const bool mean : {false, true}) {
      for (const int blocks : {1, 2, 4, 8, 16}) {
        for (const bool split : {false, true}) {
          const std::string name = std::string(split ? "split" : "whole") + (mean ? " mean" : "") +
                                   ", clusters of " + std::to_string(blocks);
          force(add(name, neox128, query_heads, mean, {600, 0, 64}, {30, 2, 65}), 8, split, blocks, 1);
          force(add(name, partial, query_heads, mean, {600, 0, 64}, {30, 2, 65}), 8, split, blocks, 8);
        }
      }
      add("99 KB", norm64, query_heads, mean, {300, 64}, {20, 65}).shared_bytes = 99 << 10;
    }
  }
  return cases;
}

// A token that the cache cannot hold, or a query: the error word names its position, as RoPE on its own does.
void TestFusedErrors(const DeviceLimits& limits) {
  Case c{"fused: bad values", 64, 3, {Head(64, {{4, 32}, {2, 32}}), Head(64, {{4, 32}, {2, 32}})}, {64, 64}};
  c.sinks = 4, c.recent = {20, 10}, c.fused = true;
  struct Bad {
    std::vector<float>& (NewTokens::*rows)();
    size_t row, row_size;
    float value;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Bad& bad : {Bad{&NewTokens::q, 0, 6 * 64, 1e6f}, Bad{&NewTokens::q, 1, 6 * 64, nan},
                         Bad{&NewTokens::k, 0, 2 * 64, nan}, Bad{&NewTokens::k, 1, 2 * 64, 40000.0f},
                         Bad{&NewTokens::v, 0, 2 * 64, -33000.0f}}) {
    Fixture fixture(c, limits);
    NewTokens& tokens = fixture.new_tokens();
    (tokens.*bad.rows)()[(bad.row + 1) * bad.row_size - 1] = bad.value;
    tokens.Upload();
    (void)fixture.Run();
    const int32_t position = static_cast<int32_t>(c.coded[bad.row] + c.recent[bad.row]) - 1,
                  error = tokens.TakeError();
    Check(error == position,
          "a bad value at position " + std::to_string(position) + " is found: " + std::to_string(error));
  }
}

void Run(Cases& cases, const DeviceLimits& limits, bool quick, size_t every) {
  cases.RunSome(FusedCases(true), 1, true);
  TestFusedErrors(limits);
  if (!quick) cases.RunSome(FusedCases(false), every, true);
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunDecodeTests(argc, argv, blockgtq::cuda::Run); }
