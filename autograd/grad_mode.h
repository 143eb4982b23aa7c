// Whether operations are recorded for backward. On by default, per thread.
#pragma once

namespace demi {

bool grad_enabled();

// Nothing is recorded while one of these lives: results have no history and keep nothing alive.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

}  // namespace demi
