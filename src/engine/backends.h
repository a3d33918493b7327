// The backend registry: the one place that knows every backend.
#pragma once

#include <memory>
#include <string>

#include "src/backend/backend.h"

namespace blockgtq {

/// Creates the backend that wanted.device names ("cpu", "cuda", "cuda:N"; "": the best that works here).
/// Errors: kUnsupported for a device this build or machine lacks, naming those it has.
Result<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& wanted);

}  // namespace blockgtq
