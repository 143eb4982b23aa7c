#include "demi/nn/checkpoint.h"

#include <nlohmann/json.hpp>

#include "demi/kernels/random.h"
#include "demi/nn/safetensors.h"
#include "demi/nn/torch_state.h"

namespace demi::nn {
namespace {

using Json = nlohmann::json;
constexpr const char* kFormat = "demi-checkpoint-2";  // 1 had no num_batches_tracked

bool is_checkpoint(const Safetensors& file) {
  const auto format = file.metadata.find("format");
  return format != file.metadata.end() && format->second == kFormat;
}

Safetensors read(const std::filesystem::path& path) {
  Safetensors file = read_safetensors(path);
  const auto format = file.metadata.find("format");
  DEMI_CHECK(is_checkpoint(file) || format == file.metadata.end() || !format->second.starts_with("demi-checkpoint-"),
             "{}: a checkpoint of another version of demi: it is a {}, this one reads {}", path.string(),
             format->second, kFormat);
  DEMI_CHECK(is_checkpoint(file), "{}: weights or something else, not a checkpoint of a training", path.string());
  DEMI_CHECK(file.checksummed, "{}: the checkpoint has lost its checksum: it is damaged", path.string());
  return file;
}

// The tensors under a prefix, the prefix taken off.
std::map<std::string, Tensor> part(const Safetensors& file, const std::string& prefix) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, t] : file.tensors)
    if (name.starts_with(prefix)) tensors[name.substr(prefix.size())] = t;
  return tensors;
}

Notes notes_of(const Safetensors& file) { return Json::parse(file.metadata.at("notes")).get<Notes>(); }

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Training& training, const Notes& notes) {
  Safetensors file;
  for (const auto& [name, t] : training.model.state()) file.tensors["model." + name] = t;
  for (const auto& [name, t] : training.optimizer.state()) file.tensors["optimizer." + name] = t.to(Device::cpu());
  const RandomState& random = random_state(training.optimizer.device());
  file.tensors["random.step"] = random.step.to(Device::cpu());
  file.metadata = {{"format", kFormat},
                   {"notes", Json(notes).dump(-1, ' ', false, Json::error_handler_t::replace)},
                   {"scaler", Json(training.scaler.state_dict()).dump()},
                   {"random", Json{{"seed", random.seed}, {"call", random.call}}.dump()}};
  write_safetensors(path, file);
}

Notes load_checkpoint(const std::filesystem::path& path, const Training& training) {
  const Safetensors file = read(path);
  try {
    // All is read and checked before anything is written.
    const auto scaler = Json::parse(file.metadata.at("scaler")).get<std::map<std::string, double>>();
    DEMI_CHECK(scaler.empty() != training.scaler.enabled(),
               "saved {} a loss scaler, resumed {} one: use the same precision (and the same DEMI_AMP)",
               scaler.empty() ? "without" : "with", training.scaler.enabled() ? "with" : "without");
    for (const auto& [name, value] : training.scaler.state_dict())
      DEMI_CHECK(scaler.contains(name), "the saved loss scaler has no '{}'", name);
    const Json random = Json::parse(file.metadata.at("random"));
    const auto seed = random.at("seed").get<uint64_t>(), call = random.at("call").get<uint64_t>();
    const Tensor random_step = file.tensors.at("random.step");
    RandomState& state = random_state(training.optimizer.device());
    DEMI_CHECK(random_step.shape() == state.step.shape() && random_step.dtype() == state.step.dtype(),
               "the saved random state is {} {}, not {} {}", random_step.dtype(), random_step.shape(),
               state.step.dtype(), state.step.shape());
    const Notes notes = notes_of(file);
    const auto model = part(file, "model."), optimizer = part(file, "optimizer.");
    training.model.check_state(model);  // first: it names the layer that differs
    training.optimizer.check_state(optimizer);

    training.model.load_state(model);
    training.optimizer.load_state(optimizer);
    if (training.scaler.enabled()) training.scaler.load_state_dict(scaler);
    state.seed = seed;
    state.call = call;
    state.step.copy_from(random_step);
    return notes;
  } catch (const Json::exception& e) {
    fail("{}: the checkpoint's metadata are damaged ({})", path.string(), e.what());
  } catch (const std::out_of_range&) {
    fail("{}: the checkpoint's metadata are incomplete", path.string());
  } catch (const Error& e) {
    fail("{}: {}", path.string(), e.what());
  }
}

void load_weights(const std::filesystem::path& path, Module& model) {
  const Safetensors file = read_safetensors(path);
  try {
    if (is_checkpoint(file))
      model.load_state(part(file, "model."));
    else
      load_torch(model, file.tensors);
  } catch (const Error& e) {
    fail("{}: {}", path.string(), e.what());
  }
}

void export_weights(const std::filesystem::path& path, const Module& model) {
  // "pt" is what the safetensors package writes, and some readers ask for.
  write_safetensors(path, {to_torch(model), {{"format", "pt"}}});
}

Notes read_notes(const std::filesystem::path& path) {
  const Safetensors file = read(path);
  try {
    return notes_of(file);
  } catch (const std::out_of_range&) {
    fail("{}: the checkpoint's metadata are incomplete", path.string());
  } catch (const Json::exception& e) {
    fail("{}: the checkpoint's metadata are damaged ({})", path.string(), e.what());
  }
}

}  // namespace demi::nn
