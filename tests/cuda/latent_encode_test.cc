// The encoder of latents on the GPU against the reference encoder: codes and norms by width, tokens that are
// not encoded, token by token against a whole page, tokens that are not finite, job counts that a graph
// reads.
//
//   latent_encode_test [quick]    quick: small cases, for compute-sanitizer and the emulator
//
#include "src/cuda/latent_encode.h"

#include <algorithm>
#include <cstdio>

#include "tests/cuda/code_compare.h"
#include "tests/cuda/harness.h"
#include "tests/cuda/latent_case.h"

namespace blockgtq::cuda {
namespace {

constexpr int kPage = 64;

/// What jobs leave of a pool, from rows or from windows, of one layer.
struct Run {
  const DeviceLatents& latents;
  int64_t block_bytes, record_offset = 0;
  DeviceArray<uint8_t> pool;
  DeviceArray<int32_t> error{std::vector<int32_t>{INT32_MAX}};

  Run(const DeviceLatents& constants, const std::vector<uint8_t>& before, int64_t bytes, int64_t offset)
      : latents(constants), block_bytes(bytes), record_offset(offset), pool(before) {}

  LatentEncodeParams Params(const DeviceArray<LatentCodec>& codec) const {
    LatentEncodeParams p;
    p.layers = codec.data();
    p.layer_count = static_cast<int32_t>(codec.size());
    p.most_groups = static_cast<int32_t>(latents.table.groups.size()) + 1;
    p.most_group_units = latents.group_units;
    p.most_units = static_cast<int32_t>(latents.table.units.size()) + 1;
    p.has_mean = latents.table.has_mean;
    p.head_dim = latents.table.head_dim;
    p.rotary_dims = latents.rope.rotary_dims;
    p.attention_factor = latents.rope.attention_factor;
    p.steps = latents.steps.data();
    p.pool = pool.data();
    p.block_bytes = block_bytes;
    p.error = error.data();
    return p;
  }
  std::vector<uint8_t> FromRows(const std::vector<uint16_t>& rows, int64_t first_row,
                                const std::vector<EncodeJob>& jobs) {
    const DeviceArray<LatentCodec> codec(std::vector<LatentCodec>{latents.Codec(record_offset, 0)});
    const DeviceArray<uint16_t> keys(rows);
    const DeviceArray<EncodeJob> device_jobs(jobs);
    const DeviceArray<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(jobs.size())});
    LatentEncodeParams p = Params(codec);
    p.jobs = device_jobs.data();
    p.job_count = count.data();
    p.max_jobs = static_cast<int32_t>(jobs.size()) + 1;
    p.keys = keys.data();
    p.first_row = first_row;
    const DeviceArray<uint8_t> scratch(static_cast<size_t>(LatentCoordinateBytes(p)));
    p.coordinates = reinterpret_cast<float*>(scratch.data());
    Require(LaunchLatentEncode(p, nullptr), "launch");
    Require(cudaDeviceSynchronize(), "encode");
    return pool.Download();
  }
};

void Encode(const HeadPlan& plan, const RopeTable& rope, std::span<const uint16_t> keys, int64_t position,
            std::span<uint8_t> record) {
  Require(reference::EncodeKeys(plan, RecordLayout::For(plan), rope, Widened(keys), position,
                                std::as_writable_bytes(record)),
          "reference");
}

/// Tokens at slots [begin, end) of a page at `position`.
void CompareTokens(const HeadPlan& plan, const RopeTable& rope, int64_t position, int begin, int end,
                   std::span<const uint16_t> keys, const uint8_t* record, const uint8_t* expected,
                   ByWidth& by) {
  const RecordLayout layout = RecordLayout::For(plan);
  const size_t dim = static_cast<size_t>(plan.head_dim);
  std::vector<float> mean(dim, 0.0f);
  for (int slot = begin; slot < end; ++slot) {
    if (!plan.key_mean.empty()) rope.Rotate(plan.key_mean.data(), position + slot, mean.data());
    std::vector<double> key(dim);
    for (size_t d = 0; d < dim; ++d) key[d] = double{HalfToFloat(keys[(slot - begin) * dim + d])} - mean[d];
    const std::vector<double> y = Product(plan.key_transform, key);
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const GroupPlan& group = plan.groups[g];
      Compare(group, &layout.key_unit[static_cast<size_t>(group.first_unit)], layout.key_norm[g], KeyPlace,
              slot, &y[static_cast<size_t>(kUnitDims * group.first_unit)],
              reinterpret_cast<const std::byte*>(record), reinterpret_cast<const std::byte*>(expected),
              by[{false, group.width}]);
    }
  }
}

