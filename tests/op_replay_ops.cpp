// How each op of an op case file is said in demi.
#include <limits>

#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/fill.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/batch_norm.h"
#include "demi/nn/functional/conv2d.h"
#include "demi/nn/functional/elementwise.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/loss.h"
#include "demi/nn/functional/pool.h"
#include "demi/nn/functional/reduce.h"
#include "demi/nn/resnet.h"
#include "demi/nn/torch_state.h"
#include "demi/optim/adam.h"
#include "demi/optim/clip.h"
#include "demi/optim/lr_schedule.h"
#include "demi/optim/sgd.h"
#include "op_replay_case.h"

namespace demi::test {
namespace {

constexpr Limits kProducts{2e-5, 1e-3, 8e-3};  // conv2d, linear, matmul, batch_norm
constexpr Limits kOthers{5e-6, 1e-3, 8e-3};
constexpr double kFp32State = kOthers.fp32;  // optimizers, clipping and schedules: FP32 in every dtype
constexpr auto Images = Layout::ChannelsLast;

void conv2d_case(ReplayedCase& c) {
  Conv2dOptions o;
  o.stride = c.pair("stride", {1, 1});
  o.dilation = c.pair("dilation", {1, 1});
  o.groups = c.attribute<int64_t>("groups", 1);
  c.covers_only<std::string>("padding_mode", "zeros");
  const Variable x = c.input("x", Images), weight = c.input("weight", Images);
  if (c.is_string("padding")) {
    const auto padding = c.attribute<std::string>("padding", "valid");
    for (size_t i = 0; i < 2 && padding == "same"; ++i) {
      const int64_t total = o.dilation[i] * (weight.size(static_cast<int>(i) + 1) - 1);
      if (total % 2 != 0) throw NotCovered("padding 'same' that is not symmetric");
      o.padding[i] = total / 2;
    }
  } else {
    o.padding = c.pair("padding", {0, 0});
  }
  c.finish(conv2d(x, weight, c.input("bias"), o), Images, kProducts);
}

void batch_norm_case(ReplayedCase& c) {
  BatchNormArguments a;
  a.weight = c.input("weight", Layout::Same, DType::F32);
  a.bias = c.input("bias", Layout::Same, DType::F32);
  const Variable mean = c.input("running_mean", Layout::Same, DType::F32),
                 var = c.input("running_var", Layout::Same, DType::F32);
  if (mean.defined()) a.running_mean = Buffer(mean.tensor().clone());
  if (var.defined()) a.running_var = Buffer(var.tensor().clone());
  a.training = c.attribute("training", false);
  a.momentum = c.attribute("momentum", 0.1);
  a.eps = c.attribute("eps", 1e-5);
  c.finish(batch_norm(c.input("x", Images), a), Images, kProducts);
  if (mean.defined()) c.expect("outputs", "running_mean", a.running_mean.tensor(), Layout::Same, c.limit(kProducts));
  if (var.defined()) c.expect("outputs", "running_var", a.running_var.tensor(), Layout::Same, c.limit(kProducts));
}

Pool2dOptions pool_options(const ReplayedCase& c) {
  Pool2dOptions o;
  o.kernel = c.pair("kernel", c.pair("kernel_size", {2, 2}));
  o.stride = c.pair("stride", o.kernel);
  o.padding = c.pair("padding", {0, 0});
  o.count_include_pad = c.attribute("count_include_pad", true);
  c.covers_only("ceil_mode", false);
  c.covers_only("return_indices", false);
  c.covers_only<int64_t>("divisor_override", 0);
  if (c.pair("dilation", {1, 1}) != std::array<int64_t, 2>{1, 1}) throw NotCovered("pooling with dilation");
  return o;
}
void max_pool2d_case(ReplayedCase& c) { c.finish(max_pool2d(c.input("x", Images), pool_options(c)), Images, kOthers); }
void avg_pool2d_case(ReplayedCase& c) { c.finish(avg_pool2d(c.input("x", Images), pool_options(c)), Images, kOthers); }
void global_avg_pool_case(ReplayedCase& c) { c.finish(global_avg_pool(c.input("x", Images)), Layout::Same, kOthers); }
void relu_case(ReplayedCase& c) { c.finish(relu(c.input("x")), Layout::Same, kOthers); }
void leaky_relu_case(ReplayedCase& c) {
  c.finish(leaky_relu(c.input("x"), c.attribute("negative_slope", 0.01)), Layout::Same, kOthers);
}

void linear_case(ReplayedCase& c) {
  c.finish(linear(c.input("x"), c.input("weight"), c.input("bias")), Layout::Same, kProducts);
}
void matmul_case(ReplayedCase& c) { c.finish(matmul(c.input("a"), c.input("b")), Layout::Same, kProducts); }

Reduction reduction_of(const ReplayedCase& c) {
  const auto name = c.attribute<std::string>("reduction", "mean");
  if (name == "mean") return Reduction::Mean;
  if (name == "sum") return Reduction::Sum;
  if (name == "none") return Reduction::None;
  throw NotCovered("reduction '" + name + "'");
}
void cross_entropy_case(ReplayedCase& c) {
  c.covers_only<int64_t>("ignore_index", -100);
  const Variable y =
      cross_entropy(c.input("logits"), c.input("labels").tensor(),
                    {.reduction = reduction_of(c), .label_smoothing = c.attribute("label_smoothing", 0.0)});
  c.finish(y, Layout::Same, kOthers);
}
void mse_loss_case(ReplayedCase& c) {
  c.finish(mse_loss(c.input("x"), c.input("target"), reduction_of(c)), Layout::Same, kOthers);
}

template <Variable (*op)(const Variable&, const Variable&)>
void binary_case(ReplayedCase& c) {
  c.covers_only("alpha", 1.0);
  c.finish(op(c.input("a"), c.input("b")), Layout::Same, kOthers);
}

template <Variable (*op)(const Variable&, const std::vector<int>&, bool)>
void reduce_case(ReplayedCase& c) {
  const auto axes = c.attribute("dims", c.attribute("dim", std::vector<int>{}));
  c.finish(op(c.input("x"), axes, c.attribute("keepdim", false)), Layout::Same, kOthers);
}

void argmax_case(ReplayedCase& c) {
  const Variable x = c.input("x");
  const auto axis = c.attribute("dim", std::vector<int>{});  // none: of all elements
  const bool keepdim = c.attribute("keepdim", false);
  Tensor y = axis.empty() ? argmax(x.tensor().flatten(), 0) : argmax(x, axis[0], keepdim);
  if (axis.empty() && keepdim) y = y.reshape(std::vector<int64_t>(static_cast<size_t>(x.tensor().rank()), 1));
  c.expect("outputs", "y", y, Layout::Same, 0);
}

// Gives the parameter this gradient through autograd: that of the product of both.
void backward_to(const Parameter& w, const Tensor& gradient) {
  const Variable y = mul(w, gradient);
  backward(y, kernels::full(y.shape(), 1.0, y.dtype(), y.device()));
}

template <typename Make>
void optimizer_case(ReplayedCase& c, Make make) {
  c.covers_only("maximize", false);
  const Tensor grads = c.input("grads", Layout::Same, DType::F32).tensor();
  Parameter w(c.input("w", Layout::Same, DType::F32).tensor().clone());
  auto optimizer = make(std::vector<Parameter>{w});
  Tensor trajectory = Tensor::empty(grads.shape(), DType::F32, c.device());
  for (int64_t t = 0; t < grads.size(0); ++t) {
    optimizer->zero_grad();
    backward_to(w, grads.narrow(t, 1).reshape(w.shape()));
    optimizer->step();
    trajectory.narrow(t, 1).reshape(w.shape()).copy_from(w.master());
  }
  c.expect("outputs", "trajectory", trajectory, Layout::Same, kFp32State);
}
void sgd_case(ReplayedCase& c) {
  const optim::SGDOptions o{.lr = c.attribute("lr", 1e-3),
                            .momentum = c.attribute("momentum", 0.0),
                            .dampening = c.attribute("dampening", 0.0),
                            .weight_decay = c.attribute("weight_decay", 0.0),
                            .nesterov = c.attribute("nesterov", false)};
  optimizer_case(c, [&](const std::vector<Parameter>& w) { return std::make_unique<optim::SGD>(w, o); });
}
template <typename Optimizer>
void adam_case(ReplayedCase& c) {
  c.covers_only("amsgrad", false);
  const auto betas = c.attribute("betas", std::vector<double>{0.9, 0.999});
  const double usual_decay = std::is_same_v<Optimizer, optim::AdamW> ? 0.01 : 0.0;
  const optim::AdamOptions o{.lr = c.attribute("lr", 1e-3),
                             .beta1 = betas.at(0),
                             .beta2 = betas.at(1),
                             .eps = c.attribute("eps", 1e-8),
                             .weight_decay = c.attribute("weight_decay", usual_decay)};
  optimizer_case(c, [&](const std::vector<Parameter>& w) { return std::make_unique<Optimizer>(w, o); });
}

void clip_grad_norm_case(ReplayedCase& c) {
  if (c.attribute("norm_type", 2.0) != 2.0) throw NotCovered("another norm than L2");
  std::vector<std::string> names = c.names("inputs");
  std::vector<Parameter> parameters;
  std::vector<Tensor> gradients;
  for (const std::string& name : names) {
    gradients.push_back(c.input(name, Layout::Same, DType::F32).tensor());
    parameters.emplace_back(Tensor::zeros(gradients.back().shape(), DType::F32, c.device()));
  }
  optim::SGD optimizer(parameters, {.lr = 0.1});
  for (size_t i = 0; i < names.size(); ++i) backward_to(parameters[i], gradients[i]);
  const Tensor norm = optim::clip_grad_norm(optimizer, c.attribute("max_norm", 1.0)),
               expected = c.stored("outputs", "norm");
  if (expected.defined() && expected.numel() == 1)
    c.expect("outputs", "norm", norm.reshape(expected.shape()), Layout::Same, kFp32State);
  for (size_t i = 0; i < names.size(); ++i)
    c.expect("outputs", names[i], parameters[i].grad(), Layout::Same, kFp32State);
}

void schedule_case(ReplayedCase& c) {
  const auto kind = c.attribute<std::string>("kind", "");
  const int64_t steps = c.stored("outputs", "lr").numel();
  const double lr = c.attribute("lr", 0.1);
  std::vector<double> table;
  if (kind == "cosine") {
    table = optim::cosine(
        {.lr = lr, .total_steps = c.attribute<int64_t>("T_max", steps), .lr_min = c.attribute("eta_min", 0.0)});
  } else if (kind == "step") {
    table = optim::step_decay({.lr = lr,
                               .total_steps = steps,
                               .step_size = c.attribute<int64_t>("step_size", 1),
                               .gamma = c.attribute("gamma", 0.1)});
  } else if (kind == "one_cycle") {
    c.covers_only<std::string>("anneal", "cosine");
    c.covers_only("three_phase", false);
    table = optim::one_cycle({.max_lr = c.attribute("max_lr", lr),
                              .total_steps = c.attribute<int64_t>("total_steps", steps),
                              .pct_start = c.attribute("pct_start", 0.3),
                              .div_factor = c.attribute("div_factor", 25.0),
                              .final_div_factor = c.attribute("final_div_factor", 1e4)});
  } else {
    throw NotCovered("schedule '" + kind + "'");
  }
  Parameter w(Tensor::zeros({1}, DType::F32, c.device()));
  optim::SGD optimizer(std::vector<Parameter>{w}, {.lr = lr});
  optim::Schedule schedule(optimizer, table);
  std::vector<float> seen;
  for (int64_t t = 0; t < steps; ++t) {
    seen.push_back(static_cast<float>(optimizer.lr()));
    optimizer.zero_grad();
    backward_to(w, Tensor::zeros({1}, DType::F32, c.device()));
    optimizer.step();
    schedule.step();
  }
  c.expect("outputs", "lr", Tensor::from(seen, {steps}), Layout::Same, kFp32State);
}

void resnet18_steps_case(ReplayedCase& c) {
  const bool fp32 = c.dtype() == DType::F32;
  const Tensor x = c.input("x", Layout::Same, DType::F32).tensor(), labels = c.input("labels").tensor();
  const Tensor stem = c.stored("weights", "conv1.weight");
  const double channels = stem.defined() ? static_cast<double>(stem.size(0)) : 64;
  nn::ResNet net(nn::ResNetConfig{.width = c.attribute("width", channels) / 64});
  nn::StateDict weights;
  for (const std::string& name : c.names("weights")) weights[name] = c.stored("weights", name);
  nn::load_torch(net, weights);
  net.to(c.device());
  optim::SGD optimizer(net.parameters(), {.lr = c.attribute("lr", 0.05),
                                          .momentum = c.attribute("momentum", 0.9),
                                          .weight_decay = c.attribute("weight_decay", 0.0)});
  amp::GradScaler scaler(
      {.init_scale = 1024, .growth_interval = std::numeric_limits<int>::max(), .enabled = !fp32});  // a fixed scale
  const int64_t steps = c.attribute<int64_t>("steps", x.size(0)), samples = x.size(1);
  auto images = [&](int64_t t) {
    return kernels::to_channels_last(x.narrow(t, 1).reshape({samples, x.size(2), x.size(3), x.size(4)}));
  };
  // Limits: PyTorch's own spread decides what can be compared in 16 bits.
  const double loss_limit = c.limit({2e-5, 1e-1, 1e-1}), logit_limit = c.limit({2e-5, 5e-3, 3e-2}), later_limit = 1e-4;
  std::vector<float> losses;
  for (int64_t t = 0; t < steps; ++t) {
    optimizer.zero_grad();
    Variable loss;
    {
      const amp::Autocast region(c.dtype());
      const Variable logits = net(images(t));
      loss = nn::cross_entropy(logits, labels.narrow(t, 1).flatten());
      if (t == 0)
        c.expect_norm("outputs", "first_logits", kernels::cast(logits.tensor(), DType::F32), Layout::Same, logit_limit);
    }
    losses.push_back(loss.item<float>());
    backward(scaler.scale(loss));
    if (t == 0 && fp32)
      for (const auto& [name, p] : net.named_parameters())
        c.expect_norm("grads", name, p.grad(), Layout::ChannelsLast, later_limit);
    scaler.step(optimizer);
    scaler.update();
  }
  c.expect_norm("outputs", "losses", Tensor::from(losses, {steps}), Layout::Same, loss_limit);
  if (!fp32) {
    for (const char* part : {"grads", "weights_after"})
      for (const std::string& name : c.names(part)) c.need_not_judge(part, name);
    return c.need_not_judge("outputs", "eval_logits_after");
  }
  for (const auto& [name, tensor] : nn::to_torch(net))
    if (is_floating(tensor.dtype())) c.expect_norm("weights_after", name, tensor, Layout::Same, later_limit);
  net.eval();
  const NoGrad off;
  c.expect_norm("outputs", "eval_logits_after", net(images(0)).tensor(), Layout::Same, later_limit);
}

}  // namespace

OpReplay op_replay(const std::string& op) {
  static const std::map<std::string, OpReplay> all{{"conv2d", conv2d_case},
                                                   {"batch_norm", batch_norm_case},
                                                   {"max_pool2d", max_pool2d_case},
                                                   {"avg_pool2d", avg_pool2d_case},
                                                   {"global_avg_pool", global_avg_pool_case},
                                                   {"relu", relu_case},
                                                   {"leaky_relu", leaky_relu_case},
                                                   {"linear", linear_case},
                                                   {"matmul", matmul_case},
                                                   {"cross_entropy", cross_entropy_case},
                                                   {"mse_loss", mse_loss_case},
                                                   {"add", binary_case<add>},
                                                   {"sub", binary_case<sub>},
                                                   {"mul", binary_case<mul>},
                                                   {"sum", reduce_case<sum>},
                                                   {"mean", reduce_case<mean>},
                                                   {"amax", reduce_case<amax>},
                                                   {"argmax", argmax_case},
                                                   {"sgd", sgd_case},
                                                   {"adam", adam_case<optim::Adam>},
                                                   {"adamw", adam_case<optim::AdamW>},
                                                   {"clip_grad_norm", clip_grad_norm_case},
                                                   {"schedule", schedule_case},
                                                   {"resnet18_steps", resnet18_steps_case}};
  const auto it = all.find(op);
  return it == all.end() ? nullptr : it->second;
}

}  // namespace demi::test
