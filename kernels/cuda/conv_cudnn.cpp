// Convolutions through cuDNN's graph API: the only file that sees its headers, which are slow to compile.
// A problem becomes an operation graph (convolution, and the addition of an FP32 bias where there is one), the
// heuristics list engines for it, and the best one stays in a cache of this thread.
#include "demi/kernels/cuda/conv_cudnn.h"

// The headers bring a normalization that NVRTC compiles. Nothing here uses it, so NVRTC need not be linked for it.
#include <nvrtc.h>
#define nvrtcCreateProgram(...) NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcDestroyProgram(...) NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcCompileProgram(...) NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcGetProgramLogSize(...) NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcGetProgramLog(...) NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcGetCUBINSize(...) NVRTC_ERROR_INTERNAL_ERROR
#define nvrtcGetCUBIN(...) NVRTC_ERROR_INTERNAL_ERROR
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <set>

#include "demi/core/cuda/context.h"
#include "demi/core/memory.h"
#include "demi/kernels/cuda/conv_kernels.h"
#include "demi/kernels/cuda/plan_cache.h"

namespace demi::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using demi::cuda::Context;
using demi::cuda::Event;

constexpr int kCandidates = 16;                       // plans built and timed a problem
constexpr int kRuns = 5;                              // timed runs of each
constexpr int64_t kMostWorkspace = int64_t{1} << 30;  // bytes; a plan that needs more is not considered
constexpr std::chrono::seconds kSearchTime{3};        // no further candidate after this (some compile for a long time)

// Names of the tensors within a graph. Their order is that of ConvBuffers.
enum Uid : int64_t { kX = 1, kW = 2, kY = 3, kBias = 4 };

class PlanGraph : public fe::graph::Graph {
 public:
  // Frees the other plans that were built.
  void keep_only(int64_t index) {
    for (size_t i = 0; i < plans.execution_plans.size(); ++i) {
      if (static_cast<int64_t>(i) != index) plans.execution_plans[i].reset();
    }
    plans.candidate = index;
  }
  bool on_tensor_cores(int64_t index) const {
    const auto& notes = plans.numeric_notes.at(static_cast<size_t>(index));
    return std::find(notes.begin(), notes.end(), fe::NumericalNote_t::TENSOR_CORE) != notes.end();
  }
};

struct Plan {
  std::unique_ptr<PlanGraph> graph;  // nullptr: no engine takes the problem
  int64_t index = -1;                // of the plan within the graph
  size_t workspace = 0;
  ConvEngine engine;
};

void check(fe::error_t status, const ConvProblem& problem) {
  DEMI_CHECK(status.is_good(), "[{}] cuDNN: {} (x {}, w {}, {})", name_of(problem.op), status.get_message(), problem.x,
             problem.w, problem.dtype);
}

fe::DataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::F16:
      return fe::DataType_t::HALF;
    case DType::BF16:
      return fe::DataType_t::BFLOAT16;
    default:
      return fe::DataType_t::FLOAT;
  }
}

// cuDNN counts the axes of a [N, H, W, C] tensor as N, C, H, W and tells the layout by strides.
std::vector<int64_t> dims(const Shape& s) { return {s[0], s[3], s[1], s[2]}; }
std::vector<int64_t> strides(const Shape& s) { return {s[1] * s[2] * s[3], 1, s[2] * s[3], s[3]}; }

