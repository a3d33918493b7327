// Stand-in for the CUDA toolkit's header: what the emulated kernels and their tests use of the language, the
// device functions and the runtime, on the emulator.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/memory.h"

// ---- The language.
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static  // the kernels that have any run without clusters: one block at a time

struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned width = 1) : x(width), y(1), z(1) {}
};

extern uint3 threadIdx, blockIdx, blockDim, gridDim;  // of the thread that runs

// ---- Device functions.
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline float __fdividef(float a, float b) { return a / b; }
inline void sincospi(double x, double* sine, double* cosine) {
  *sine = std::sin(3.14159265358979323846 * x);
  *cosine = std::cos(3.14159265358979323846 * x);
}
inline void sincospif(float x, float* sine, float* cosine) {
  double s, c;
  sincospi(x, &s, &c);
  *sine = static_cast<float>(s);
  *cosine = static_cast<float>(c);
}
inline int __float2int_rn(float x) {
  return std::fabs(x) < 2147483648.0f ? static_cast<int>(std::nearbyint(x)) : 0;
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return c;
}
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
inline long long clock64() {  // time flies: no wait for it takes long
  static long long now = 0;
  return now += 1 << 20;
}
inline float __expf(float x) { return std::exp(x); }
int atomicAdd(int* p, int value);
int atomicMin(int* p, int value);
inline void __syncthreads() { blockgtq::emulator::SyncThreads(); }
inline void __syncwarp() { blockgtq::emulator::SyncWarp(); }
inline int __any_sync(unsigned, int value) { return blockgtq::emulator::AnyLane(value); }
template <typename T>
T EmulatedShuffle(blockgtq::emulator::Shuffle kind, T value, int argument) {
  static_assert(sizeof(T) == 4);
  return std::bit_cast<T>(blockgtq::emulator::ShuffleLanes(kind, std::bit_cast<uint32_t>(value), argument));
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return EmulatedShuffle(blockgtq::emulator::Shuffle::kFrom, value, lane);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return EmulatedShuffle(blockgtq::emulator::Shuffle::kXor, value, mask);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int distance) {
  return EmulatedShuffle(blockgtq::emulator::Shuffle::kUp, value, distance);
}

// ---- The runtime. A launch has run when it returns; a stream is nothing.
enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributeNonPortableClusterSizeAllowed
};
enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization
};
using EmulatedGraph = std::vector<blockgtq::emulator::KernelLaunch>;
using cudaStream_t = struct CUstream_st*;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = const EmulatedGraph*;
struct cudaDeviceProp {
  char name[32];
  int major, minor, multiProcessorCount;
  size_t sharedMemPerBlockOptin;
  int l2CacheSize;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    uint3 clusterDim;
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

inline cudaGraph_t g_emulated_capture = nullptr;  // takes the launches where not null

inline const char* cudaGetErrorString(cudaError_t) { return "an error"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  if (BGTQ_EMULATED_SM == 90) {
    *properties = {"emulated H200", 9, 0, 132, 232448, 50 << 20};
  } else {
    *properties = {"emulated A100", 8, 0, 108, 166912, 40 << 20};
  }
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin };
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  (void)cudaGetDeviceProperties(&properties, device);
  *value = attribute == cudaDevAttrMultiProcessorCount ? properties.multiProcessorCount
                                                       : static_cast<int>(properties.sharedMemPerBlockOptin);
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
struct cudaFuncAttributes {
  int ptxVersion;
};
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel*) {
  attributes->ptxVersion = BGTQ_EMULATED_SM;
  return cudaSuccess;
}
template <typename T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  *p = static_cast<T*>(blockgtq::emulator::AllocateDevice(bytes));
  return cudaSuccess;
}
inline cudaError_t cudaFree(const void* p) {
  blockgtq::emulator::FreeDevice(p);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
  std::memset(to, byte, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  g_emulated_capture = new EmulatedGraph;
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = g_emulated_capture;
  g_emulated_capture = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, int) {
  *executable = graph;
  return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  for (const blockgtq::emulator::KernelLaunch& launch : *executable) blockgtq::emulator::Launch(launch);
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
/// As an H200 answers for blocks that fill a processor.
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, Kernel*, const cudaLaunchConfig_t* config) {
  const unsigned blocks = config->gridDim.x;
  *clusters = blocks == 1 ? 132 : blocks == 2 ? 66 : blocks == 4 ? 30 : blocks == 8 ? 15 : 7;
  return cudaSuccess;
}
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  blockgtq::emulator::KernelLaunch launch = {
      config->gridDim.x, config->blockDim.x, 1, config->dynamicSmemBytes, false, [kernel, arguments...] {
        kernel(arguments...);
      }};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      launch.cluster_blocks = attribute.val.clusterDim.x;
    } else {
      launch.early = attribute.val.programmaticStreamSerializationAllowed != 0;
    }
  }
  if (g_emulated_capture != nullptr) {
    g_emulated_capture->push_back(launch);
  } else {
    blockgtq::emulator::Launch(launch);
  }
  return cudaSuccess;
}
