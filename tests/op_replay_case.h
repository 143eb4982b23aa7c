// One case of an op case file while it runs: its attributes, its inputs as Variables, and the judging of what comes
// out.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "demi/autograd/engine.h"
#include "demi/kernels/permute.h"
#include "op_replay.h"

namespace demi::test {

// Thrown for a case that demi does not cover: it counts as skipped.
class NotCovered : public Error {
 public:
  using Error::Error;
};

// How a tensor of the file (PyTorch's layout) lies in demi: images and filters with the channels last.
enum class Layout { Same, ChannelsLast };

struct Limits {
  double fp32, fp16, bf16;
};

class ReplayedCase {
 public:
  ReplayedCase(const OpCaseFile& file, const nlohmann::json& c, Device device, DType dtype)
      : file_(file), case_(c), device_(device), dtype_(dtype) {}

  Device device() const { return device_; }
  DType dtype() const { return dtype_; }
  std::vector<std::string> failures;

  // The attribute, or `otherwise` where it is missing or null.
  template <typename T>
  T attribute(const char* name, T otherwise) const {
    const auto attributes = case_.find("attrs");
    if (attributes == case_.end()) return otherwise;
    const auto it = attributes->find(name);
    if (it == attributes->end() || it->is_null()) return otherwise;
    if constexpr (requires { otherwise.push_back(otherwise[0]); })
      if (!it->is_array() && !it->is_string()) return T{it->template get<typename T::value_type>()};
    return it->template get<T>();
  }
  bool is_string(const char* name) const {
    return case_.contains("attrs") && case_["attrs"].contains(name) && case_["attrs"][name].is_string();
  }
  // {height, width} of an attribute that may be one number for both.
  std::array<int64_t, 2> pair(const char* name, std::array<int64_t, 2> otherwise) const;
  // Skips the case unless the attribute is missing, null or `only`.
  template <typename T>
  void covers_only(const char* name, T only) const {
    if (attribute<T>(name, only) != only) throw NotCovered(fmt::format("attribute '{}' is not covered", name));
  }

  // A tensor of the file by the name that `part` ("inputs", "outputs", "grads", "weights", ...) gives it, on the host;
  // undefined where the part does not have it.
  Tensor stored(const char* part, const std::string& name) const;
  std::vector<std::string> names(const char* part) const;

  // An input on the device: reals in `dtype`. One whose gradient the case knows becomes a leaf; finish() compares it.
  Variable input(const std::string& name, Layout layout = Layout::Same) { return input(name, layout, dtype_); }
  Variable input(const std::string& name, Layout layout, DType dtype);

  // Compares the outputs' first, runs backward from it where the case has gradients, and compares those.
  void finish(const Variable& y, Layout layout, const Limits& limits);
  // Compares one tensor with what the file expects of it.
  void expect(const char* part, const std::string& name, const Tensor& actual, Layout layout, double limit);
  double limit(const Limits& limits) const {
    return dtype_ == DType::F16 ? limits.fp16 : dtype_ == DType::BF16 ? limits.bf16 : limits.fp32;
  }
  // Notes everything that the file expects and that was not compared.
  void note_what_was_not_judged();
  // What the format leaves out in 16 bits.
  void need_not_judge(const char* part, const std::string& name) { judged_.insert({part, name}); }
  // The same as expect() for resnet18_steps: the norm of the difference over the norm.
  void expect_norm(const char* part, const std::string& name, const Tensor& actual, Layout layout, double limit);

 private:
  struct Leaf {
    std::string name;
    Layout layout;
    Variable variable;
  };
  void compare(const std::string& what, const Tensor& actual, const Tensor& expected, double smallest_scale, bool norm,
               double limit);

  const OpCaseFile& file_;
  const nlohmann::json& case_;
  Device device_;
  DType dtype_;
  std::vector<Leaf> leaves_;
  std::set<std::pair<std::string, std::string>> judged_;
};

// The ops, by name; nullptr for one that is not known.
using OpReplay = void (*)(ReplayedCase&);
OpReplay op_replay(const std::string& op);

}  // namespace demi::test
