// See step_graph.h.
#include "src/cuda/step_graph.h"

#include <cuda_runtime.h>

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {

StepGraphs::~StepGraphs() {
  for (auto& [key, graph] : graphs_) {
    if (graph.executable != nullptr) (void)cudaGraphExecDestroy(graph.executable);
  }
}

void StepGraphs::Forget(const void* binding) {
  for (auto at = graphs_.begin(); at != graphs_.end();) {
    if (at->first.first != binding) {
      ++at;
      continue;
    }
    if (at->second.executable != nullptr) (void)cudaGraphExecDestroy(at->second.executable);
    at = graphs_.erase(at);
  }
}

Status StepGraphs::Run(const Key& key, const std::function<Status()>& launch) {
  Graph& graph = graphs_[key];
  if (graph.generation != device_.generation()) {  // memory that it points to may have moved
    if (graph.executable != nullptr) (void)cudaGraphExecDestroy(graph.executable);
    graph = {};
  }
  if (!graph.warm) {
    BGTQ_RETURN_IF_ERROR(launch());
    graph.warm = true;
    graph.generation = device_.generation();
    return Status::Ok();
  }
  if (graph.executable == nullptr) {
    BGTQ_ASSIGN_OR_RETURN(graph.executable, Capture(launch));
  }
  return CudaStatus(cudaGraphLaunch(graph.executable, device_.stream()), "running a captured step");
}

Result<CUgraphExec_st*> StepGraphs::Capture(const std::function<Status()>& launch) {
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal),
                                  "capturing a step"));
  const Status launched = launch();
  cudaGraph_t graph = nullptr;
  const Status captured = CudaStatus(cudaStreamEndCapture(device_.stream(), &graph), "capturing a step");
  CUgraphExec_st* executable = nullptr;
  Status status = launched.ok() ? captured : launched;
  if (status.ok())
    status = CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "making a graph of a step");
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  if (!status.ok()) return status;
  return executable;
}

}  // namespace blockgtq::cuda
