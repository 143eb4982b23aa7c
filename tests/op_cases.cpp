#include "op_cases.h"

#include "demi/amp/cast.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/random.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/batch_norm.h"
#include "demi/nn/functional/conv2d.h"
#include "demi/nn/functional/dropout.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/nn/functional/layer_norm.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/functional/pool.h"
#include "demi/nn/functional/reduce.h"
#include "demi/nn/functional/shape.h"
#include "demi/nn/functional/softmax.h"

namespace demi::test {
namespace {

using In = const std::vector<Variable>&;
using Out = std::vector<Variable>;
using Cases = std::vector<OpCase>;

std::string joined(const std::vector<int>& axes) {
  std::string text;
  for (int a : axes) text += "_" + std::to_string(a);
  return text.empty() ? "_all" : text;
}

void add_arithmetic(Cases& all) {
  struct Named {
    const char* name;
    Variable (*op)(const Variable&, const Variable&);
    double low_b, roundings = 1;
  };
  struct Shapes {
    const char* name;
    Shape a, b;
  };
  for (const Named& n : {Named{"add", add, -1}, Named{"sub", sub, -1}, Named{"mul", mul, -1}, Named{"div", div, 0.4, 2},
                         Named{"maximum", maximum, -1}})
    for (const Shapes& s :
         {Shapes{"same", {3, 7}, {3, 7}}, Shapes{"odd", {1023}, {1023}}, Shapes{"both_ways", {2, 1, 4}, {3, 1}},
          Shapes{"scalar", {5, 3}, {}}, Shapes{"row", {6, 5}, {5}}, Shapes{"left", {5}, {3, 2, 5}}})
      all.push_back({fmt::format("{}_{}", n.name, s.name),
                     {{s.a}, {s.b, n.low_b, 1.5}},
                     [op = n.op](In in) { return Out{op(in[0], in[1])}; },
                     1,
                     true,
                     n.roundings});
  all.push_back({"add_to_itself", {{{4, 3}}}, [](In in) { return Out{in[0] + in[0]}; }});
  all.push_back({"maximum_of_equals", {{{4, 3}}}, [](In in) { return Out{maximum(in[0], in[0])}; }});
  all.push_back({"scale", {{{5, 9}}}, [](In in) { return Out{scale(in[0], -2.5)}; }});
}

void add_elementwise(Cases& all) {
  struct Named {
    const char* name;
    std::function<Variable(const Variable&)> op;
    double low, high;
  };
  for (const Named& n : std::vector<Named>{{"neg", neg, -2, 2},
                                           {"abs", demi::abs, -2, 2},
                                           {"square", square, -2, 2},
                                           {"sqrt", demi::sqrt, 0.1, 3},
                                           {"rsqrt", rsqrt, 0.3, 3},
                                           {"reciprocal", reciprocal, 0.5, 2},
                                           {"exp", demi::exp, -3, 2},
                                           {"log", demi::log, 0.2, 4},
                                           {"pow_3", [](const Variable& x) { return pow(x, 3); }, -2, 2},
                                           {"pow_2", [](const Variable& x) { return pow(x, 2); }, -2, 2},
                                           {"pow_1", [](const Variable& x) { return pow(x, 1); }, -2, 2},
                                           {"pow_0", [](const Variable& x) { return pow(x, 0); }, -2, 2},
                                           {"pow_half", [](const Variable& x) { return pow(x, 0.5); }, 0.1, 3},
                                           {"pow_negative", [](const Variable& x) { return pow(x, -1.5); }, 0.5, 2},
                                           {"clamp", [](const Variable& x) { return clamp(x, -0.5, 0.75); }, -1, 1},
                                           {"relu", relu, -1, 1},
                                           {"leaky_relu", [](const Variable& x) { return leaky_relu(x, 0.3); }, -1, 1},
                                           {"tanh", demi::tanh, -3, 3},
                                           {"sigmoid", sigmoid, -4, 4},
                                           {"silu", silu, -4, 4},
                                           {"gelu", gelu, -4, 4},
                                           {"softplus", softplus, -4, 4}})
    all.push_back({n.name, {{{7, 37}, n.low, n.high}}, [op = n.op](In in) { return Out{op(in[0])}; }});
  all.push_back({"softplus_of_large", {{{40}, -30, 30}}, [](In in) { return Out{softplus(in[0])}; }});
  all.push_back({"cast_up_and_down",
                 {{{5, 5}}},
                 [](In in) { return Out{cast(cast(in[0], DType::BF16), DType::F32)}; },
                 1,
                 false});
}

void add_reductions(Cases& all) {
  struct Named {
    const char* name;
    Variable (*op)(const Variable&, const std::vector<int>&, bool);
  };
  for (const Named& n : {Named{"sum", sum}, Named{"mean", mean}, Named{"amax", amax}}) {
    for (const std::vector<int>& axes : std::vector<std::vector<int>>{{}, {0}, {1}, {2}, {-1}, {0, 1}, {0, 2}, {1, 2}})
      for (const bool keepdim : {false, true})
        all.push_back(
            {fmt::format("{}{}{}", n.name, axes == std::vector{-1} ? "_last" : joined(axes), keepdim ? "_keepdim" : ""),
             {{{3, 5, 4}}},
             [=](In in) { return Out{n.op(in[0], axes, keepdim)}; }});
    all.push_back({fmt::format("{}_long", n.name), {{{3, 2100}}}, [=](In in) { return Out{n.op(in[0], {1}, false)}; }});
    all.push_back({fmt::format("{}_tall", n.name), {{{2100, 3}}}, [=](In in) { return Out{n.op(in[0], {0}, false)}; }});
    all.push_back({fmt::format("{}_scalar", n.name), {{{}}}, [=](In in) { return Out{n.op(in[0], {}, false)}; }});
  }
  all.push_back({"reshape", {{{3, 4, 5}}}, [](In in) { return Out{reshape(in[0], {6, -1})}; }});
  all.push_back({"flatten", {{{3, 4, 5}}}, [](In in) { return Out{flatten(in[0])}; }});
  for (const std::vector<int>& axes : std::vector<std::vector<int>>{{2, 0, 1}, {0, 2, 1}, {-1, -2, -3}})
    all.push_back({fmt::format("permute_{}{}{}", axes[0] + 3, axes[1] + 3, axes[2] + 3), {{{3, 4, 5}}}, [=](In in) {
                     return Out{permute(in[0], axes)};
                   }});
  for (const int axis : {0, 1, 2}) {
    all.push_back({fmt::format("softmax_{}", axis),
                   {{{3, 5, 4}, -4, 4}},
                   [=](In in) { return Out{softmax(in[0], axis)}; },
                   1,
                   true,
                   2});
    all.push_back({fmt::format("log_softmax_{}", axis),
                   {{{3, 5, 4}, -4, 4}},
                   [=](In in) { return Out{log_softmax(in[0], axis)}; },
                   1,
                   true,
                   2});
  }
  all.push_back({"softmax_long", {{{3, 1500}, -4, 4}}, [](In in) { return Out{softmax(in[0])}; }, 1, true, 2});
  all.push_back({"log_softmax_long", {{{3, 1500}, -4, 4}}, [](In in) { return Out{log_softmax(in[0])}; }, 1, true, 2});
}

void add_products(Cases& all) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      all.push_back({fmt::format("matmul_{}{}", ta ? 't' : 'n', tb ? 't' : 'n'),
                     {{ta ? Shape{7, 5} : Shape{5, 7}}, {tb ? Shape{3, 7} : Shape{7, 3}}},
                     [=](In in) { return Out{matmul(in[0], in[1], ta, tb)}; }});
  all.push_back({"matmul_large", {{{65, 130}}, {{130, 72}}}, [](In in) { return Out{matmul(in[0], in[1])}; }, 4});
  all.push_back({"matmul_one", {{{1, 1}}, {{1, 1}}}, [](In in) { return Out{matmul(in[0], in[1])}; }});
  all.push_back({"linear", {{{5, 9}}, {{4, 9}}, {{4}}}, [](In in) { return Out{linear(in[0], in[1], in[2])}; }});
  all.push_back({"linear_no_bias", {{{5, 8}}, {{16, 8}}}, [](In in) { return Out{linear(in[0], in[1])}; }});
  all.push_back(
      {"linear_rank_3", {{{2, 3, 9}}, {{4, 9}}, {{4}}}, [](In in) { return Out{linear(in[0], in[1], in[2])}; }});
  all.push_back({"linear_rank_1", {{{9}}, {{4, 9}}, {{4}}}, [](In in) { return Out{linear(in[0], in[1], in[2])}; }});
}

void add_convolutions(Cases& all) {
  struct Convolution {
    const char* name;
    Shape x, w;
    Conv2dOptions options;
    bool bias;
  };
  for (const Convolution& c : std::vector<Convolution>{
           {"3x3", {2, 6, 7, 3}, {4, 3, 3, 3}, {.padding = {1, 1}}, true},
           {"3x3_no_bias", {2, 8, 8, 16}, {16, 3, 3, 16}, {.padding = {1, 1}}, false},
           {"3x3_no_padding", {1, 5, 5, 2}, {3, 3, 3, 2}, {}, false},
           {"1x1", {3, 4, 5, 6}, {8, 1, 1, 6}, {}, true},
           {"1x1_stride_2", {2, 5, 6, 8}, {16, 1, 1, 8}, {.stride = {2, 2}}, false},
           {"3x3_stride_2", {2, 9, 8, 4}, {8, 3, 3, 4}, {.stride = {2, 2}, .padding = {1, 1}}, false},
           {"7x7_stem", {2, 17, 17, 3}, {8, 7, 7, 3}, {.stride = {2, 2}, .padding = {3, 3}}, false},
           {"uneven", {2, 9, 11, 3}, {5, 2, 5, 3}, {.stride = {3, 1}, .padding = {0, 2}, .dilation = {2, 1}}, true},
           {"stride_past_kernel", {1, 9, 9, 3}, {2, 2, 1, 3}, {.stride = {3, 4}}, true},
           {"dilation", {1, 10, 10, 4}, {4, 3, 3, 4}, {.padding = {2, 2}, .dilation = {2, 2}}, false},
           {"groups", {2, 6, 6, 8}, {4, 3, 3, 4}, {.padding = {1, 1}, .groups = 2}, true},
           {"depthwise", {2, 7, 7, 6}, {6, 3, 3, 1}, {.stride = {2, 1}, .padding = {1, 1}, .groups = 6}, true},
           {"depthwise_wide", {1, 5, 5, 3}, {6, 3, 3, 1}, {.padding = {1, 1}, .groups = 3}, false},
           {"one_output", {2, 3, 3, 5}, {4, 3, 3, 5}, {}, true}}) {
    std::vector<OpInput> inputs{{c.x}, {c.w}};
    if (c.bias) inputs.push_back({Shape{c.w[0]}});
    all.push_back({std::string("conv2d_") + c.name, inputs,
                   [c](In in) { return Out{conv2d(in[0], in[1], c.bias ? in[2] : Variable{}, c.options)}; }, 5});
  }
}

void add_pools(Cases& all) {
  struct Pool {
    const char* name;
    Shape x;
    Pool2dOptions options;
  };
  for (const Pool& p :
       std::vector<Pool>{{"2x2", {2, 6, 8, 3}, {}},
                         {"3x3_overlapping", {2, 7, 7, 5}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
                         {"3x3_stride_1", {1, 6, 5, 8}, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}}},
                         {"uneven", {2, 9, 7, 17}, {.kernel = {5, 2}, .stride = {1, 3}, .padding = {2, 0}}},
                         {"left_over", {1, 8, 8, 3}, {.kernel = {3, 3}, .stride = {3, 3}}},
                         {"gaps", {1, 9, 9, 2}, {.kernel = {2, 2}, .stride = {3, 3}}}}) {
    all.push_back(
        {std::string("max_pool2d_") + p.name, {{p.x}}, [p](In in) { return Out{max_pool2d(in[0], p.options)}; }});
    all.push_back(
        {std::string("avg_pool2d_") + p.name, {{p.x}}, [p](In in) { return Out{avg_pool2d(in[0], p.options)}; }});
    all.push_back({std::string("avg_pool2d_inside_") + p.name, {{p.x}}, [p](In in) {
                     Pool2dOptions o = p.options;
                     o.count_include_pad = false;
                     return Out{avg_pool2d(in[0], o)};
                   }});
  }
  all.push_back({"global_avg_pool", {{{3, 4, 5, 6}}}, [](In in) { return Out{global_avg_pool(in[0])}; }});
}

