// Known faults of optimizers, clipping, accumulation and schedules: steps that did not happen and still left a trace,
// updates that are rounded away, elements that are left out.
#include <functional>
#include <memory>

#include "cases.h"
#include "demi/amp/autocast.h"
#include "demi/amp/grad_scaler.h"
#include "demi/autograd/engine.h"
#include "demi/kernels/adam.h"
#include "demi/kernels/sgd.h"
#include "demi/nn/functional/arithmetic.h"
#include "demi/nn/functional/linear.h"
#include "demi/nn/functional/shape.h"
#include "demi/optim/adam.h"
#include "demi/optim/clip.h"
#include "demi/optim/lr_schedule.h"
#include "demi/optim/sgd.h"

namespace demi::test {
namespace {

struct Kind {
  const char* name;
  std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Parameter>&, double lr)> make;
};
const Kind kKinds[] = {
    {"SGD", [](const auto& w, double lr) { return std::make_unique<optim::SGD>(w, optim::SGDOptions{.lr = lr}); }},
    {"momentum",
     [](const auto& w, double lr) {
       return std::make_unique<optim::SGD>(w, optim::SGDOptions{.lr = lr, .momentum = 0.9, .weight_decay = 0.01});
     }},
    {"Nesterov",
     [](const auto& w, double lr) {
       return std::make_unique<optim::SGD>(w, optim::SGDOptions{.lr = lr, .momentum = 0.9, .nesterov = true});
     }},
    {"Adam", [](const auto& w, double lr) { return std::make_unique<optim::Adam>(w, optim::AdamOptions{.lr = lr}); }},
    {"AdamW",
     [](const auto& w, double lr) {
       return std::make_unique<optim::AdamW>(w, optim::AdamOptions{.lr = lr, .weight_decay = 0.01});
     }},
};

class OptimizerFault : public FaultTest {
 protected:
  // Adds to the gradient of p, as backward would.
  void add_gradient(const Parameter& p, const Values& values, DType dtype = DType::F32) const {
    p.parameter().accumulate(tensor(values, p.shape(), dtype));
  }
  void start(amp::GradScaler& scaler) const { (void)scaler.scale(Variable(constant(1))); }
};
DEMI_ON_ALL_DEVICES(OptimizerFault);

// ---- Steps that did not happen

// Two good steps give the same, bit for bit, with overflows before and between them: weights, their 16-bit copies,
// moments, counters, the schedule.
TEST_P(OptimizerFault, SkippedStepThatLeavesATrace) {
  const int64_t n = 67;
  for (const Kind& kind : kKinds)
    for (const DType dtype : kTrainingDtypes)
      for (const bool unscale : {false, true}) {
        const auto train = [&](const Values& overflows) {  // one a step; 0 is none
          const Parameter w = parameter(noise(n), {n}), other = parameter(noise(6, 2), {2, 3});
          for (const DType copy : {DType::F16, DType::BF16}) (void)w.parameter().compute(copy);
          const auto optimizer = kind.make({w, other}, 0.5);
          optim::Schedule schedule(*optimizer, {0.25, 0.5, 0.125, 0.0625});
          amp::GradScaler scaler({.init_scale = 1024});
          start(scaler);
          uint64_t good = 0;
          for (size_t i = 0; i < overflows.size(); ++i) {
            const bool bad = overflows[i] != 0;
            Values g = rounded_to(dtype, noise(n, 10 + good)), h = rounded_to(dtype, noise(6, 20 + good));
            const double scale = scaler.get_scale();  // a power of two: scaling and unscaling round nothing
            for (double& v : g) v *= scale;
            for (double& v : h) v *= scale;
            if (bad) (i % 2 ? g.back() : g.front()) = overflows[i];
            optimizer->zero_grad();
            add_gradient(w, g, dtype);
            add_gradient(other, h, dtype);
            if (unscale) scaler.unscale(*optimizer);
            EXPECT_EQ(scaler.step(*optimizer).skipped(), bad) << kind.name << " " << name_of(dtype);
            scaler.update();
            schedule.step();
            good += !bad;
          }
          auto left = snapshot(optimizer->state());
          left["w"] = values_of(w.master());
          left["other"] = values_of(other.master());
          left["fp16"] = values_of(w.parameter().compute(DType::F16));
          left["bf16"] = values_of(w.parameter().compute(DType::BF16));
          EXPECT_EQ(left["fp16"], rounded_to(DType::F16, left["w"]));
          EXPECT_EQ(schedule.position(), 2);
          return left;
        };
        const auto straight = train({0, 0});
        EXPECT_EQ(train({kInf, 0, kNaN, -kInf, 0, kNaN}), straight)
            << kind.name << " " << name_of(dtype) << " " << unscale;
      }
}

// Adam's first real step has t = 1 however many were skipped, and the schedule follows real steps.
TEST_P(OptimizerFault, SkippedStepsThatCountInAdamOrTheSchedule) {
  for (const int skips : {0, 1, 3}) {
    const Parameter w = parameter({1}, {1});
    optim::Adam adam(std::vector{w}, {.lr = 0.01});
    amp::GradScaler scaler({.init_scale = 2});
    start(scaler);
    const auto step = [&](double gradient) {
      adam.zero_grad();
      add_gradient(w, {gradient});
      scaler.step(adam);
      scaler.update();
    };
    for (int i = 0; i < skips; ++i) step(kInf);
    step(0.5);
    EXPECT_NEAR(w.master().item<float>(), 0.99, 1e-7) << skips;  // counted: 0.99255863, 0.99418872
  }
  const Parameter w = parameter({1}, {1});
  optim::SGD sgd(std::vector{w}, {.lr = 1});
  Values warm_up;
  for (int k = 0; k < 20; ++k) warm_up.push_back(0.01 * k);
  optim::Schedule schedule(sgd, warm_up);
  amp::GradScaler scaler;
  start(scaler);
  for (int i = 0; i < 8; ++i) {
    sgd.zero_grad();
    add_gradient(w, {i < 3 ? kNaN : 1.0});
    EXPECT_EQ(scaler.step(sgd).skipped(), i < 3);
    scaler.update();
    schedule.step();
  }
  EXPECT_NEAR(sgd.lr(), 0.05, 1e-8);  // not 0.08
}

// ---- Clipping and accumulation

TEST_P(OptimizerFault, ClippingOfScaledOrOfNonFiniteGradients) {
  for (const DType dtype : kTrainingDtypes) {
    const Parameter a = parameter({0}, {1}), b = parameter({0, 0, 0}, {1, 3});
    optim::SGD sgd(std::vector{a, b}, {.lr = 1});
    amp::GradScaler scaler({.init_scale = 1024});
    start(scaler);
    const auto clipped = [&](double x, double y) {  // the norm; gradients 1024 (x, y) come from backward
      sgd.zero_grad();
      add_gradient(a, {1024 * x}, dtype);
      add_gradient(b, {0, 1024 * y, 0}, dtype);
      scaler.unscale(sgd);
      EXPECT_NE(error_of([&] { scaler.unscale(sgd); }).find("already been called"), std::string::npos);
      return static_cast<double>(optim::clip_grad_norm(sgd, 1.0).item<float>());
    };
    const auto finish = [&] {
      const bool skipped = scaler.step(sgd).skipped();
      scaler.update();
      return skipped;
    };
    EXPECT_NEAR(clipped(3, 4), 5, 1e-5);
    EXPECT_FALSE(finish());
    expect_close(values_of(a.master()), {-0.6}, 1e-6, 0, "clipped after unscaling");
    expect_close(values_of(b.master()), {0, -0.8, 0}, 1e-6, 0, "clipped after unscaling");
    EXPECT_NEAR(clipped(0.25, 0), 0.25, 1e-6);
    EXPECT_EQ(values_of(a.grad()), Values{0.25});  // short enough
    EXPECT_FALSE(finish());
    const Values before_a = values_of(a.master()), before_b = values_of(b.master());
    for (const double bad : {kInf, -kInf, kNaN}) {
      const double scale = scaler.get_scale();
      EXPECT_FALSE(std::isfinite(clipped(bad, 4)));
      EXPECT_EQ(values_of(b.grad())[1], 4 * 1024 / scale) << "no coefficient";
      EXPECT_TRUE(finish());
      EXPECT_EQ(scaler.get_scale(), scale / 2);
      EXPECT_EQ(values_of(a.master()), before_a);
      EXPECT_EQ(values_of(b.master()), before_b);
    }
    EXPECT_EQ(clipped(0, 0), 0);
    EXPECT_EQ(values_of(b.grad()), Values(3, 0)) << "no 0 / 0";
    EXPECT_FALSE(finish());
    EXPECT_EQ(values_of(b.master()), before_b);
  }
}

// Windows of `every` micro-batches, each with a mean gradient of 1: every window gives a gradient of 1, the last one of
// an epoch too, and nothing is left over for the next epoch. Then one bad micro-batch, anywhere, spoils its window,
// once.
TEST_P(OptimizerFault, LastWindowDividedByTheFullCountOrOverflowInPartOfAWindow) {
  for (const DType dtype : kTrainingDtypes)
    for (const int every : {1, 2, 4, 8})
      for (const int bad : {-1, 0, 1, 5}) {
        const int batches = 6;
        const Parameter w = parameter({0, 0}, {1, 2});
        optim::SGD sgd(std::vector{w}, {.lr = 1});
        amp::GradScaler scaler({.init_scale = 256});
        int steps = 0;
        for (int epoch = 0; epoch < 2; ++epoch)
          for (int first = 0; first < batches; first += every) {
            const int count = std::min(every, batches - first);
            sgd.zero_grad();
            for (int i = first; i < first + count; ++i) {
              const amp::Autocast region(dtype);
              const double x = epoch == 0 && i == bad ? kInf : 1;
              const Variable y = linear(tensor({1, x}, {1, 2}), w);
              backward(scaler.scale(scale(reshape(y, {}), 1.0 / count)));
            }
            const bool spoilt = epoch == 0 && bad >= first && bad < first + count;
            EXPECT_EQ(scaler.step(sgd).skipped(), spoilt);
            scaler.update();
            steps += !spoilt;
            expect_close(values_of(w.master()), Values(2, -steps), 2 * epsilon_of(dtype), 0,  // 1/6 and 1/3 are rounded
                         fmt::format("{}, windows of {}, at {}", dtype, every, first));
          }
        EXPECT_EQ(scaler.get_scale(), bad < 0 ? 256 : 128);
      }
}

// ---- Arithmetic

// 1e-4 is below half of a half's spacing near 1, and of a bfloat16's: without a master the weight would stay 1.
TEST_P(OptimizerFault, UpdatesRoundedAwayInSixteenBits) {
  for (const Kind& kind : kKinds)
    for (const DType dtype : {DType::F16, DType::BF16}) {
      const Parameter w = parameter({1}, {1});
      const auto optimizer = kind.make({w}, 1e-4);
      const bool averages = std::string(kind.name) == "momentum" || std::string(kind.name) == "Nesterov";
      const double end = averages ? 1 - 1e-4 * 910 : 0.99;  // 100 steps of lr, with momentum up to ten times as long
      for (int i = 0; i < 100; ++i) {
        optimizer->zero_grad();
        add_gradient(w, {1}, dtype);
        (void)w.parameter().compute(dtype);
        optimizer->step();
      }
      const Values master = values_of(w.master());
      EXPECT_NEAR(master[0], end, averages ? 2e-3 : 2e-4) << kind.name;
      EXPECT_EQ(values_of(w.parameter().compute(dtype)), rounded_to(dtype, master)) << kind.name;
    }
}

// eps = 1e-8 is 0 in FP16, and so are the squares of small gradients: 0 / 0, or an update of infinity.
TEST_P(OptimizerFault, AdamThatDividesZeroByZero) {
  for (const DType dtype : kTrainingDtypes)
    for (const bool decoupled : {false, true}) {
      const Values gradient = rounded_to(dtype, {0, 0x1p-24, -1e-4, 1e-4, 1000});
      const Parameter w = parameter(Values(5, 1), {5});
      std::unique_ptr<optim::Optimizer> adam;
      if (decoupled)
        adam = std::make_unique<optim::AdamW>(std::vector{w}, optim::AdamOptions{.lr = 0.01});
      else
        adam = std::make_unique<optim::Adam>(std::vector{w}, optim::AdamOptions{.lr = 0.01});
      add_gradient(w, gradient, dtype);
      adam->step();
      Values expected;
      for (const double g : gradient) expected.push_back(1 - 0.01 * g / (std::fabs(g) + 1e-8));
      expect_close(values_of(w.master()), expected, 1e-6, 0, "one step");
    }
}

// Lengths around a vector's width, from storage that is aligned and from an element later.
TEST_P(OptimizerFault, ElementsThatAnOptimizerLeavesOut) {
  for (const int64_t n : {1, 3, 7, 8, 9, 15, 16, 17, 1023, 40001})
    for (const int64_t late : {0, 1})
      for (const DType dtype : kTrainingDtypes) {
        const auto place = [&](const Values& values, DType of) {
          Values more(static_cast<size_t>(late), 99);
          more.insert(more.end(), values.begin(), values.end());
          return tensor(more, {n + late}, of).narrow(late, n);
        };
        const Values w = rounded_to(DType::F32, noise(n)), g = rounded_to(dtype, noise(n, 2)), zeros(w.size(), 0);
        for (const bool adam : {false, true}) {
          kernels::StepOperands run;
          run.master = place(w, DType::F32);
          run.grad = place(g, dtype);
          run.copy_f16 = place(zeros, DType::F16);
          run.copy_bf16 = place(zeros, DType::BF16);
          run.lr = constant(0.5);
          run.scale = constant(4);
          Tensor m = place(zeros, DType::F32), v = place(zeros, DType::F32);
          if (adam)
            kernels::adam_step(run, m, v, {.eps = 1e-3});
          else
            kernels::sgd_step(run, m, {.momentum = 0.9});
          Values expected, first;
          for (size_t i = 0; i < w.size(); ++i) {
            const double unscaled = g[i] / 4;
            expected.push_back(w[i] - 0.5 * (adam ? unscaled / (std::fabs(unscaled) + 1e-3) : unscaled));
            first.push_back(adam ? 0.1 * unscaled : unscaled);
          }
          const std::string what = fmt::format("{} {} {} late, {}", dtype, n, late, adam ? "Adam" : "SGD");
          const Values master = values_of(run.master);
          expect_close(master, expected, 1e-5, 1e-6, what);
          expect_close(values_of(m), first, 1e-5, 1e-8, what + " moment");
          EXPECT_EQ(values_of(run.copy_f16), rounded_to(DType::F16, master)) << what;
          EXPECT_EQ(values_of(run.copy_bf16), rounded_to(DType::BF16, master)) << what;
        }
      }
}

// ---- Construction, schedules at their edge

TEST_P(OptimizerFault, OptimizerThatFailedKeepsItsParameters) {
  const Parameter w(constant(1, {1 << 22}));
  memory::release_cached(device());
  memory::set_limit(device(), memory::statistics(device()).reserved + (size_t{24} << 20));  // of 32 MiB more
  const std::string message = error_of([&] { optim::Adam(std::vector{w}, {}); });
  memory::set_limit(device(), 0);
  EXPECT_NE(message.find("no room"), std::string::npos) << message;
  optim::Adam adam(std::vector{w}, {.lr = 0.5});
  w.parameter().accumulate(constant(1, {1 << 22}));
  adam.step();
  EXPECT_NEAR(values_of(w.master())[0], 0.5, 1e-6);

  const Parameter a(constant(1)), b(constant(1));
  using Groups = std::vector<optim::ParameterGroup>;
  EXPECT_THROW(optim::SGD(Groups{{{{a, b}}, {}}, {{{b}}, 0.0}}, {.lr = 1}), Error);
  optim::SGD both(Groups{{{{a}}, {}}, {{{b}}, 0.0}}, {.lr = 1});
}

TEST_P(OptimizerFault, ScheduleAboveItsPeakOrWithAnExtraStep) {
  for (const int64_t steps : {2, 5, 10})
    for (const double lr : optim::one_cycle({.max_lr = 1, .total_steps = steps, .pct_start = 0.1}))
      EXPECT_TRUE(lr >= 0 && lr <= 1) << steps << " steps: " << lr;
  for (const int64_t warmup : {0, 1, 5, 9}) {
    const Values table = optim::cosine({.lr = 0.1, .total_steps = 10, .warmup_steps = warmup});
    ASSERT_EQ(table.size(), 11u);
    EXPECT_EQ(*std::max_element(table.begin(), table.end()), 0.1) << warmup;
    EXPECT_EQ(table[static_cast<size_t>(warmup)], 0.1) << warmup;  // the peak, once
    EXPECT_NEAR(table[10], 0, 1e-12);
    const Parameter w = parameter({0}, {1});
    optim::SGD sgd(std::vector{w}, {.lr = 1});
    optim::Schedule schedule(sgd, table);
    double sum = 0;
    for (size_t k = 0; k < 10; ++k) {  // step k goes by table[k]: none is there twice, none is left out
      sgd.zero_grad();
      add_gradient(w, {-1});
      sgd.step();
      schedule.step();
      sum += table[k];
    }
    EXPECT_NEAR(w.master().item<float>(), sum, 1e-6) << warmup;
    EXPECT_NEAR(sgd.lr(), table[10], 1e-9);
  }
}

}  // namespace
}  // namespace demi::test
