// A checkpoint: everything that a resumed training needs to go on as if it had never stopped: masters and buffers bit
// for bit, the optimizer's moments and counters, the schedule's position, the loss scaler, the random state, and notes
// of the caller's (epoch, batch, options). One safetensors file, written atomically.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "demi/amp/grad_scaler.h"
#include "demi/nn/module.h"
#include "demi/optim/optimizer.h"

namespace demi::nn {

using Notes = std::map<std::string, std::string>;

// The parts of a training that a checkpoint covers.
struct Training {
  Module& model;
  optim::Optimizer& optimizer;
  amp::GradScaler& scaler;
};

// Waits for the device. Call it between update() and the next forward.
void save_checkpoint(const std::filesystem::path& path, const Training& training, const Notes& notes);

// Checks all before it changes anything: a damaged file, another model, another optimizer, each is an Error that names
// what does not fit. Gives the notes back.
Notes load_checkpoint(const std::filesystem::path& path, const Training& training);
// Weights alone, for a model: from a safetensors file of PyTorch's names and layouts (nn/torch_state.h), or the model's
// part of a checkpoint. Errors name the file; nothing is changed then.
void load_weights(const std::filesystem::path& path, Module& model);
// To a safetensors file of PyTorch's names and layouts, atomically.
void export_weights(const std::filesystem::path& path, const Module& model);

Notes read_notes(const std::filesystem::path& path);  // alone, to build the model that the file is of

}  // namespace demi::nn
