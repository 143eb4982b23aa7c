// Softmax cross-entropy with integer labels and label smoothing s over C classes:
//   loss_n = (1 - s) (lse_n - x[n, label_n]) + s / C sum_c (lse_n - x[n, c]),   lse_n = log sum_c exp x[n, c]
// and its gradient  dx[n, c] = g_n (softmax(x)[n, c] - (1 - s) [c = label_n] - s / C).
// A sure prediction has a loss of log(1 + a little) and a gradient of 1 - a little - 1. To keep the digits of the
// little, lse is held as maximum and log_sum = log1p(the rest), and softmax - 1 comes from expm1.
#pragma once

#include "demi/kernels/dispatch.h"

namespace demi::kernels {

DEMI_BACKENDS(void cross_entropy(const Tensor& logits, const Tensor& labels, double smoothing, Reduction reduction,
                                 Tensor& loss, Tensor& log_sum);
              void cross_entropy_backward(const Tensor& dy, const Tensor& logits, const Tensor& labels,
                                          const Tensor& log_sum, double smoothing, Reduction reduction,
                                          Tensor& dlogits);
              void count_correct(const Tensor& logits, const Tensor& labels, Tensor& count);)

struct CrossEntropyResult {
  Tensor loss;     // FP32 (FP64 for FP64), [] for mean and sum, [N] for none
  Tensor log_sum;  // likewise, [N]: log sum_c exp(x[n, c] - max_c x[n, c])
};

// logits: [N, C] floating, labels: [N] int64, 0 <= smoothing <= 1. The mean of no samples is an Error. So is a label
// outside [0, C); it names sample and label. The CPU throws it at once, CUDA reports it through the error word (the row
// then counts as NaN in the loss and 0 in the gradient).
inline CrossEntropyResult cross_entropy(const Tensor& logits, const Tensor& labels, double smoothing,
                                        Reduction reduction) {
  check_same_device("cross_entropy", logits, labels);
  DEMI_CHECK(logits.rank() == 2 && logits.size(1) > 0 && labels.shape() == Shape{logits.size(0)},
             "[cross_entropy] takes logits [N, C] and labels [N], not {} and {}", logits.shape(), labels.shape());
  DEMI_CHECK(labels.dtype() == DType::I64, "[cross_entropy] labels are int64, not {}", labels.dtype());
  DEMI_CHECK(smoothing >= 0 && smoothing <= 1, "[cross_entropy] label smoothing is between 0 and 1, not {}", smoothing);
  DEMI_CHECK(logits.size(0) > 0 || reduction != Reduction::Mean,
             "[cross_entropy] the mean over an empty batch does not exist");
  const DType wide = logits.dtype() == DType::F64 ? DType::F64 : DType::F32;
  CrossEntropyResult r;
  r.loss = Tensor::empty(reduction == Reduction::None ? labels.shape() : Shape{}, wide, logits.device());
  r.log_sum = Tensor::empty(labels.shape(), wide, logits.device());
  if (logits.numel() > 0)
    DEMI_DISPATCH(logits, cross_entropy, logits, labels, smoothing, reduction, r.loss, r.log_sum);
  else
    r.loss.zero();
  return r;
}

// dy: the loss's shape -> logits' shape and dtype, rounded once from FP32.
inline Tensor cross_entropy_backward(const Tensor& dy, const Tensor& logits, const Tensor& labels,
                                     const Tensor& log_sum, double smoothing, Reduction reduction) {
  check_same_device("cross_entropy_backward", dy, logits);
  check_same_device("cross_entropy_backward", labels, logits);
  check_same_device("cross_entropy_backward", log_sum, logits);
  Tensor dlogits = Tensor::empty(logits.shape(), logits.dtype(), logits.device());
  if (logits.numel() > 0)
    DEMI_DISPATCH(logits, cross_entropy_backward, dy, logits, labels, log_sum, smoothing, reduction, dlogits);
  return dlogits;
}

// count (int64, one element) += the samples whose largest logit (the first of equals) is the label.
inline void count_correct(const Tensor& logits, const Tensor& labels, Tensor& count) {
  check_same_device("count_correct", logits, labels);
  check_same_device("count_correct", logits, count);
  DEMI_CHECK(logits.rank() == 2 && labels.shape() == Shape{logits.size(0)} && labels.dtype() == DType::I64 &&
                 count.numel() == 1 && count.dtype() == DType::I64,
             "[count_correct] takes logits [N, C], int64 labels [N] and an int64 count");
  if (logits.numel() > 0) DEMI_DISPATCH(logits, count_correct, logits, labels, count);
}

}  // namespace demi::kernels
