// Matrix products through cuBLASLt. It counts in column-major order, where a row-major [m, n] matrix is its transpose,
// n x m: so C = op(A) op(B) is asked for as C^T = op(B)^T op(A)^T, with the operands in swapped places.
// Sums are FP32, or of TF32 products where float32_math() says so; split sums are kept in FP32 too.
#include <cublasLt.h>

#include <algorithm>

#include "demi/core/cuda/context.h"
#include "demi/core/memory.h"
#include "demi/kernels/cuda/gemm_kernels.h"
#include "demi/kernels/cuda/plan_cache.h"

namespace demi::kernels::cuda {
namespace {

using demi::cuda::Context;
using demi::cuda::Handle;

constexpr size_t kWorkspace = size_t{32} << 20;

struct Plan {
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> b, a, c;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;
  bool found = false;  // else no algorithm takes these operands
};

void check(cublasStatus_t status, const char* call) {
  DEMI_CHECK(status == CUBLAS_STATUS_SUCCESS, "[matmul] {}: {}, {}", call, cublasLtGetStatusName(status),
             cublasLtGetStatusString(status));
}
#define CHECK_CUBLAS(call) check(call, #call)

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::F16 ? CUDA_R_16F : dtype == DType::BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// The largest power of two up to 256 that divides the address.
uint32_t alignment(const Tensor& t) {
  const auto address = reinterpret_cast<uintptr_t>(t.raw());
  return static_cast<uint32_t>(std::min<uintptr_t>(256, address & (~address + 1)));
}

template <typename T>
void set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(plan.product.get(), attribute, &value, sizeof value));
}

struct Problem {
  const Tensor &a, &b, &c;
  bool transpose_a, transpose_b, bias;
  int64_t m, n, k;
  bool tf32;
};

using Key = PlanKey<13>;

Key key_of(const Problem& p) {
  return {{p.c.device().index(), static_cast<int64_t>(p.a.dtype()), static_cast<int64_t>(p.c.dtype()), p.tf32,
           p.transpose_a, p.transpose_b, p.bias, p.m, p.n, p.k, alignment(p.a), alignment(p.b), alignment(p.c)}};
}

Plan make_plan(const Problem& p, const float* bias, cublasLtHandle_t handle) {
  Plan plan;
  CHECK_CUBLAS(cublasLtMatmulDescCreate(plan.product.out(), p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                        CUDA_R_32F));
  set(plan, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.bias) {
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  // A stored row-major [rows, columns] matrix is a column-major one of `columns` rows.
  const auto layout = [](cublasLtMatrixLayout_t* out, const Tensor& t) {
    const auto rows = static_cast<uint64_t>(t.size(0)), columns = static_cast<uint64_t>(t.size(1));
    CHECK_CUBLAS(cublasLtMatrixLayoutCreate(out, data_type(t.dtype()), columns, rows, t.size(1)));
  };
  layout(plan.b.out(), p.b);
  layout(plan.a.out(), p.a);
  layout(plan.c.out(), p.c);

  Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  CHECK_CUBLAS(cublasLtMatmulPreferenceCreate(preference.out()));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    CHECK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspace});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.c));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, plan.product.get(), plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(),
                                     preference.get(), 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return plan;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.found = count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = result.algo;
  plan.workspace = result.workspaceSize;
  return plan;
}

Problem problem_of(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, bool bias, const Tensor& c) {
  const bool tf32 = a.dtype() == DType::F32 && float32_math() == Float32Math::Tf32;
  return {a, b, c, transpose_a, transpose_b, bias, c.size(0), c.size(1), a.size(transpose_a ? 0 : 1), tf32};
}

// cuBLASLt adds a bias of the result's dtype only, from where it is aligned.
bool adds_bias(const Tensor& bias, const Tensor& c) {
  return bias.defined() && c.dtype() == DType::F32 && reinterpret_cast<uintptr_t>(bias.raw()) % 16 == 0;
}

// bias: undefined, or as adds_bias() asks.
void multiply(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias, Tensor& c) {
  Context& context = Context::get(c.device());
  const Problem problem = problem_of(a, transpose_a, b, transpose_b, bias.defined(), c);
  thread_local PlanCache<Key, Plan> plans;
  const float* bias_data = bias.defined() ? bias.data<float>() : nullptr;
  const Key key = key_of(problem);
  Plan* plan = plans.find(key);
  if (!plan) plan = &plans.insert(key, make_plan(problem, bias_data, context.cublaslt()));
  if (plan->found) {
    if (bias_data) set(*plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_data);
    void* workspace = plan->workspace > 0 ? context.workspace(plan->workspace) : nullptr;
    const float one = 1.0f, zero = 0.0f;
    const cublasStatus_t status = cublasLtMatmul(
        context.cublaslt(), plan->product.get(), &one, b.raw(), plan->b.get(), a.raw(), plan->a.get(), &zero, c.raw(),
        plan->c.get(), c.mutable_raw(), plan->c.get(), &plan->algorithm, workspace, plan->workspace, context.stream());
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) return check(status, "cublasLtMatmul");
    plan->found = false;
  }
  gemm_naive(a, transpose_a, b, transpose_b, bias, c);
}

}  // namespace

void gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias, Tensor& c) {
  DEMI_CHECK(a.dtype() != DType::F64, "[matmul] fp64 exists on the CPU only: cast to fp32 or move to the CPU");
  if (a.size(transpose_a ? 0 : 1) == 0) return gemm_naive(a, transpose_a, b, transpose_b, bias, c);
  if (!bias.defined()) return multiply(a, transpose_a, b, transpose_b, {}, c);
  if (c.dtype() == DType::F32) {
    if (adds_bias(bias, c)) return multiply(a, transpose_a, b, transpose_b, bias, c);
    multiply(a, transpose_a, b, transpose_b, {}, c);
    return add_bias(c, bias, c);
  }
  // The sum is made in FP32 here, and rounded once.
  const memory::Scope scope(memory::Category::Workspace);
  Tensor wide = Tensor::empty(c.shape(), DType::F32, c.device());
  multiply(a, transpose_a, b, transpose_b, {}, wide);
  add_bias(wide, bias, c);
}

GemmEngine gemm_engine(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& bias,
                       const Tensor& c) {
  if (a.size(transpose_a ? 0 : 1) == 0) return {"naive", false};
  const Tensor out = bias.defined() && c.dtype() != DType::F32 ? Tensor::empty(c.shape(), DType::F32, c.device()) : c;
  const bool inside = adds_bias(bias, c);
  const Plan plan = make_plan(problem_of(a, transpose_a, b, transpose_b, inside, out),
                              inside ? bias.data<float>() : nullptr, Context::get(c.device()).cublaslt());
  if (!plan.found) return {"naive", false};
  const auto setting = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
    CHECK_CUBLAS(cublasLtMatmulAlgoConfigGetAttribute(&plan.algorithm, attribute, &value, sizeof value, nullptr));
    return value;
  };
  uint64_t flags = 0;
  CHECK_CUBLAS(cublasLtMatmulAlgoCapGetAttribute(&plan.algorithm, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags,
                                                 sizeof flags, nullptr));
  return {fmt::format("cuBLASLt algorithm {}, tile {}, stages {}, cluster {}, split-k {}",
                      setting(CUBLASLT_ALGO_CONFIG_ID, int32_t{0}), setting(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t{0}),
                      setting(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t{0}),
                      setting(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t{0}),
                      std::max(1, setting(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{0}))),
          (flags & (CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32)) != 0};
}

}  // namespace demi::kernels::cuda