std::unique_ptr<PlanGraph> make_graph(const ConvProblem& problem) {
  auto graph = std::make_unique<PlanGraph>();
  graph->set_io_data_type(data_type(problem.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto input = [&](const char* name, Uid uid, const Shape& shape) {
    return graph->tensor(
        fe::graph::Tensor_attributes().set_name(name).set_uid(uid).set_dim(dims(shape)).set_stride(strides(shape)));
  };
  const Conv2dOptions& o = problem.options;
  const auto configured = [&](auto attributes) {
    attributes.set_padding({o.padding[0], o.padding[1]});
    attributes.set_stride({o.stride[0], o.stride[1]});
    attributes.set_dilation({o.dilation[0], o.dilation[1]});
    return attributes;
  };
  std::shared_ptr<fe::graph::Tensor_attributes> result;
  const Shape* shape = &problem.y;
  Uid uid = kY;
  switch (problem.op) {
    case ConvOp::Fprop:
    case ConvOp::FpropBias: {
      const auto x = input("x", kX, problem.x), w = input("w", kW, problem.w);
      result = graph->conv_fprop(x, w, configured(fe::graph::Conv_fprop_attributes()));
      if (problem.op == ConvOp::FpropBias) {
        result->set_dim(dims(problem.y)).set_stride(strides(problem.y));
        const auto bias = input("bias", kBias, Shape{1, 1, 1, problem.y[3]});
        bias->set_data_type(fe::DataType_t::FLOAT);
        result = graph->pointwise(result, bias, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
      }
      break;
    }
    case ConvOp::Dgrad: {
      const auto dy = input("dy", kY, problem.y), w = input("w", kW, problem.w);
      result = graph->conv_dgrad(dy, w, configured(fe::graph::Conv_dgrad_attributes()));
      shape = &problem.x;
      uid = kX;
      break;
    }
    case ConvOp::Wgrad: {
      const auto dy = input("dy", kY, problem.y), x = input("x", kX, problem.x);
      result = graph->conv_wgrad(dy, x, configured(fe::graph::Conv_wgrad_attributes()));
      shape = &problem.w;
      uid = kW;
      break;
    }
  }
  result->set_output(true).set_uid(uid).set_dim(dims(*shape)).set_stride(strides(*shape));
  result->set_data_type(data_type(problem.dtype));
  return graph;
}

// What an engine may not do: numbers must come out as if products were exact and summed in FP32.
std::vector<fe::NumericalNote_t> refused_notes(const ConvProblem& problem) {
  using Note = fe::NumericalNote_t;
  std::vector<Note> notes{Note::REDUCED_PRECISION_REDUCTION, Note::FFT, Note::WINOGRAD_TILE_6x6,
                          Note::WINOGRAD_TILE_13x13};
  const bool tf32 = problem.dtype == DType::F32 && float32_math() == Float32Math::Tf32;
  if (!tf32) notes.push_back(Note::DOWN_CONVERT_INPUTS);
  if (problem.dtype != DType::F32) notes.push_back(Note::WINOGRAD);  // transforms in 16 bits
  if (problem.dtype == DType::F32 && !tf32) notes.push_back(Note::TENSOR_CORE);
  if (deterministic()) notes.push_back(Note::NONDETERMINISTIC);
  return notes;
}

bool execute(const PlanGraph& graph, int64_t index, Context& context, const ConvProblem& problem,
             const ConvBuffers& buffers, void* workspace, std::string* message) {
  void* pointers[4];  // in the order of their uids, only those that the graph has
  int count = 0;
  for (void* pointer : {buffers.x, buffers.w, buffers.y}) pointers[count++] = pointer;
  if (problem.op == ConvOp::FpropBias) pointers[count++] = buffers.bias;
  fe::error_t status = graph.execute_plan_at_index(context.cudnn(), pointers, count, workspace, index);
  if (status.is_bad() && message) *message = status.get_message();
  return status.is_good();
}

// Milliseconds a run, or nothing when the plan does not run.
std::optional<float> measure(const PlanGraph& graph, int64_t index, size_t workspace, const ConvProblem& problem,
                             const ConvBuffers& buffers, bool only_try) {
  Context& context = Context::get(problem.device);
  const memory::Scope scope(memory::Category::Workspace);
  Tensor scratch;  // not the context's: that one would stay as large as the largest candidate's
  try {
    if (workspace > 0) scratch = Tensor::empty({static_cast<int64_t>(workspace)}, DType::U8, problem.device);
  } catch (const Error&) {  // this one needs more memory than there is
    return std::nullopt;
  }
  const auto run = [&] {
    return execute(graph, index, context, problem, buffers, scratch.defined() ? scratch.mutable_raw() : nullptr,
                   nullptr);
  };
  if (!run()) return std::nullopt;
  if (only_try) return 0.0f;
  Event start, stop;
  DEMI_CUDA_CHECK(cudaEventCreate(start.out()));
  DEMI_CUDA_CHECK(cudaEventCreate(stop.out()));
  hold_stream(problem.device, 150);  // the runs below are queued meanwhile: their launches cost nothing
  DEMI_CUDA_CHECK(cudaEventRecord(start.get(), context.stream()));
  for (int i = 0; i < kRuns; ++i) {
    if (!run()) return std::nullopt;
  }
  DEMI_CUDA_CHECK(cudaEventRecord(stop.get(), context.stream()));
  DEMI_CUDA_CHECK(cudaEventSynchronize(stop.get()));
  float elapsed = 0.0f;
  DEMI_CUDA_CHECK(cudaEventElapsedTime(&elapsed, start.get(), stop.get()));
  return elapsed / kRuns;
}

Plan search(const ConvProblem& problem, const ConvBuffers& buffers) {
  Context& context = Context::get(problem.device);
  auto graph = make_graph(problem);
  check(graph->validate(), problem);
  if (graph->build_operation_graph(context.cudnn()).is_bad()) return {};
  if (graph->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::B, fe::HeurMode_t::FALLBACK}).is_bad())
    return {};
  graph->deselect_numeric_notes(refused_notes(problem)).deselect_workspace_greater_than(kMostWorkspace);

  static const bool log = std::getenv("DEMI_LOG_PLANS") != nullptr;  // for those who want to see the candidates
  const auto begin = std::chrono::steady_clock::now();
  Plan best;
  float best_time = std::numeric_limits<float>::infinity();
  std::set<std::string> seen;  // the second list repeats plans of the first
  int tried = 0;
  for (int64_t i = 0; i < graph->get_execution_plan_count() && tried < kCandidates; ++i) {
    if (best.index >= 0 && std::chrono::steady_clock::now() - begin > kSearchTime) break;
    std::string name;
    int64_t workspace = 0;
    if (graph->get_plan_name_at_index(i, name).is_bad() || !seen.insert(name).second) continue;
    if (graph->build_plan_at_index(i).is_bad()) continue;
    if (graph->get_workspace_size_plan_at_index(i, workspace).is_bad() || workspace > kMostWorkspace) continue;
    ++tried;
    const auto bytes = static_cast<size_t>(workspace);
    const std::optional<float> time = measure(*graph, i, bytes, problem, buffers, deterministic());
    if (log)
      fmt::print(stderr, "[{}] x {} w {}: {} {:.1f} us\n", name_of(problem.op), problem.x, problem.w, name,
                 time.value_or(NAN) * 1e3f);
    if (!time || *time >= best_time) continue;
    best_time = *time;
    best.index = i;
    best.workspace = bytes;
    best.engine.name = name;
    if (deterministic()) break;
  }
  if (best.index < 0) return {};
  best.engine.tensor_cores = graph->on_tensor_cores(best.index);
  graph->keep_only(best.index);
  best.graph = std::move(graph);
  return best;
}

using Key = PlanKey<19>;

Key key_of(const ConvProblem& problem) {
  const Conv2dOptions& o = problem.options;
  const bool tf32 = problem.dtype == DType::F32 && float32_math() == Float32Math::Tf32;
  const int64_t modes = (tf32 ? 1 : 0) + (deterministic() ? 2 : 0);
  return {{static_cast<int64_t>(problem.op), static_cast<int64_t>(problem.dtype), modes, problem.device.index(),
           problem.x[0], problem.x[1], problem.x[2], problem.x[3], problem.w[0], problem.w[1], problem.w[2],
           problem.w[3], o.stride[0], o.stride[1], o.padding[0], o.padding[1], o.dilation[0], o.dilation[1], o.groups}};
}

PlanCache<Key, Plan>& cache(const ConvProblem& problem) {
  (void)Context::get(problem.device);  // made first, so that the handle outlives the plans at the thread's end
  thread_local PlanCache<Key, Plan> plans;
  return plans;
}

}  // namespace

