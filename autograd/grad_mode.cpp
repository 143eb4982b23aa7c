#include "demi/autograd/grad_mode.h"

namespace demi {
namespace {
thread_local bool recording = true;
}

bool grad_enabled() { return recording; }
NoGrad::NoGrad() : before_(recording) { recording = false; }
NoGrad::~NoGrad() { recording = before_; }

}  // namespace demi
