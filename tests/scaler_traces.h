// Traces of PyTorch's GradScaler, replayed through demi's public API and compared.
//
// A file is JSON: {"source": ..., "traces": [{"config", "optimizers", "steps"}, ...]}. A trace is one loss scaler over
// SGD optimizers that each hold one FP32 weight, which starts at 1; numbers may be "inf", "-inf" and "nan".
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "demi/amp/grad_scaler.h"
#include "demi/optim/sgd.h"

namespace demi::test {

struct ScalerTrace {
  struct Step {
    // What happens, for each optimizer: its true gradient, none where it got none, and whether unscale() comes before
    // step(); then the max-norm of clipping, and what update() is given.
    std::vector<std::optional<double>> grads;
    std::vector<bool> unscale;
    std::optional<double> clip, new_scale;
    // What must be there afterwards; stepped is none where there was no gradient.
    double scale = 0;
    int tracker = 0;
    std::vector<double> weights;
    std::vector<std::optional<bool>> stepped;
  };
  amp::GradScalerOptions config;
  std::vector<optim::SGDOptions> optimizers;
  std::vector<Step> steps;
};

// Throws Error, naming the file and the place in it, for what is not of the format.
std::vector<ScalerTrace> read_scaler_traces(const std::filesystem::path& path);
std::vector<ScalerTrace> parse_scaler_traces(const std::string& text, const std::string& name);

enum class ReplayBy { Eager, Graph };

// Replays one trace: "" when all is equal, else the first difference: step, field and both values. Scale, tracker and
// stepped must be equal, weights within limit * max(1, |w|). By graph (CUDA): an optimizer's first gradient comes in an
// eager step; every other step is a replay of the graph captured for its kind.
std::string replay(const ScalerTrace& trace, Device device, ReplayBy by = ReplayBy::Eager, double limit = 2e-6);

}  // namespace demi::test
