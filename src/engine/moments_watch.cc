// See moments_watch.h.
#include "src/engine/moments_watch.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "src/engine/calibration.h"
#include "src/formats/atomic_file.h"

namespace blockgtq {
namespace {

// Tokens between two measurements of drift: at least the first, at most the second.
constexpr int64_t kLeastStep = 256, kMostStep = 4096;

bool AllFinite(const std::vector<std::vector<float>>& of_heads) {
  return std::all_of(of_heads.begin(), of_heads.end(), [](const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  });
}

bool AllFinite(const std::vector<StatisticsAccumulator>& of_heads) {
  return std::all_of(of_heads.begin(), of_heads.end(), [](const StatisticsAccumulator& of_head) {
    const HeadStatistics s = of_head.Finish();
    const auto finite = [](const std::vector<double>& values) {
      return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
    };
    return finite(s.query_energy) && finite(s.centred_key_energy) && finite(s.key_mean);
  });
}

uint64_t SeedOfThisRun() {
  return MixBits(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()));
}

}  // namespace

MomentsWatch::MomentsWatch(const ModelConfig& config, const ModelFingerprint& model, MomentsOptions options)
    : config_(config),
      model_(model),
      options_(std::move(options)),
      random_(options_.seed.value_or(SeedOfThisRun())) {
  const size_t heads = static_cast<size_t>(config.layers) * config.kv_heads;
  const std::vector<float> none(static_cast<size_t>(1 + kKeptVectors) * config.head_dim, 0.0f);
  statistics_.assign(heads, StatisticsAccumulator(config.head_dim));
  keys_.assign(heads, none);
  values_.assign(config.latent.rank > 0 ? 0 : heads, none);
  next_measured_ = kLeastStep;
}

Result<std::unique_ptr<MomentsWatch>> MomentsWatch::Open(const LoadedModel& model, MomentsOptions options) {
  auto watch = std::unique_ptr<MomentsWatch>(
      new MomentsWatch(model.config(), model.fingerprint(), std::move(options)));
  const std::string& file = watch->options_.file;
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    BGTQ_ASSIGN_OR_RETURN(const ModelMoments moments, LoadMoments(file));
    BGTQ_RETURN_IF_ERROR(
        moments.model.ExpectEqual(model.fingerprint()).WithContext(file + ": moments of another model"));
    if (moments.heads.front().latent_dims != model.config().latent.rank)
      return Status(ErrorCode::kMismatch, file + ": its latents are not the model's");
    BGTQ_RETURN_IF_ERROR(watch->TakeUp(moments));
  }
  // What cannot be written is told now, not when tokens have been looked at.
  BGTQ_RETURN_IF_ERROR(AtomicFile::Create(file).status());
  return watch;
}

MomentsWatch::~MomentsWatch() {
  if (thread_.joinable()) thread_.join();
}

Status MomentsWatch::TakeUp(const ModelMoments& moments) {
  const size_t dim = static_cast<size_t>(config_.head_dim);
  const int64_t vectors = static_cast<int64_t>(moments.heads.front().keys.size() / dim);
  counts_.kept = std::min(vectors - 1, kKeptVectors);
  counts_.has_first = true;
  counts_.seen = moments.seen;
  counts_.counted = static_cast<double>(moments.tokens());
  counts_.next_first = moments.seen + kTokensAFirst;
  next_measured_ = moments.seen + kLeastStep;
  for (size_t h = 0; h < moments.heads.size(); ++h) {
    const HeadCalibration& head = moments.heads[h];
    statistics_[h].Restore(head.statistics, config_.heads / config_.kv_heads);
    std::copy_n(head.keys.begin(), static_cast<size_t>(1 + counts_.kept) * dim, keys_[h].begin());
    if (!values_.empty())
      std::copy_n(head.values.begin(), static_cast<size_t>(1 + counts_.kept) * dim, values_[h].begin());
  }
  if (!AllFinite(statistics_))
    return {ErrorCode::kCorruptFile, options_.file + ": its energies are too large to be added to"};
  state_.seen = moments.seen;
  return Status::Ok();
}

bool MomentsWatch::BeginPass(std::span<const BatchSlice> slices) {
  pass_.rows.clear();
  if (counts_.counted >= kFirstTokens && random_.Next() % kPassesALook != 0) return false;
  pass_.counts = counts_;
  pass_.statistics = statistics_;
  pass_.places.clear();
  pass_.layer = -1;
  pass_.observed = 0;
  for (const BatchSlice& slice : slices)
    for (int64_t i = 0; i < slice.count; ++i) pass_.rows.push_back(Place(slice.first_position + i));
  const size_t floats = pass_.places.size() * static_cast<size_t>(config_.head_dim);
  pass_.keys.assign(keys_.size(), std::vector<float>(floats, 0.0f));
  pass_.values.assign(values_.size(), std::vector<float>(floats, 0.0f));
  return true;
}

MomentsWatch::Row MomentsWatch::Place(int64_t position) {
  Counts& counts = pass_.counts;
  const auto slot = [&](int64_t place) {
    const auto found = std::find(pass_.places.begin(), pass_.places.end(), place);
    const int64_t at = found - pass_.places.begin();
    if (found == pass_.places.end()) pass_.places.push_back(place);
    return at;
  };
  const bool first = position == 0;
  const bool counted = !first || counts.seen >= counts.next_first;
  counts.has_first |= first;
  if (counted) {
    ++counts.seen;
    ++counts.counted;
  }
  if (first) {
    if (counted) counts.next_first = counts.seen - 1 + kTokensAFirst;
    return {counted, slot(0)};
  }
  if (counts.kept < kKeptVectors) return {true, slot(++counts.kept)};
  const int64_t place =
      static_cast<int64_t>(random_.Next() % static_cast<uint64_t>(std::llround(counts.counted)));
  return {true, place < kKeptVectors ? slot(1 + place) : -1};
}

