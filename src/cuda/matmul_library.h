// cuBLASLt's functions, looked up at run time: the program starts on machines that lack the library.
#pragma once

#include <cublasLt.h>

#include "blockgtq/status.h"

namespace blockgtq::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtGetStatusString) status_string;
};

/// Loads the library once a process.
/// Errors: kUnsupported naming the library, or the function that it lacks.
Result<const CublasLt*> LoadCublasLt();

}  // namespace blockgtq::cuda
