// The key storages that `diagnose` compares: a recipe at a budget, as a simulation of what its codes read as.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/codec/recipe.h"
#include "src/engine/loaded_model.h"

namespace blockgtq {

/// A recipe at a budget, for every KV head.
struct KeyStorage {
  std::string recipe;
  double k_bits = 0;       // code bits a dim
  double k_bytes = 0;      // stored bytes of a key a token a head, mean: norms, scales and padding included
  bool simulated = false;  // no packed kernel
  SimulatedHeads heads;
  int latent_dims = 0;                         // the last of a key's dims that are a latent
  std::vector<std::vector<int>> block_widths;  // [layers * kv_heads][head_dim / 2]; empty without a plan
  std::vector<double> predicted_square;        // [layers * kv_heads], PredictedLogitError under calibration's
                                               // statistics; empty without a plan

  /// "aligned K3".
  std::string Name() const;
  /// Share of blocks at each width 1..8 of a layer (index 0: 1 bit): the allocation's fingerprint. Zeros
  /// without a plan. Of latents' heads the rope key's blocks.
  std::array<double, 8> Fingerprint(int layer) const;
  /// The same of the latent's pairs of dims.
  std::array<double, 8> LatentFingerprint(int layer) const;

 private:
  std::array<double, 8> Shares(int layer, size_t first_block, size_t end_block) const;
};

/// What storages are made from.
struct StorageSource {
  const LoadedModel* model = nullptr;
  std::span<const HeadCalibration> measured;  // [layers * kv_heads]
  std::shared_ptr<const RopeTable> rope;
  uint64_t seed = 0;  // of the rotations
};

/// Ok when `recipe` can be diagnosed at all. Errors: kNotFound, kInvalidArgument (uncompressed).
Status CheckDiagnosable(const std::string& recipe);

/// Errors: those of CheckDiagnosable; kInvalidArgument when the bits cannot be honoured (the recipe says
/// which can).
Result<KeyStorage> MakeKeyStorage(const StorageSource& source, const std::string& recipe, double k_bits);

/// What MakeKeyStorage would say of the bits, before minutes are spent on measuring: it is asked with a
/// made-up head of the model's head dim.
Status CheckKeyBits(const ModelConfig& config, const std::string& recipe, double k_bits);

/// The storage of `recipe` whose budget is the lowest that stores at least `k_bytes` a key, in steps of 1/16
/// bit (whole bits where the recipe has no others). Errors: kInvalidArgument when its largest budget stores
/// less.
Result<KeyStorage> MakeKeyStorageOfBytes(const StorageSource& source, const std::string& recipe,
                                         double k_bytes);

/// The width of a recipe that has only one, or 0.
double FixedKeyBits(const std::string& recipe);

}  // namespace blockgtq
