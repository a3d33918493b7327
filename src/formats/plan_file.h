// Plans on disk (contract): a .safetensors file with JSON metadata, readable from Python with the stock
// library.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "blockgtq/status.h"
#include "src/codec/plan.h"

namespace blockgtq {

Status SavePlan(const Plan& plan, const std::string& path);
/// Errors: kNotFound, kCorruptFile (format, sizes, Plan::Validate), kUnsupported (newer format version).
Result<Plan> LoadPlan(const std::string& path);
/// The same over bytes in memory, for the fuzzer.
Result<Plan> ParsePlan(std::span<const std::byte> bytes, const std::string& name);

}  // namespace blockgtq