void MomentsWatch::Observe(int layer, int64_t rows, const float* queries, const float* keys,
                           const float* values) {
  if (layer != pass_.layer) pass_.next_row = 0;
  pass_.layer = layer;
  const int dim = config_.head_dim, kv_heads = config_.kv_heads, group = config_.heads / kv_heads;
  for (int64_t t = 0; t < rows && pass_.next_row < pass_.rows.size(); ++t, ++pass_.next_row) {
    const Row& row = pass_.rows[pass_.next_row];
    ++pass_.observed;
    for (int h = 0; h < kv_heads; ++h) {
      const size_t head = static_cast<size_t>(layer) * kv_heads + h;
      const int64_t of_row = (t * kv_heads + h) * dim;
      if (row.slot >= 0) {
        std::copy_n(keys + of_row, dim, &pass_.keys[head][static_cast<size_t>(row.slot * dim)]);
        if (!values_.empty())
          std::copy_n(values + of_row, dim, &pass_.values[head][static_cast<size_t>(row.slot * dim)]);
      }
      if (!row.counts) continue;
      StatisticsAccumulator& of_head = pass_.statistics[head];
      of_head.AddKey(keys + of_row);
      for (int g = 0; g < group; ++g) of_head.AddQuery(queries + (t * config_.heads + h * group + g) * dim);
    }
  }
}

bool MomentsWatch::PassIsWhole() const {
  return pass_.observed == pass_.rows.size() * static_cast<size_t>(config_.layers) &&
         AllFinite(pass_.statistics) && AllFinite(pass_.keys) && AllFinite(pass_.values);
}

void MomentsWatch::Commit() {
  counts_ = pass_.counts;
  statistics_.swap(pass_.statistics);
  const int64_t dim = config_.head_dim;
  const auto take = [&](const std::vector<std::vector<float>>& from, std::vector<std::vector<float>>& to) {
    for (size_t head = 0; head < to.size(); ++head)
      for (size_t slot = 0; slot < pass_.places.size(); ++slot)
        std::copy_n(from[head].begin() + static_cast<int64_t>(slot) * dim, dim,
                    to[head].begin() + pass_.places[slot] * dim);
  };
  take(pass_.keys, keys_);
  take(pass_.values, values_);
  if (counts_.counted < 2 * kWindowTokens) return;
  counts_.counted /= 2;
  for (StatisticsAccumulator& of_head : statistics_) of_head.Discount(0.5);
}

void MomentsWatch::EndPass() {
  if (pass_.rows.empty()) return;
  const bool whole = PassIsWhole();
  if (whole) Commit();
  pass_.rows.clear();
  if (!whole) return;
  {
    const std::lock_guard lock(mutex_);
    state_.seen = counts_.seen;
    if (counts_.seen < next_measured_ || background_) return;
    background_ = true;
  }
  next_measured_ = counts_.seen + std::clamp(counts_.seen / 4, kLeastStep, kMostStep);
  if (thread_.joinable()) thread_.join();  // it has finished
  thread_ = std::thread([this, moments = Snapshot()] {
    const Status done = Publish(moments);
    const bool is_news = !done.ok() && !failing_;
    failing_ = !done.ok();
    if (is_news && options_.on_failure) options_.on_failure(done);
    const std::lock_guard lock(mutex_);
    state_.failures += failing_ ? 1 : 0;
    background_ = false;
  });
}

ModelMoments MomentsWatch::Snapshot() const {
  const size_t dim = static_cast<size_t>(config_.head_dim);
  const size_t begin = counts_.has_first ? 0 : dim, end = static_cast<size_t>(1 + counts_.kept) * dim;
  const auto part = [&](const std::vector<float>& all) {
    return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(begin),
                              all.begin() + static_cast<std::ptrdiff_t>(end));
  };
  ModelMoments moments{model_, counts_.seen, {}};
  for (size_t h = 0; h < statistics_.size(); ++h) {
    HeadCalibration& head = moments.heads.emplace_back();
    head.statistics = statistics_[h].Finish();
    head.statistics.tokens = std::llround(counts_.counted);
    head.latent_dims = config_.latent.rank;
    head.keys = part(keys_[h]);
    if (!values_.empty()) head.values = part(values_[h]);
  }
  return moments;
}

Status MomentsWatch::Publish(const ModelMoments& moments) {
  BGTQ_RETURN_IF_ERROR(SaveMoments(moments, options_.file));
  if (options_.plan == nullptr || moments.tokens() < kMinCalibrationTokens) return Status::Ok();
  Result<Drift> drift = MeasureDrift(*options_.plan, moments, options_.by_head);
  if (!drift.ok()) return drift.status().WithContext("drift of the plan");
  const std::lock_guard lock(mutex_);
  state_.drift = std::move(drift).value();
  return Status::Ok();
}

MomentsWatch::State MomentsWatch::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Status MomentsWatch::Save() {
  if (thread_.joinable()) thread_.join();
  return counts_.seen == 0 ? Status::Ok() : Publish(Snapshot());
}

}  // namespace blockgtq
