// Plans on disk (contract): a .safetensors file with JSON metadata, readable from Python with the stock
// library.
//
// __metadata__ (all strings)
//   format "blockgtq-plan"   version "1"   recipe   k_bits, v_bits, seed (decimal)
//   model        {architecture, layers, heads, kv_heads, head_dim, rope_freq_base, rotary_dims, rope_pairing,
//                rope_scaling_hash, key_weights_hash}
//   calibration  {corpus_hash, tokens, seconds}
//   heads        [layer][kv_head] {norm_type "log8" or "half", rounding "nearest" or "searched", groups
//   [GROUP], mean_units [unit], value GROUP}
//                GROUP = {width, code_width, first_unit, units, dims, norm_reference}
//   budget       {bytes, target_kld, sinks, recent, probe_bits, probe_tokens, probes, check_tokens,
//                probe_seconds, exponent, trust, predicted_kld, measured_kld}: optional, as is
//                check_tokens in it, plan_budget.h
//   bits_by_head "true": heads have bits of their own, as a budget's have; optional, implied by budget
//   bytes_per_token_per_head   what the plan stores; must equal what the loaded plan says
// Tensors, F32, of KV head h of layer l under "layers.l.heads.h.": key_transform, query_transform [P, D],
// value_transform [P_v, D]; key_mean [D] and score [D / 2] where the plan has them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "blockgtq/status.h"
#include "src/codec/plan.h"
#include "src/formats/plan_budget.h"

namespace blockgtq {

/// bits_by_head: LoadPlanBitsByHead. Errors: kInvalidArgument (Plan::Validate), kIo. Written atomically.
Status SavePlan(const Plan& plan, const std::string& path,
                const std::optional<PlanBudget>& budget = std::nullopt, bool bits_by_head = false);
/// Errors: kNotFound, kIo, kCorruptFile (format, sizes, Plan::Validate), kUnsupported (newer format version).
Result<Plan> LoadPlan(const std::string& path);
/// The same over bytes in memory, for the fuzzer.
Result<Plan> ParsePlan(std::span<const std::byte> bytes, const std::string& name);
/// What a plan's file says of its budget; nullopt when it was made for given bits. The plan itself is not
/// read. Errors: as LoadPlan.
Result<std::optional<PlanBudget>> LoadPlanBudget(const std::string& path);
Result<std::optional<PlanBudget>> ParsePlanBudget(std::span<const std::byte> bytes, const std::string& name);
/// Whether a plan's file says that heads have bits of their own, k_bits and v_bits being means: a budget was
/// spent over them, or the plan was adapted from such a one. Errors: as LoadPlan.
Result<bool> LoadPlanBitsByHead(const std::string& path);

}  // namespace blockgtq