const char* name_of(ConvOp op) {
  switch (op) {
    case ConvOp::Dgrad:
      return "conv2d_dgrad";
    case ConvOp::Wgrad:
      return "conv2d_wgrad";
    default:
      return "conv2d";
  }
}

bool conv_cudnn(const ConvProblem& problem, const ConvBuffers& buffers) {
  auto& plans = cache(problem);
  const Key key = key_of(problem);
  Plan* plan = plans.find(key);
  if (!plan) {
    DEMI_CHECK(!backend::capturing(problem.device.index()),
               "[{}] no plan is cached for this shape: run the step once before capturing it", name_of(problem.op));
    plan = &plans.insert(key, search(problem, buffers));
  }
  if (!plan->graph) return false;
  Context& context = Context::get(problem.device);
  void* workspace = plan->workspace > 0 ? context.workspace(plan->workspace) : nullptr;
  std::string message;
  DEMI_CHECK(execute(*plan->graph, plan->index, context, problem, buffers, workspace, &message),
             "[{}] cuDNN: {} (x {}, w {}, {}, {})", name_of(problem.op), message, problem.x, problem.w, problem.dtype,
             plan->engine.name);
  return true;
}

bool conv_cudnn_refuses(const ConvProblem& problem) {
  const Plan* plan = cache(problem).find(key_of(problem));
  return plan && !plan->graph;
}

ConvEngine conv_cudnn_engine(const ConvProblem& problem) {
  const Plan* plan = cache(problem).find(key_of(problem));
  return !plan ? ConvEngine{} : plan->graph ? plan->engine : ConvEngine{"direct"};
}

}  // namespace demi::kernels::cuda
