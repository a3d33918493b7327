// The CPU backend's attention for other backends (backend/host_attention.h).
#pragma once

#include <memory>

#include "src/backend/host_attention.h"

namespace blockgtq::cpu {

/// threads 0: one a core. Errors: kInvalidArgument (threads out of range).
Result<std::unique_ptr<HostAttentionCores>> CreateHostAttention(int threads);

}  // namespace blockgtq::cpu
