// Plan helpers: sizes, the content hash and the model fingerprint. Checks are in plan_validate.cc.
#include "src/codec/plan.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <memory>
#include <string_view>

#include "src/codec/record.h"

namespace blockgtq {
namespace {

// xxh3-64 of a canonical byte stream: integers and floats little-endian, arrays and strings after their
// length.
class PlanHasher {
 public:
  PlanHasher() : state_(XXH3_createState(), XXH3_freeState) { XXH3_64bits_reset(state_.get()); }
  void Integer(uint64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(value >> (8 * i));
    XXH3_64bits_update(state_.get(), bytes, sizeof bytes);
  }
  void Real(double value) { Integer(std::bit_cast<uint64_t>(value)); }
  void Text(std::string_view text) {
    Integer(text.size());
    XXH3_64bits_update(state_.get(), text.data(), text.size());
  }
  void Floats(const std::vector<float>& values) {
    Integer(values.size());
    if constexpr (std::endian::native == std::endian::little) {
      XXH3_64bits_update(state_.get(), values.data(), values.size() * sizeof(float));
    } else {
      for (float v : values) {
        const uint32_t bits = std::bit_cast<uint32_t>(v);
        const unsigned char bytes[4] = {
            static_cast<unsigned char>(bits), static_cast<unsigned char>(bits >> 8),
            static_cast<unsigned char>(bits >> 16), static_cast<unsigned char>(bits >> 24)};
        XXH3_64bits_update(state_.get(), bytes, sizeof bytes);
      }
    }
  }
  void Group(const GroupPlan& group) {
    for (int v : {group.width, group.code_width, group.first_unit, group.units, group.dims}) Integer(v);
    Real(group.norm_reference);
  }
  std::string Hex() const { return fmt::format("{:016x}", XXH3_64bits_digest(state_.get())); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

template <typename T>
Status Differs(std::string_view field, const T& plan, const T& model) {
  return Status(ErrorCode::kMismatch,
                fmt::format("the plan's {} is {}, the model's is {}; calibrate a plan for this model", field,
                            plan, model));
}

}  // namespace

int HeadPlan::key_units() const {
  int units = 0;
  for (const GroupPlan& group : groups) units += group.units;
  return units;
}

double Plan::bytes_per_token_per_head() const {
  if (heads.empty()) return 0;
  double bytes = 0;
  for (const HeadPlan& head : heads) bytes += RecordLayout::For(head).bytes;
  return bytes / kPageTokens / static_cast<double>(heads.size());
}

std::string Plan::Hash() const {
  PlanHasher hash;
  hash.Integer(kVersionWithoutLatents);
  hash.Text(model.architecture);
  for (int v : {model.layers, model.heads, model.kv_heads, model.head_dim, model.rotary_dims})
    hash.Integer(v);
  hash.Real(model.rope_freq_base);
  hash.Text(model.rope_pairing);
  hash.Text(model.rope_scaling_hash);
  hash.Text(model.key_weights_hash);
  hash.Integer(heads.size());
  for (const HeadPlan& head : heads) {
    hash.Integer(head.head_dim);
    if (head.latent_dims > 0) hash.Integer(head.latent_dims);
    hash.Integer(static_cast<uint64_t>(head.norm_type));
    hash.Integer(head.groups.size());
    for (const GroupPlan& group : head.groups) hash.Group(group);
    hash.Group(head.value);
    hash.Floats(head.key_transform);
    hash.Floats(head.query_transform);
    hash.Floats(head.value_transform);
    hash.Integer(head.mean_units.size());
    for (int unit : head.mean_units) hash.Integer(unit);
    hash.Floats(head.key_mean);
  }
  return hash.Hex();
}

std::string ModelFingerprint::Text() const {
  return fmt::format("{}/{}/{}/{}/{}/{}/{}/{}/{}/{}", architecture, layers, heads, kv_heads, head_dim,
                     rope_freq_base, rotary_dims, rope_pairing, rope_scaling_hash, key_weights_hash);
}

Status ModelFingerprint::ExpectEqual(const ModelFingerprint& model) const {
  if (architecture != model.architecture) return Differs("architecture", architecture, model.architecture);
  if (layers != model.layers) return Differs("layer count", layers, model.layers);
  if (heads != model.heads) return Differs("query head count", heads, model.heads);
  if (kv_heads != model.kv_heads) return Differs("KV head count", kv_heads, model.kv_heads);
  if (head_dim != model.head_dim) return Differs("head dim", head_dim, model.head_dim);
  if (rope_freq_base != model.rope_freq_base) {
    return Differs("RoPE base", rope_freq_base, model.rope_freq_base);
  }
  if (rotary_dims != model.rotary_dims) return Differs("rotary dims", rotary_dims, model.rotary_dims);
  if (rope_pairing != model.rope_pairing) return Differs("RoPE pairing", rope_pairing, model.rope_pairing);
  if (rope_scaling_hash != model.rope_scaling_hash) {
    return Differs("RoPE scaling hash", rope_scaling_hash, model.rope_scaling_hash);
  }
  if (key_weights_hash != model.key_weights_hash) {
    return Differs("key weights hash", key_weights_hash, model.key_weights_hash);
  }
  return Status::Ok();
}

}  // namespace blockgtq
