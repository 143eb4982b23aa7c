// One training from start to end: model, optimizer, schedule and scaler, the loop, the test, checkpoints.
#pragma once

#include <csignal>
#include <memory>

#include "demi/amp/grad_scaler.h"
#include "demi/amp/inspect.h"
#include "demi/examples/cifar_resnet/options.h"
#include "demi/examples/cifar_resnet/progress.h"
#include "demi/examples/cifar_resnet/report.h"
#include "demi/nn/checkpoint.h"
#include "demi/optim/lr_schedule.h"
#include "demi/optim/sgd.h"

namespace demi::examples {

class Trainer {
 public:
  Trainer(const Options& options, data::Source& source);

  struct Tested {
    double loss, accuracy;  // the mean over the test set; a share of it
  };
  Tested test();
  void export_weights() const { nn::export_weights(options_.export_to, *model_); }

  int64_t parameter_count() const { return model_->parameters().numel(); }
  // Trains what is left of the epochs, or up to --stop-after; `log` may be null. False: Ctrl-C ended it, after saving.
  bool run(Progress& progress, MetricsLog* log);
  const Run& results() const { return results_; }
  int64_t done_epochs() const { return epoch_; }
  std::string inspection_path() const;
  std::string save_path() const;  // empty: nothing is saved but on Ctrl-C

 private:
  struct Totals {  // of the epoch so far, on the device: reading them waits for it
    Tensor loss, skipped;
    int64_t images = 0;
    double seconds = 0;  // of earlier processes in this epoch
  };

  bool train_epoch(Progress& progress);  // false: interrupted
  void step(const data::Batch* first, const data::Batch* last);
  EpochMetrics finish_epoch(double seconds);
  void tell_inspection(Progress& progress);
  void save();
  void resume();
  void start_totals();

  Options options_;
  data::Source& source_;
  std::unique_ptr<nn::ResNet> model_;
  std::unique_ptr<optim::SGD> sgd_;
  std::unique_ptr<optim::Schedule> schedule_;
  std::unique_ptr<amp::GradScaler> scaler_;
  DType compute_;  // FP16 and BF16: what autocast regions run in
  data::LoadOptions load_;
  int64_t epoch_ = 0, next_batch_ = 0;  // epochs done; batches done in the one after
  Totals totals_;
  int64_t steps_ = 0;                          // of this process
  std::unique_ptr<amp::Inspector> inspector_;  // from the step of --inspect on
  Run results_;
};

extern volatile std::sig_atomic_t interrupted;  // the signal: SIGINT (Ctrl-C) or SIGTERM

}  // namespace demi::examples
