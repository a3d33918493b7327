// Finds libcublasLt with the system's loader.
#include "src/cuda/matmul_library.h"

#include <dlfcn.h>

#include <string>

namespace blockgtq::cuda {
namespace {

#define BGTQ_STRING_INNER(x) #x
#define BGTQ_STRING(x) BGTQ_STRING_INNER(x)
constexpr const char* kVersioned = "libcublasLt.so." BGTQ_STRING(CUBLAS_VER_MAJOR);

template <typename Function>
bool Find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) missing = name;
  return function != nullptr;
}

Result<CublasLt> Load() {
  void* library = dlopen(kVersioned, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* error = dlerror();
    return Status(ErrorCode::kUnsupported,
                  std::string("CUDA: cannot load ") + kVersioned + " (" +
                      (error ? error : "no reason given") +
                      "); install the CUDA toolkit's libcublas, or add its folder to LD_LIBRARY_PATH");
  }
  CublasLt f{};
  std::string missing;
  const bool found = Find(library, "cublasLtCreate", f.create, missing) &&
                     Find(library, "cublasLtDestroy", f.destroy, missing) &&
                     Find(library, "cublasLtMatmul", f.matmul, missing) &&
                     Find(library, "cublasLtMatmulAlgoGetHeuristic", f.heuristic, missing) &&
                     Find(library, "cublasLtMatmulDescCreate", f.desc_create, missing) &&
                     Find(library, "cublasLtMatmulDescDestroy", f.desc_destroy, missing) &&
                     Find(library, "cublasLtMatmulDescSetAttribute", f.desc_set, missing) &&
                     Find(library, "cublasLtMatrixLayoutCreate", f.layout_create, missing) &&
                     Find(library, "cublasLtMatrixLayoutDestroy", f.layout_destroy, missing) &&
                     Find(library, "cublasLtMatmulPreferenceCreate", f.preference_create, missing) &&
                     Find(library, "cublasLtMatmulPreferenceDestroy", f.preference_destroy, missing) &&
                     Find(library, "cublasLtMatmulPreferenceSetAttribute", f.preference_set, missing) &&
                     Find(library, "cublasLtGetStatusString", f.status_string, missing);
  if (!found) {
    return Status(ErrorCode::kUnsupported, std::string("CUDA: ") + kVersioned + " has no " + missing);
  }
  return f;
}

}  // namespace

Result<const CublasLt*> LoadCublasLt() {
  static const Result<CublasLt> library = Load();
  if (!library.ok()) return library.status();
  return &library.value();
}

}  // namespace blockgtq::cuda