void CheckByWidth(const std::string& name, const ByWidth& by) {
  for (const auto& [key, c] : by) {
    const double same = double(c.same_codes) / double(c.codes), error = c.error / c.reference_error;
    char figures[120];
    std::snprintf(figures, sizeof figures, " width %d: error x%.4f, codes %.3f%%, norms within %d",
                  key.second, error, 100 * same, static_cast<int>(c.norm_steps));
    std::printf("%s%s\n", name.c_str(), figures);
    Check(error < 1.01 && same > 0.995 && c.norm_steps <= 1, name + figures);
  }
}

/// Part of a page over a record that holds other tokens: their bits stay; then token by token, and from a
/// window.
void TestPage(const std::string& name, const LatentSpec& spec, Rounding rounding, int begin, int end) {
  HeadPlan plan = MakeLatentPlan(spec, 11);
  plan.rounding = rounding;
  const RopeConfig config = LatentRope(spec, 1.1f);
  const RopeTable rope(config);
  const DeviceLatents latents(plan, config);
  const int64_t position = int64_t{64} * 321, offset = 64, bytes = latents.table.record_bytes + 128,
                dim = plan.head_dim;
  std::vector<uint8_t> before(static_cast<size_t>(3 * bytes), 0);
  const auto record_of = [&](std::vector<uint8_t>& pool) {
    return std::span(pool).subspan(static_cast<size_t>(bytes + offset),
                                   static_cast<size_t>(latents.table.record_bytes));
  };
  Encode(plan, rope, LatentKeys(plan, rope, position, kPage, 5), position, record_of(before));
  const std::vector<uint16_t> keys = LatentKeys(plan, rope, position + begin, end - begin, 6);
  std::vector<uint8_t> expected = before;
  Encode(plan, rope, keys, position + begin, record_of(expected));
  std::vector<uint16_t> rows(static_cast<size_t>(3 * dim), 0x7e00);
  rows.insert(rows.end(), keys.begin(), keys.end());
  EncodeJob job;
  job.first_row = 103;
  job.position = position;
  job.block[0] = 1;
  job.begin = begin;
  job.end = end;
  Run run(latents, before, bytes, offset);
  std::vector<uint8_t> got = run.FromRows(rows, 100, {job});
  ByWidth by;
  CompareTokens(plan, rope, position, begin, end, keys, record_of(got).data(), record_of(expected).data(),
                by);
  CheckByWidth(name, by);
  Check(run.error.Download()[0] == INT32_MAX, name + ": no error");

  // With the encoded tokens' bits as they were, everything must be as it was.
  std::vector<uint8_t> restored = got;
  const RecordLayout layout = RecordLayout::For(plan);
  auto* to = reinterpret_cast<std::byte*>(record_of(restored).data());
  const auto* from = reinterpret_cast<const std::byte*>(record_of(before).data());
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const GroupPlan& group = plan.groups[g];
    for (int t = begin; t < end; ++t) {
      for (int i = 0; i < kUnitDims * group.units; ++i) {
        const int unit = layout.key_unit[static_cast<size_t>(group.first_unit + i / kUnitDims)];
        const UnitPlace at = KeyPlace(t, i % kUnitDims);
        SetCode(to + unit, group.width, at, GetCode(from + unit, group.width, at));
      }
      to[layout.key_norm[g] + NormSlot(t)] = from[layout.key_norm[g] + NormSlot(t)];
    }
  }
  Check(restored == before, name + ": bits of other tokens stay");

  Run stepwise(latents, before, bytes, offset);
  std::vector<uint8_t> last;
  for (int t = begin; t < end; ++t) {
    EncodeJob one = job;
    one.begin = t;
    one.end = t + 1;
    one.first_row = 103 + t - begin;
    last = stepwise.FromRows(rows, 100, {one});
  }
  Check(last == got, name + ": token by token gives the same bits");

  // Two layers from windows of three tiles, the second layer as above.
  const int64_t tile = 64 * dim, window = 2 * 3 * tile;
  std::vector<uint16_t> exact(static_cast<size_t>(2 * 3 * tile + 64), 0x7e00);
  const auto put = [&](int64_t first) {
    std::copy(keys.begin(), keys.end(), exact.begin() + first + (position / 64 % 3 * 64 + begin) * dim);
  };
  put(0);
  put(window / 2);
  const DeviceArray<uint16_t> device_exact(exact);
  const DeviceArray<LatentCodec> codec(
      std::vector<LatentCodec>{latents.Codec(offset - bytes, 0), latents.Codec(offset, window)});
  job.exact = reinterpret_cast<const uint8_t*>(device_exact.data());
  const DeviceArray<EncodeJob> jobs(std::vector<EncodeJob>{job});
  Run windows(latents, before, bytes, offset);
  DeviceArray<int32_t> count(std::vector<int32_t>{0});
  LatentEncodeParams p = windows.Params(codec);
  p.jobs = jobs.data();
  p.job_count = count.data();
  p.max_jobs = 1;
  p.window_tiles = 3;
  const DeviceArray<uint8_t> scratch(static_cast<size_t>(LatentCoordinateBytes(p)));
  p.coordinates = reinterpret_cast<float*>(scratch.data());
  Require(LaunchLatentEncode(p, nullptr), "launch");
  Require(cudaDeviceSynchronize(), "encode");
  Check(windows.pool.Download() == before, name + ": a count of 0 does nothing");
  count.Upload({1});
  Require(LaunchLatentEncode(p, nullptr), "launch");
  Require(cudaDeviceSynchronize(), "encode");
  const std::vector<uint8_t> of_windows = windows.pool.Download();
  Check(std::equal(of_windows.begin() + bytes, of_windows.end(), got.begin() + bytes),
        name + ": a window's tokens give the rows' bits");
  Check(!std::equal(of_windows.begin(), of_windows.begin() + bytes, got.begin()),
        name + ": the other layer is written");
}

