// The parts of a benchmark: what an op reads (Input), what it is at one shape and precision (Spec), under which names
// it can be asked for (Op), and the check of its results that comes before any timing.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/tensor.h"

namespace demi::bench {

enum class Precision : uint8_t { Fp32, Tf32, Fp16, Bf16 };
constexpr Precision kPrecisions[] = {Precision::Fp32, Precision::Tf32, Precision::Fp16, Precision::Bf16};
std::string_view name_of(Precision precision);
Precision precision_from_name(std::string_view name);  // throws Error for an unknown name
DType stored_dtype(Precision precision);               // what is stored: TF32 is stored as FP32

Float32Math math_of(Precision precision);

using Tensors = std::vector<Tensor>;

struct Input {
  enum class Fill : uint8_t {
    Normal,    // mean a, standard deviation b
    Uniform,   // in [a, b)
    Whole,     // whole numbers in [0, b)
    Constant,  // a
    Derived,   // filled by Spec::derive
  };
  Shape shape;
  DType dtype;
  Fill fill = Fill::Normal;
  double a = 0, b = 1;
  bool batched = true;  // its first axis is that of the batch
  bool odd = false;     // starts one element past what is aligned
};

struct Spec {
  std::vector<Input> inputs;
  std::function<void(Tensors& in)> derive;  // fills the Derived inputs from the others
  // Changes operands for a second check, of a result that the drawn ones never give.
  std::function<void(Tensors& in)> plant;
  std::function<Tensors(Tensors& in)> run;  // the op; an input that it changes is one of its results
  // Instead of run, for operands that are to have state of their own (layers, say).
  std::function<std::function<Tensors(Tensors&)>(const Tensors& in)> bind;
  // The same from operands in a wider dtype. Empty: run itself, whose kernels exist in FP64 on the CPU.
  std::function<Tensors(Tensors& in)> reference;
  bool host_reference = false;         // `reference` reads FP64 and integers in the memory of the host
  bool by_rows = false;                // row i of the results depends on row i of the batched inputs alone
  bool tensor_cores = false;           // an op that 16-bit and TF32 operands bring to tensor cores
  double bytes = 0, flops = 0;         // that one call must move and compute
  double limit = 0;                    // of the relative error; 0: the precision's, FP32's for results kept in FP32
  std::function<std::string()> label;  // known once the op has run: the engine
};

// What one benchmark of an op is asked to be.
struct Request {
  std::string op, shape;  // shape: as in the name
  Precision precision = Precision::Fp32;
  Device device;
  DType dtype() const { return stored_dtype(precision); }
};

// How an op's shapes are written, and which of a set's shapes it takes.
enum class Kind : uint8_t { Elements, Rows, Images, Records, Logits, Weights, Matrix, Convolution };

struct Op {
  std::string name;
  Kind kind = Kind::Elements;
  std::vector<Precision> precisions;         // that mean something for it
  std::function<Spec(const Request&)> spec;  // throws Error for a shape that is impossible
  bool cuda_only = false;
};
const std::vector<Op>& ops();              // all of them
const Op* find_op(std::string_view name);  // nullptr: there is none

// One line of the results: <op>/<dtype>/<shape>/<cold|warm>.
struct Case {
  Request request;
  const Op* op = nullptr;
  bool cold = false;
  bool tensor_cores = false;  // as its spec says
  std::string name() const;
};

Tensor allocate(const Input& input, Device device);  // starts where `odd` says; not filled
// Operands of a spec, drawn by Philox: those of different sets differ.
Tensors draw(const Spec& spec, Device device, uint64_t set);
std::function<Tensors(Tensors&)> bound(const Spec& spec, const Tensors& in);

// Cold: calls rotate through sets of operands and results that together are this many times the cache, though through
// no more sets than this: an op that would need more is measured warm alone.
constexpr double kColdFactor = 3, kMostSets = 512;

struct Difference {
  double norm = 0;   // ||y - reference|| / ||reference||
  double worst = 0;  // the largest |y_i - reference_i| / (|reference_i| + root mean square of the reference)
};
// Over all elements, in FP64 on the CPU; infinite where there is a NaN.
Difference difference(const Tensor& y, const Tensor& reference);

// One wrong element of millions hardly moves the norm: it has a limit of its own. The furthest of 150,000 right ones
// was seen at 12 times the norm's error (FP32 weight gradients by cuDNN), at 5 times the norm's limit.
constexpr double kWorstFactor = 10;

struct Verdict {
  Difference error;      // the largest ones of the results
  std::string failure;   // the first result beyond its limit, in words; empty: none is
  size_t footprint = 0;  // bytes of the operands and results of one call
  bool passed() const { return failure.empty(); }
};
// Runs the op on one set of operands and compares with a reference of higher precision: FP64 on the CPU; for 16-bit and
// TF32 operands that are too many for that, IEEE FP32 on the device from the same operands. What is too large in FP32
// is compared on the last rows of the batch (Spec::by_rows), or computed anew for these rows.
Verdict verify(const Spec& spec, const Request& request);

}  // namespace demi::bench
