// Learning-rate schedules, in closed form. A schedule follows real steps: one that the loss scaler skipped does not
// advance it. Its values are a table on the device, and step() is one small kernel that looks at the last step's
// outcome there.
#pragma once

#include <vector>

#include "demi/optim/optimizer.h"

namespace demi::optim {

class Schedule {
 public:
  // lr_at[k] is the learning rate after k steps; past the end the last one stays. Sets the optimizer's to lr_at[0].
  Schedule(Optimizer& optimizer, std::vector<double> lr_at);
  // After each optimizer step (or once an epoch: then the table counts epochs).
  void step();
  double lr_at(int64_t step) const;
  int64_t position() const;  // real steps so far; waits for the device

 private:
  Optimizer& optimizer_;
  std::vector<double> values_;
  Tensor table_;
};

// The tables. `warmup_steps` rise linearly to the peak first: step k has lr (k + 1) / (warmup_steps + 1); the rest is
// the schedule proper, in whose formulas k counts from 0 and n is total_steps - warmup_steps.

struct CosineOptions {  // lr_min + (lr - lr_min) (1 + cos(pi k / n)) / 2, Loshchilov and Hutter, 2017
  double lr = 0.1;
  int64_t total_steps = 0, warmup_steps = 0;
  double lr_min = 0;
};
std::vector<double> cosine(const CosineOptions& options);

struct StepDecayOptions {  // lr gamma^floor(k / step_size)
  double lr = 0.1;
  int64_t total_steps = 0, step_size = 1, warmup_steps = 0;
  double gamma = 0.1;
};
std::vector<double> step_decay(const StepDecayOptions& options);

struct OneCycleOptions {  // Smith and Topin, 2018, with cosine annealing, as PyTorch does it
  double max_lr = 0.1;
  int64_t total_steps = 0;
  double pct_start = 0.3, div_factor = 25, final_div_factor = 1e4;
};
std::vector<double> one_cycle(const OneCycleOptions& options);

// lr at every step, after the warm-up.
std::vector<double> constant(double lr, int64_t warmup_steps = 0);

}  // namespace demi::optim