void add_norms(Cases& all) {
  struct Norm {
    bool training, affine, residual, relu, buffers;
    Shape x;
  };
  std::vector<Norm> norms;
  for (const bool training : {true, false})
    for (const bool affine : {true, false})
      for (const bool residual : {true, false})
        for (const bool relu : {true, false}) norms.push_back({training, affine, residual, relu, true, {3, 2, 4, 5}});
  norms.push_back({true, true, false, false, false, {17, 6}});
  norms.push_back({true, true, true, true, true, {64, 3}});
  norms.push_back({false, true, false, true, true, {17, 65}});
  for (const Norm& n : norms) {
    const Shape channels{n.x[-1]};
    std::vector<OpInput> inputs{{n.x, -1, 3}};
    if (n.residual) inputs.push_back({n.x});
    if (n.affine) inputs.insert(inputs.end(), {{channels, 0.5, 1.5, true}, {channels, -1, 1, true}});
    all.push_back({fmt::format("batch_norm_{}{}{}{}_{}x{}", n.training ? "train" : "eval", n.affine ? "_affine" : "",
                               n.residual ? "_residual" : "", n.relu ? "_relu" : "", n.x.numel() / n.x[-1], n.x[-1]),
                   inputs,
                   [n](In in) {
                     BatchNormArguments a{.training = n.training, .momentum = 0.3, .relu = n.relu};
                     if (n.residual) a.residual = in[1];
                     if (n.affine) a.weight = in[in.size() - 2], a.bias = in[in.size() - 1];
                     if (n.buffers) {
                       const Variable& x = in[0];
                       std::vector<double> mean, var;
                       for (int64_t i = 0; i < x.size(-1); ++i) {
                         mean.push_back(1 + 0.1 * static_cast<double>(i % 7));
                         var.push_back(0.5 + 0.2 * static_cast<double>(i % 5));
                       }
                       const DType wide = x.dtype() == DType::F64 ? DType::F64 : DType::F32;
                       auto buffer = [&](const std::vector<double>& values) {
                         const Tensor t = Tensor::from(values, {x.size(-1)});
                         Buffer b(kernels::cast(t, DType::F32).to(x.device()));
                         if (wide == DType::F64) b.tensor() = t;  // finite differences need it
                         return b;
                       };
                       a.running_mean = buffer(mean);
                       a.running_var = buffer(var);
                     }
                     const Variable y = batch_norm(in[0], a);
                     return n.buffers ? Out{y, a.running_mean.tensor(), a.running_var.tensor()} : Out{y};
                   },
                   4});
  }
  all.push_back({"batch_norm_weight_only",
                 {{{6, 4}}, {{4}, 0.5, 1.5, true}},
                 [](In in) { return Out{batch_norm(in[0], {.weight = in[1]})}; },
                 4});
  all.push_back({"batch_norm_bias_only",
                 {{{6, 4}}, {{4}, -1, 1, true}},
                 [](In in) { return Out{batch_norm(in[0], {.bias = in[1]})}; },
                 4});
  for (const Shape& x : {Shape{4, 10}, Shape{2, 3, 33}, Shape{3, 1500}, Shape{1, 2}}) {
    const Shape c{x[-1]};
    const auto name = fmt::format("{}x{}", x.numel() / x[-1], x[-1]);
    all.push_back({"layer_norm_" + name,
                   {{x, -1, 3}, {c, 0.5, 1.5, true}, {c, -1, 1, true}},
                   [](In in) { return Out{layer_norm(in[0], in[1], in[2])}; },
                   4});
    all.push_back({"layer_norm_plain_" + name, {{x, -1, 3}}, [](In in) { return Out{layer_norm(in[0])}; }, 4});
  }
}

