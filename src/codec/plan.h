// The plan: how every KV head of a model is coded. Made by an allocator (recipe.h), stored by
// formats/plan_file.h, read by the encoder, the cache and the attention kernels.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/core/rope.h"

namespace blockgtq {

inline constexpr int kPageTokens = 64;  // tokens a record
inline constexpr int kUnitDims = 16;    // dims a unit
inline constexpr int kMeanUnitBlocks = 8;

enum class NormType : uint8_t {
  kLog8,  // one byte a token a group, log_norm.h
  kHalf,  // two bytes: fp16
};

/// How an encoder rounds a group's unit vector to codes. The stored bytes mean the same either way.
enum class Rounding : uint8_t {
  kNearest,   // each coordinate to its nearest centroid (TQ-MSE as published)
  kSearched,  // the same at each scale of kSearchScales, keeping the codes of the smallest angle to the
              // vector
};
/// Scales of unit variance that kSearched tries, in this order; a later one wins only by a smaller angle. For
/// a given scale the nearest centroids are the best codes, so a fine enough grid finds the best codes of all.
/// Measured: squared error 10-22% lower at 3 bits, 20-31% at 4 (groups of 64..16 dims); a finer or wider grid
/// adds 1-3%.
inline constexpr std::array<float, 11> kSearchScales = {1.0f,  0.96f, 1.04f, 0.92f, 1.08f, 0.88f,
                                                        1.12f, 0.84f, 1.16f, 0.8f,  1.2f};

/// A group: consecutive units of the rotated key that share a width and a norm.
struct GroupPlan {
  int width = 0;       // stored width: 1, 2, 3, 4, 5 or 8
  int code_width = 0;  // codebook width; differs from `width` only for 6 and 7 (stored in 8)
  int first_unit = 0;
  int units = 0;
  int dims = 0;                 // true dims, <= 16 * units; the rest is padding that holds zero
  float norm_reference = 1.0f;  // kLog8 only
  bool operator==(const GroupPlan&) const = default;
};

/// One KV head of one layer. D = head_dim, P = 16 * key_units() >= D.
///
/// Key:    y = T (k_t - R_t mu), k_t post-RoPE in block order; R_t is RopeTable::Rotate, attention factor
///         included; y's dims are grouped as `groups`. Rows of T at padding dims are zero.
/// Query:  q~ = (T^-T) q, so q~ . y = q . (k_t - R_t mu).
/// Value:  w = T_v v (T_v orthogonal); the attention output is T_v' times the output in w space.
/// A group decodes to norm / sqrt(dims) * centroid(code): the rotated unit vector's codes, renormalised so
/// that the decoded sub-vector has exactly the stored norm ("norm correction": norm = |y_g| sqrt(dims) /
/// |centroids|, over the true dims). Padding dims have code 0, whatever that decodes to: no query and no
/// un-rotation reads them.
///
/// A head of latents (latent_dims > 0, MLA) has no value of its own: its value is the decoded key's last
/// latent_dims, so the record holds keys alone, and `value` and value_transform are empty.
struct HeadPlan {
  int head_dim = 0;
  int latent_dims = 0;                 // > 0: the last latent_dims of the key are the value
  std::vector<GroupPlan> groups;       // by descending width
  std::vector<float> key_transform;    // T     [P, D]
  std::vector<float> query_transform;  // T^-T  [P, D]
  std::vector<int> mean_units;         // ascending; unit u = frequency blocks [8u, 8u + 8)
  std::vector<float> key_mean;  // mu    [D] pre-RoPE, block order; zero outside mean_units; empty: no mean
  GroupPlan value;              // one group over all of D; 0 units for latents
  std::vector<float> value_transform;  // T_v   [P_v, D]
  NormType norm_type = NormType::kLog8;
  Rounding rounding = Rounding::kNearest;
  std::vector<float> score;  // the allocator's block scores [D / 2], for inspect

  int key_units() const;
  int value_units() const { return value.units; }
};

/// CalibrationInfo::corpus_hash of a plan that was made of running moments.
inline constexpr char kMomentsSource[] = "moments";

/// What was measured to make a plan.
struct CalibrationInfo {
  std::string corpus_hash;  // xxh3-64 of the text, hex; or kMomentsSource
  int64_t tokens = 0;
  double seconds = 0;
};

/// What a plan must agree with before it is used. Compared field by field; a mismatch names the field.
struct ModelFingerprint {
  std::string architecture;
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double rope_freq_base = 0;
  int rotary_dims = 0;
  std::string rope_pairing;       // "norm" or "neox": in GGUF files
  std::string rope_scaling_hash;  // xxh3-64 of divisors (rounded), scales and the layers' windows, hex
  std::string key_weights_hash;   // xxh3-64 of every layer's k-projection (models/fingerprint.cc), hex
  /// Every field in one line: what identifies the model of an uncompressed session.
  std::string Text() const;
  /// Ok, or kMismatch naming the first field that differs and both values.
  Status ExpectEqual(const ModelFingerprint& model) const;
};

struct Plan {
  static constexpr int kFormatVersion = 2;          // the newest that is read
  static constexpr int kVersionWithoutLatents = 1;  // of plans without latent_dims
  bool has_latents() const { return !heads.empty() && heads.front().latent_dims > 0; }
  std::string recipe;  // a name of the recipe registry
  double k_bits = 0, v_bits = 0;
  uint64_t seed = 0;  // of the rotations
  ModelFingerprint model;
  CalibrationInfo calibration;
  std::vector<HeadPlan> heads;  // [layers * kv_heads], head h of layer l at l * kv_heads + h

  const HeadPlan& head(int layer, int kv_head) const {
    return heads[static_cast<size_t>(layer) * model.kv_heads + kv_head];
  }
  /// Mean stored bytes a token a head, K + V, norms and padding included, record rounding too.
  double bytes_per_token_per_head() const;
  /// xxh3-64 over everything that decides the stored bytes' meaning, hex. Sessions carry it.
  std::string Hash() const;
  /// Checks sizes, ranges and ordering of every field (a plan read from disk is not trusted).
  Status Validate() const;
};

}  // namespace blockgtq
