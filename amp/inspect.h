// Inspector: what a training step really did in mixed precision. Attached to a model it watches this thread's
// operations and says, for each layer and operation, which dtypes it read and wrote, what was cast for it and whether
// its weight's compute copy was there; and of the gradients, how their magnitudes are distributed and what FP16 made or
// would make of them. It also names the operation that produced the first value that was not finite.
//
//   amp::Inspector inspector(model);   // watches until it is destroyed
//   train_one_step();
//   fmt::print("{}\n", inspector.table());
//
// It reads every result and gradient once more and keeps what it counted until reset(): a step that is watched is
// slower, and a long training is not for it. Of inspectors that are nested the inner one watches alone. Where none is
// attached an operation pays for the test of one pointer. Gradients are seen as backward computes them: with a
// GradScaler they are the scaled ones, which is what FP16 has to hold.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "demi/autograd/observer.h"
#include "demi/autograd/parameter.h"
#include "demi/kernels/value_counts.h"

namespace demi::amp {

class Inspector : private Observer {
 public:
  // model: anything with named_modules() and named_parameters(), as nn::Module has.
  template <typename Model>
  explicit Inspector(const Model& model);
  ~Inspector() override;
  Inspector(const Inspector&) = delete;
  Inspector& operator=(const Inspector&) = delete;

  // All calls of one operation in one layer with the same dtypes.
  struct Operation {
    std::string layer, op;      // "layer1.0.conv1", "conv2d"; "(model)" and "(step)" where no layer has a name for it
    std::vector<DType> inputs;  // of those that are given: data, then parameters
    DType output = DType::F32;
    int64_t calls = 0;
    // Casts of data made for it, their gradients' way back included; bytes read and written. (Those of parameters are
    // copies, below.)
    int64_t casts = 0, cast_bytes = 0;
    int64_t copies_used = 0;  // compute copies of parameters that were there, without a cast
    int64_t copies_made = 0;  // those that had to be cast from the masters first
    std::optional<DType> gradient_dtype, weight_gradient_dtype;  // unset where there was none
    kernels::ValueCounts gradient;                               // of the output
    kernels::ValueCounts weight_gradient;                        // of the parameters
  };
  std::vector<Operation> operations() const;  // in the order of their first call; waits for the device

  struct NonFinite {
    std::string layer, op;
    bool in_backward = false;
    std::string what;  // "the result", "the gradient of weight", "the gradient of input 0"
  };
  // The first operation, in the order in which they ran, that produced an infinity or a NaN.
  std::optional<NonFinite> first_non_finite() const;

  std::string table() const;  // for people
  std::string json() const;   // the same for programs, histograms whole
  void reset();               // forgets what was seen

 private:
  struct Row {
    Operation seen;
    std::vector<std::string> parameter_of_input;  // "weight"; empty for data
    Tensor gradient, weight_gradient;             // counters on the device
  };
  struct Event {
    const Row* row;  // a cast's: of the operation that it was made for, once there is one
    bool in_backward;
    std::string what;
    Tensor found;  // int32 flag
  };
  void forward(const char* op, const std::vector<Variable>& inputs, const Tensor& y, uint64_t id) override;
  void backward(const char* op, uint64_t id, const Tensor& dy, const std::vector<Tensor>& gradients) override;
  void compute_copy(const ParameterState& parameter, DType dtype, bool fresh) override;
  void enter(const void* object) override { scopes_.push_back(object); }
  void leave() override {
    if (!scopes_.empty()) scopes_.pop_back();
  }

  void attach();
  std::string current_layer() const;
  void check(const Row* row, bool in_backward, std::string what, const Tensor& x);

  std::unordered_map<const void*, std::string> names_;  // of modules and ParameterStates
  std::vector<const void*> scopes_;                     // innermost last
  std::deque<Row> rows_;                                // their addresses stay
  std::unordered_map<uint64_t, Row*> row_of_;           // by the operation's id, casts too
  std::deque<Event> events_;
  Operation pending_;  // casts and copies since the last operation: made for the next one
  std::vector<uint64_t> pending_ids_;
  size_t events_placed_ = 0;  // events before have their row
  Observer* before_ = nullptr;
};

template <typename Model>
Inspector::Inspector(const Model& model) {
  for (const auto& [name, module] : model.named_modules()) names_[module] = name.empty() ? "(model)" : name;
  for (const auto& [name, parameter] : model.named_parameters()) names_[&parameter.parameter()] = name;
  attach();
}

}  // namespace demi::amp