void add_dropouts(Cases& all) {
  for (const double p : {0.0, 0.1, 0.5, 1.0})
    all.push_back({fmt::format("dropout_{:.0f}", 100 * p), {{{9, 111}}}, [p](In in) {
                     manual_seed(3);  // the same mask on every device and at every call
                     return Out{dropout(in[0], p)};
                   }});
}

void add_losses(Cases& all) {
  struct Named {
    const char* name;
    Reduction reduction;
  };
  for (const Named& r :
       {Named{"mean", Reduction::Mean}, Named{"sum", Reduction::Sum}, Named{"none", Reduction::None}}) {
    for (const double smoothing : {0.0, 0.1, 1.0})
      for (const int64_t classes : {2, 10, 1000})
        all.push_back({fmt::format("cross_entropy_{}_{:.0f}_of_{}", r.name, 100 * smoothing, classes),
                       {{{5, classes}, -6, 6}},
                       [=](In in) {
                         std::vector<int64_t> labels{0, classes - 1, 1, 0, classes / 2};
                         return Out{cross_entropy(in[0], Tensor::from(labels, {5}, in[0].device()),
                                                  {.reduction = r.reduction, .label_smoothing = smoothing})};
                       }});
    all.push_back({fmt::format("mse_loss_{}", r.name), {{{5, 7}}, {{5, 7}}}, [=](In in) {
                     return Out{mse_loss(in[0], in[1], r.reduction)};
                   }});
  }
}

}  // namespace

const std::vector<OpCase>& op_cases() {
  static const Cases all = [] {
    Cases cases;
    add_arithmetic(cases);
    add_elementwise(cases);
    add_reductions(cases);
    add_products(cases);
    add_convolutions(cases);
    add_pools(cases);
    add_norms(cases);
    add_dropouts(cases);
    add_losses(cases);
    return cases;
  }();
  return all;
}

}  // namespace demi::test
