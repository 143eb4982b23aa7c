// Weights that come from PyTorch and go back. demi's layers have PyTorch's names; what differs is where channels lie:
//   Conv2d.weight                     demi [K, R, S, C]     PyTorch [K, C, R, S]
//   Linear.weight on flattened images demi [K, (H, W, C)]   PyTorch [K, (C, H, W)]   (LinearConfig::channels)
// All else, Linear and batch norm included, is the same in both.
#pragma once

#include <map>
#include <string>

#include "demi/nn/module.h"

namespace demi::nn {

using StateDict = std::map<std::string, Tensor>;

// What state_dict() of the same model gives in PyTorch, and load_state_dict(strict=True) takes there: FP32, counts
// int64, copies on the host.
StateDict to_torch(const Module& model);

// Takes such a dictionary, values in FP32, FP16, BF16 or FP64 (rounded to FP32). Every name may begin with "module."
// (DataParallel), and num_batches_tracked may be missing (old files; it starts at 0). All is checked before anything is
// written: a missing or unknown name, another shape or no reals is an Error that names the tensor, with shapes in
// PyTorch's layout.
void load_torch(Module& model, const StateDict& tensors);

}  // namespace demi::nn
