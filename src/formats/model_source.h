// What an architecture sees of a model on disk: its configuration and its tensors under one set of names,
// GGUF's ("token_embd.weight", "blk.0.attn_q.weight"), whether the file is GGUF or safetensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"
#include "src/core/rope.h"
#include "src/core/tensor_type.h"
#include "src/formats/gguf.h"
#include "src/formats/model_keys.h"

namespace blockgtq {

/// A tensor as rows, in the values that GGUF defines for it (norms of gemma with the 1 added).
struct ModelTensor {
  std::string name;            // GGUF's; a tensor that no name is known for keeps its own
  std::string stored_name;     // as the file has it, for messages; of several parts: the first's
  std::vector<int64_t> shape;  // outermost first; a vector is [cols]
  int64_t rows = 0;            // the product of all but the last; 1 for a vector
  int64_t cols = 0;
  int64_t bytes = 0;
  /// The rows in order: one part, or one an expert where the file has a tensor for each. Equal types and
  /// cols.
  std::vector<TensorView> parts;

  TensorType type() const { return parts.front().type; }
  /// Rows [first, first + count), as a view: of a fused matrix, or of one expert. Errors: kInvalidArgument
  /// past the end; kUnsupported when the rows are not of one part.
  Result<TensorView> Rows(int64_t first, int64_t count) const;
  /// Elements [first, first + count) of a vector. Errors: kInvalidArgument past the end; kUnsupported for a
  /// matrix or a quantised type.
  Result<TensorView> Elements(int64_t first, int64_t count) const;
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  ModelSource(const ModelSource&) = delete;
  ModelSource& operator=(const ModelSource&) = delete;

  /// The path that was opened; starts messages.
  const std::string& name() const { return name_; }
  /// "GGUF v3", "safetensors, 2 files".
  const std::string& format() const { return format_; }
  /// GGUF's name of it (general.architecture).
  const std::string& architecture() const { return architecture_; }
  const ModelKeys& keys() const { return keys_; }
  std::span<const ModelTensor> tensors() const { return tensors_; }
  /// Whoever opens the model, before it is loaded: the longest sequence that its RoPE is to be made for,
  /// where that changes with the length (dynamic, longrope); 0: the length that it was trained on.
  void SetRopeContext(int64_t tokens) { rope_context_ = tokens; }
  int64_t rope_context() const { return rope_context_; }
  /// The channels that RoPE pairs, in the stored rows of Q and K, of a family that has `gguf` in GGUF files:
  /// conversion to GGUF reorders the rows of some families.
  virtual RopePairing StoredPairing(RopePairing gguf) const = 0;

  /// nullptr when absent. Looking is not using: see Take.
  const ModelTensor* Find(std::string_view name) const;
  /// What the file would call a tensor of this name, for messages about one that it lacks: "A", or "A or B"
  /// where families differ.
  virtual std::string Spell(std::string_view name) const { return std::string(name); }
  /// The same, for a forward pass that uses the tensor.
  const ModelTensor* Take(std::string_view name) const;
  /// A tensor that the forward pass would ignore means that the model computes something else. Errors:
  /// kUnsupported naming the first tensor that was never taken.
  Status CheckAllTaken() const;

  /// Where tokenizer and chat template are: the GGUF file, or null and a folder with tokenizer.json and
  /// tokenizer_config.json.
  virtual const GgufFile* gguf() const { return nullptr; }
  const std::string& folder() const { return folder_; }

 protected:
  ModelSource() = default;
  /// After tensors_ is complete. Errors: kCorruptFile when a name occurs twice.
  Status IndexTensors();

  std::string name_, format_, architecture_, folder_;
  ModelKeys keys_;
  std::vector<ModelTensor> tensors_;

 private:
  int64_t rope_context_ = 0;
  std::map<std::string_view, const ModelTensor*> by_name_;
  mutable std::set<const ModelTensor*> taken_;
};

/// "[64, 128]".
std::string ShapeText(std::span<const int64_t> shape);

}  // namespace blockgtq
