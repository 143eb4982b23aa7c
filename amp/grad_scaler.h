// GradScaler: dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", ICLR 2018), with the interface and
// the behaviour of PyTorch's.
//
// FP16 holds nothing below 2^-24, and gradients are often smaller. The loss, and with it every gradient, is multiplied
// by a scale S before backward; the optimizer divides by S in FP32. S should be as large as it can be without a
// gradient becoming infinite, and that changes during training. So: when a step finds an infinite or NaN gradient it is
// skipped and S is halved; after `growth_interval` steps in a row without one S is doubled.
//
//   backward(scaler.scale(loss));     // gradients are S times the true ones
//   scaler.unscale(optimizer);        // only to look at or clip them; else step() divides on the fly
//   scaler.step(optimizer);           // or skips it
//   scaler.update();                  // S for the next step
//
// Scale, growth tracker and the overflow flags live in device memory. None of these four calls waits for the device,
// and all can be captured in a CUDA graph. (PyTorch's step() reads the flag back.) The rest of a gradient's way:
//
//   autograd/flat_storage.h   its place: FP16 as backward computed it; FP32 once it is unscaled or added to
//   optim/optimizer.h         the step: every kernel of it reads the flag and writes nothing where it is set, so
//                             weights, compute copies, moments and counters stay, and batch norm's statistics go back
//                             to what they were before the forward pass
//   kernels/cuda/sgd.cu       the division by S, in FP32 registers, in the kernel that updates the weight
//   kernels/loss_scale.h      the rule for S
//
// What differs from PyTorch: all of a scaler's optimizers are on one device; S never reaches 0 or infinity; a skipped
// step leaves nothing changed; too many overflows in a row are an error.
#pragma once

#include <map>
#include <string>

#include "demi/amp/overflow_witness.h"
#include "demi/autograd/variable.h"
#include "demi/optim/optimizer.h"

namespace demi::amp {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2.0;   // above 1
  double backoff_factor = 0.5;  // between 0 and 1
  int growth_interval = 2000;
  bool enabled = true;
  // So many overflows in a row are an Error that names the step and the layer: no scale helps when the loss itself is
  // NaN. update() throws it on the CPU, on CUDA whatever next waits for the device or replays a graph. 0 never gives
  // up.
  int max_consecutive_overflows = 100;
};

class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});
  GradScaler(GradScaler&&) = default;  // moves only: copies would share the state in device memory
  GradScaler& operator=(GradScaler&&) = default;

  // loss * S, in FP32 whatever the loss is in: a scale of 65536 does not fit into FP16. (Nor does the gradient of an
  // FP16 loss, which is S. demi's losses are FP32.)
  Variable scale(const Variable& loss);
  // Moves the optimizer's gradients to FP32 storage, divided by S, and records whether all were finite before the
  // division. Clip them then. Once per update(), after the last micro-batch's backward.
  void unscale(optim::Optimizer& optimizer);
  // The optimizer's step, unless a gradient was not finite. Once per update(). Asking the outcome waits for the device.
  optim::StepOutcome step(optim::Optimizer& optimizer);
  // Adjusts S by what was found in any optimizer since the last update.
  void update();
  // Sets S and forgets what was found; the growth tracker stays. Overflows in a row are not counted here: a scale that
  // is set at every step is the caller's choice.
  void update(double new_scale);

  bool enabled() const { return options_.enabled; }
  double get_scale() const;    // 1 when disabled; waits for the device
  int growth_tracker() const;  // steps without overflow since the last change; waits for the device

  // scale, growth_factor, backoff_factor, growth_interval, growth_tracker; empty when disabled. Take it after update();
  // it waits for the device. A graph that was captured keeps its factors and interval: load first, then capture.
  std::map<std::string, double> state_dict() const;
  void load_state_dict(const std::map<std::string, double>& state);

 private:
  enum class Stage : uint8_t { Ready, Unscaled, Stepped };
  struct PerOptimizer {
    Stage stage = Stage::Ready;
    Tensor found_inf;  // int32 flag; undefined before gradients were looked at
    OverflowWitness::Parameters parameters;
  };
  void check_started(const char* call) const;
  void start(Device device);
  PerOptimizer& found_for(optim::Optimizer& optimizer);

  GradScalerOptions options_;
  double host_scale_;  // what scale_ starts from, until the first scale() knows the device
  int host_tracker_ = 0;
  Tensor scale_, tracker_, overflows_;
  // By the optimizer's list of parameters, which the entry keeps alive: an optimizer may end before update().
  std::map<const void*, PerOptimizer> per_optimizer_;
  OverflowWitness witness_;
};

}  // namespace demi::amp
