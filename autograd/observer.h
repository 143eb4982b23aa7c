// Observer: watches one thread's operations, as they are recorded and as their gradients arrive. amp::Inspector is one.
// Where none is attached, each event costs the test of a pointer.
#pragma once

#include <cstdint>
#include <vector>

#include "demi/autograd/variable.h"

namespace demi {

class Observer {
 public:
  virtual ~Observer() = default;
  // `op` made y from inputs. id: the same number comes back in backward(); 0 when there will be none.
  virtual void forward(const char* op, const std::vector<Variable>& inputs, const Tensor& y, uint64_t id) = 0;
  // dy, the gradient of operation `id`'s output, has become gradients, one an input (undefined where none is needed).
  virtual void backward(const char* op, uint64_t id, const Tensor& dy, const std::vector<Tensor>& gradients) = 0;
  // A parameter's 16-bit compute copy is about to be used. fresh: it is there already; else masters are cast for it.
  virtual void compute_copy(const ParameterState& parameter, DType dtype, bool fresh) = 0;
  // The operations from here to leave() belong to an object, a module say.
  virtual void enter(const void* object) = 0;
  virtual void leave() = 0;
};

Observer* observer();  // of this thread; nullptr when none is attached
void set_observer(Observer* observer);

// enter() and leave() around a scope.
class ObserverScope {
 public:
  explicit ObserverScope(const void* object) : observer_(observer()) {
    if (observer_) observer_->enter(object);
  }
  ~ObserverScope() {
    if (observer_ && observer() == observer_) observer_->leave();
  }
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;

 private:
  Observer* observer_;
};

}  // namespace demi
