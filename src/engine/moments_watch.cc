// See moments_watch.h.
#include "src/engine/moments_watch.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "src/engine/calibration.h"

namespace blockgtq {
namespace {

// Tokens between two measurements of drift: at least the first, at most the second.
constexpr int64_t kLeastStep = 256, kMostStep = 4096;

}  // namespace

MomentsWatch::MomentsWatch(const ModelConfig& config, const ModelFingerprint& model, const Plan* plan,
                           bool by_head, std::string file)
    : config_(config), model_(model), plan_(plan), by_head_(by_head), file_(std::move(file)) {
  const size_t heads = static_cast<size_t>(config.layers) * config.kv_heads;
  const std::vector<float> none(static_cast<size_t>(1 + kKeptVectors) * config.head_dim, 0.0f);
  statistics_.assign(heads, StatisticsAccumulator(config.head_dim));
  keys_.assign(heads, none);
  values_.assign(config.latent.rank > 0 ? 0 : heads, none);
  next_measured_ = kLeastStep;
}

Result<std::unique_ptr<MomentsWatch>> MomentsWatch::Open(const LoadedModel& model, const Plan* plan,
                                                         bool by_head, std::string file) {
  auto watch = std::unique_ptr<MomentsWatch>(
      new MomentsWatch(model.config(), model.fingerprint(), plan, by_head, std::move(file)));
  std::error_code ignored;
  if (!std::filesystem::exists(watch->file_, ignored)) return watch;
  BGTQ_ASSIGN_OR_RETURN(const ModelMoments moments, LoadMoments(watch->file_));
  BGTQ_RETURN_IF_ERROR(moments.model.ExpectEqual(model.fingerprint())
                           .WithContext(watch->file_ + ": moments of another model"));
  if (moments.heads.front().latent_dims != model.config().latent.rank)
    return Status(ErrorCode::kMismatch, watch->file_ + ": its latents are not the model's");
  watch->TakeUp(moments);
  return watch;
}

MomentsWatch::~MomentsWatch() {
  if (thread_.joinable()) thread_.join();
}

void MomentsWatch::TakeUp(const ModelMoments& moments) {
  const size_t dim = static_cast<size_t>(config_.head_dim);
  const int64_t vectors = static_cast<int64_t>(moments.heads.front().keys.size() / dim);
  kept_ = std::min(vectors - 1, kKeptVectors);
  has_first_ = true;
  seen_ = moments.seen;
  counted_ = static_cast<double>(moments.tokens());
  next_measured_ = seen_ + kLeastStep;
  next_first_ = seen_ + kTokensAFirst;
  for (size_t h = 0; h < moments.heads.size(); ++h) {
    const HeadCalibration& head = moments.heads[h];
    statistics_[h].Restore(head.statistics, config_.heads / config_.kv_heads);
    std::copy_n(head.keys.begin(), static_cast<size_t>(1 + kept_) * dim, keys_[h].begin());
    if (!values_.empty())
      std::copy_n(head.values.begin(), static_cast<size_t>(1 + kept_) * dim, values_[h].begin());
  }
  state_.seen = seen_;
}

bool MomentsWatch::BeginPass(std::span<const BatchSlice> slices) {
  rows_.clear();
  layer_ = -1;
  if (passes_++ % kPassesALook != 0) return false;
  const auto drawn = [&](int64_t below) {
    return static_cast<int64_t>(random_.Next() % static_cast<uint64_t>(below));
  };
  for (const BatchSlice& slice : slices) {
    for (int64_t i = 0; i < slice.count; ++i) {
      Row& row = rows_.emplace_back();
      if (slice.first_position + i == 0) {
        row = {seen_ >= next_first_, 0};
        has_first_ = true;
        if (!row.counts) continue;
        next_first_ = seen_ + kTokensAFirst;
        ++seen_;
        ++counted_;
        continue;
      }
      ++seen_;
      ++counted_;
      if (kept_ < kKeptVectors) {
        row.place = ++kept_;
      } else if (const int64_t place = drawn(std::llround(counted_)); place < kKeptVectors) {
        row.place = 1 + place;
      }
    }
  }
  return true;
}

void MomentsWatch::Keep(size_t head, int64_t place, const float* key, const float* value) {
  const size_t dim = static_cast<size_t>(config_.head_dim), at = static_cast<size_t>(place) * dim;
  std::copy_n(key, dim, &keys_[head][at]);
  if (!values_.empty()) std::copy_n(value, dim, &values_[head][at]);
}

void MomentsWatch::Observe(int layer, int64_t rows, const float* queries, const float* keys,
                           const float* values) {
  if (layer != layer_) next_row_ = 0;
  layer_ = layer;
  const int dim = config_.head_dim, kv_heads = config_.kv_heads, group = config_.heads / kv_heads;
  for (int64_t t = 0; t < rows && next_row_ < rows_.size(); ++t, ++next_row_) {
    const Row& row = rows_[next_row_];
    for (int h = 0; h < kv_heads; ++h) {
      const size_t head = static_cast<size_t>(layer) * kv_heads + h;
      const float* key = keys + (t * kv_heads + h) * dim;
      if (row.place >= 0) Keep(head, row.place, key, values + (t * kv_heads + h) * dim);
      if (!row.counts) continue;
      StatisticsAccumulator& of_head = statistics_[head];
      of_head.AddKey(key);
      for (int g = 0; g < group; ++g) of_head.AddQuery(queries + (t * config_.heads + h * group + g) * dim);
    }
  }
}

void MomentsWatch::EndPass() {
  if (rows_.empty()) return;
  rows_.clear();
  if (counted_ >= 2 * kWindowTokens) {
    counted_ /= 2;
    for (StatisticsAccumulator& of_head : statistics_) of_head.Discount(0.5);
  }
  {
    const std::lock_guard lock(mutex_);
    state_.seen = seen_;
    if (seen_ < next_measured_ || background_) return;
    background_ = true;
  }
  next_measured_ = seen_ + std::clamp(seen_ / 4, kLeastStep, kMostStep);
  if (thread_.joinable()) thread_.join();  // it has finished
  thread_ = std::thread([this, moments = Snapshot()] {
    Status done = Publish(moments);
    const std::lock_guard lock(mutex_);
    if (!done.ok()) failed_ = std::move(done);
    background_ = false;
  });
}

ModelMoments MomentsWatch::Snapshot() const {
  const size_t dim = static_cast<size_t>(config_.head_dim);
  const size_t begin = has_first_ ? 0 : dim, end = static_cast<size_t>(1 + kept_) * dim;
  const auto part = [&](const std::vector<float>& all) {
    return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(begin),
                              all.begin() + static_cast<std::ptrdiff_t>(end));
  };
  ModelMoments moments{model_, seen_, {}};
  for (size_t h = 0; h < statistics_.size(); ++h) {
    HeadCalibration& head = moments.heads.emplace_back();
    head.statistics = statistics_[h].Finish();
    head.statistics.tokens = std::llround(counted_);  // of every head, whatever a failed pass left out
    head.latent_dims = config_.latent.rank;
    head.keys = part(keys_[h]);
    if (!values_.empty()) head.values = part(values_[h]);
  }
  return moments;
}

Status MomentsWatch::Publish(const ModelMoments& moments) {
  if (plan_ != nullptr && moments.tokens() >= kMinCalibrationTokens) {
    BGTQ_ASSIGN_OR_RETURN(Drift drift, MeasureDrift(*plan_, moments, by_head_));
    const std::lock_guard lock(mutex_);
    state_.drift = std::move(drift);
  }
  return SaveMoments(moments, file_);
}

MomentsWatch::State MomentsWatch::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Status MomentsWatch::Save() {
  if (thread_.joinable()) thread_.join();
  if (!failed_.ok()) return failed_;
  if (seen_ == 0) return Status::Ok();
  return Publish(Snapshot());
}

}  // namespace blockgtq
