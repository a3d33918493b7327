// The CUDA backend's answers that need no model.
//
//   cuda_backend_test
//
#include "src/cuda/cuda_backend.h"

#include <string>

#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

void TestRoom(const Backend& backend) {
  const Status small = backend.CheckRoom(1 << 20, 1 << 10, "small.gguf");
  Check(small.ok(), "a small model finds room: " + small.message());
  // 2 TiB of matrices; the other two would overflow a sum of bytes.
  for (const auto& [matrices, vectors] :
       {std::pair{int64_t{1} << 40, int64_t{0}}, std::pair{INT64_MAX, INT64_MAX},
        std::pair{int64_t{0}, INT64_MAX}}) {
    const Status refused = backend.CheckRoom(matrices, vectors, "large.gguf");
    Check(refused.code() == ErrorCode::kOutOfMemory, "no GPU has room for so large a model");
    Check(refused.message().starts_with("large.gguf: ") &&
              refused.message().find(" are free") != std::string::npos,
          "the refusal says what, and what is free: " + refused.message());
  }
  const Status stated = backend.CheckRoom(int64_t{1} << 40, 0, "large.gguf");
  Check(stated.message().find("2048.0 GiB") != std::string::npos, "what was wanted: " + stated.message());
}

void TestDevices() {
  for (const char* name : {"cuda:x", "cuda:", "cuda:-1", "cuda:1x"}) {
    const auto backend = CreateCudaBackend({name, 1});
    Check(backend.status().code() == ErrorCode::kInvalidArgument &&
              backend.status().message().find(name) != std::string::npos,
          std::string("no device number: ") + backend.status().message());
  }
  const auto absent = CreateCudaBackend({"cuda:1000", 1});
  Check(absent.status().code() == ErrorCode::kUnsupported, "device 1000 is not there");
}

void Run(const DeviceLimits&, bool) {
  const auto backend = Require(CreateCudaBackend({"cuda", 1}), "the backend");
  TestRoom(*backend);
  TestDevices();
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::Run); }