/// Keys that are NaN and infinite: their bits stay, the smaller position is reported.
void TestNotFinite() {
  const LatentSpec spec = LatentSpecs(16, 64)[0];
  const HeadPlan plan = MakeLatentPlan(spec, 3);
  const RopeConfig config = LatentRope(spec);
  const RopeTable rope(config);
  const DeviceLatents latents(plan, config);
  std::vector<uint16_t> keys = LatentKeys(plan, rope, 640, kPage, 4);
  EncodeJob job;
  job.position = 640;
  job.end = kPage;
  const std::vector<uint8_t> zero(static_cast<size_t>(latents.table.record_bytes), 0);
  Run clean(latents, zero, latents.table.record_bytes, 0), run(latents, zero, latents.table.record_bytes, 0);
  std::vector<uint8_t> expected = clean.FromRows(keys, 0, {job});
  keys[40 * plan.head_dim + 17] = 0x7e00;
  keys[21 * plan.head_dim + 3] = 0xfc00;
  const std::vector<uint8_t> got = run.FromRows(keys, 0, {job});
  Check(run.error.Download()[0] == 640 + 21, "not finite: the smallest position");
  const RecordLayout layout = RecordLayout::For(plan);
  for (int t : {21, 40}) {  // as if these had never been encoded
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      for (int i = 0; i < kUnitDims * plan.groups[g].units; ++i) {
        SetCode(reinterpret_cast<std::byte*>(expected.data()) +
                    layout.key_unit[static_cast<size_t>(plan.groups[g].first_unit + i / kUnitDims)],
                plan.groups[g].width, KeyPlace(t, i % kUnitDims), 0);
      }
      expected[static_cast<size_t>(layout.key_norm[g] + NormSlot(t))] = 0;
    }
  }
  Check(got == expected, "not finite: its bits stay, others are as without it");
}

void TestRefusals() {
  const auto refuses = [](const LatentSpec& spec, NormType norms, const std::string& word) {
    HeadPlan plan = MakeLatentPlan(spec, 1);
    plan.norm_type = norms;
    const Status status = BuildLatentTable(plan, "layer 7").status();
    Check(status.code() == ErrorCode::kUnsupported && status.message().starts_with("layer 7") &&
              status.message().find(word) != std::string::npos,
          "refuses " + word + ": " + status.message());
  };
  refuses({16, 32, {{3, 16}}, {{3, 32}}}, NormType::kHalf, "fp16 norms");
  refuses({16, 32, {}, {{6, 48}}}, NormType::kLog8, "6 or 7 bits");
  refuses({16, 32, {{3, 16}}, {{3, 32}}, {0}, {}, 1e9f}, NormType::kLog8, "mean of the rope key");
}

void RunAll(const DeviceLimits&, bool quick) {
  TestRefusals();
  TestNotFinite();
  for (const LatentSpec& spec : LatentSpecs(16, 64)) {
    const std::string name = "16 + 64, " + std::to_string(spec.latent.front().first) + " bits";
    TestPage(name + " slots 9..26", spec, Rounding::kSearched, 9, 26);
  }
  TestPage("nearest 16 + 32 slots 63..64", LatentSpecs(16, 32)[2], Rounding::kNearest, 63, 64);
  if (quick) return;
  for (const LatentSpec& spec : LatentSpecs(64, 512)) {
    const std::string name = "64 + 512, " + std::to_string(spec.latent.front().first) + " bits";
    TestPage(name + " whole page", spec, Rounding::kSearched, 0, 64);
  }
  TestPage("64 + 512 nearest", LatentSpecs(64, 512)[0], Rounding::kNearest, 47, 64);
  // Keys of a page that do not fit in shared memory.
  TestPage("64 + 960 slots 3..30", {64, 960, {{4, 64}}, {{3, 480}, {2, 480}}, {0}, {}}, Rounding::kSearched,
           3, 30);
  TestPage("64 + 448 slots 16..17", LatentSpecs(64, 448)[1], Rounding::kSearched, 16, 17);
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::RunAll); }
