// autocast: Which operation runs in which precision, and why?
//
// Predictions:
//   By hand in FP16, every result rounded: a sum of values below 1 stops at 2,048; squares of 300 overflow and squares
//   of 1e-4 vanish, though both norms fit; e^12 overflows, so softmax without its maximum is NaN. Autocast takes the
//   same FP16 values through FP32 and is right to five digits.
//   Cross-entropy in FP16 is infinite where the right logit is 18 below the other, and 0 where it is 8 above: no
//   gradient is left. In FP32 both are numbers.
//   A network's weights cost no cast after the first step. What it pays for is FP32 images, layers kept in FP32 and,
//   most, FP32 operations on large activations: 6 bytes a value, forward and backward.
#include <array>
#include <cmath>

#include "demi/examples/amp_lessons/by_hand.h"
#include "demi/examples/amp_lessons/lesson.h"
#include "demi/examples/amp_lessons/small_net.h"

namespace demi::lessons {
namespace {

// The same network with an activation that is on autocast's FP32 list.
struct SoftplusNet : SmallNet {
  Variable forward(const Variable& x) override {
    return fc(global_avg_pool(softplus(bn2(conv2(softplus(bn1(conv1(x))))))));
  }
};

// What the second training step does; the first has made the weights' FP16 copies.
template <typename Net>
auto watch(Lesson& lesson, DType images, DType classifier = DType::F16) {
  Net net;
  net.to(lesson.device());
  net.fc.set_precision(classifier);
  optim::SGD sgd(net.parameters(), {.lr = 0.05});
  amp::GradScaler scaler;
  amp::Inspector inspector(net);
  data::Source set = lesson.open_data();
  for (const data::Batch& batch : set.train({.batch = 32, .dtype = images}, lesson.device())) {
    train_step(net, sgd, scaler, batch, DType::F16);
    if (batch.index == 1) break;
    inspector.reset();
  }
  return inspector.operations();
}
}  // namespace

void autocast(Lesson& lesson) {
  lesson.section("The rules");
  constexpr std::array takes{"16 bits", "FP32", "what its input is", "the widest of its inputs"};
  for (size_t rule = 0; rule < takes.size(); ++rule) {
    std::string line = fmt::format("takes {}:", takes[rule]);
    for (const amp::OpRule& r : amp::op_rules()) {
      if (static_cast<size_t>(r.rule) != rule) continue;
      if (line.size() + r.op.size() >= 90) {
        lesson.say("{}", line);
        line = "   ";
      }
      line += fmt::format(" {}", r.op);
    }
    lesson.say("{}", line);
  }

  const auto fp16 = [&](const std::vector<double>& x) -> Variable {
    const Tensor t = Tensor::from(std::vector<float>(x.begin(), x.end()), {1, std::ssize(x)}, lesson.device());
    return kernels::cast(t, DType::F16);
  };
  lesson.section("The same FP16 values, three ways");
  Table ways({"operation", "exact", "FP16 by hand", "autocast"});
  std::vector<double> below_1, near_1000, logits, large(100, 300), small(1000, By<Half>::rounded(1e-4)), by_hand;
  for (int i = 0; i < 16384; ++i) below_1.push_back(By<Half>::rounded(i % 1000 / 1000.0));
  for (int i = 0; i < 256; ++i) near_1000.push_back(990 + i % 20);
  for (int i = 0; i < 100; ++i) logits.push_back(12 - i / 8.0);
  bool right = true;
  const auto row = [&](const char* what, const Variable& y, auto&& compute) {
    const double exact = compute(By<double>()), hand = compute(By<Half>()), autocast = y.tensor().to_vector<float>()[0];
    ways.row(what, fmt::format("{:.5g}", exact), std::isnan(hand) ? "nan" : fmt::format("{:.5g}", hand),
             fmt::format("{:.5g}", autocast));
    right &= std::abs(autocast / exact - 1) < 1e-5;
    by_hand.push_back(hand);
  };
  {
    const amp::Autocast region(DType::F16);
    row("sum of 16,384 values below 1", sum(fp16(below_1)), [&](auto by) { return by.sum(below_1); });
    row("norm of 100 values of 300", sqrt(sum(square(fp16(large)))), [&](auto by) { return by.norm(large); });
    row("norm of 1,000 values of 1e-4", sqrt(sum(square(fp16(small)))), [&](auto by) { return by.norm(small); });
    row("softmax of 100 logits up to 12", softmax(fp16(logits)), [&](auto by) { return by.softmax(logits, 0); });
    row("  the same, less its maximum", softmax(fp16(logits)), [&](auto by) { return by.softmax(logits, 12); });
    row("layer norm of values near 1,000", layer_norm(fp16(near_1000)),
        [&](auto by) { return by.layer_norm(near_1000); });
  }
  lesson.show(ways);
  lesson.predict("in FP16 the sum stops at 2048, squares overflow and vanish, softmax is NaN",
                 by_hand[0] == 2048 && std::isinf(by_hand[1]) && by_hand[2] == 0 && std::isnan(by_hand[3]));
  lesson.predict("autocast is right to five digits", right);

  lesson.section("Cross-entropy of two classes");
  Chart chart{.title = "Cross-entropy of two classes",
              .x_label = "right logit less the other",
              .y_label = "loss",
              .log2_y = true};
  chart.series = {{.name = "autocast"}, {.name = "FP16 by hand", .colour = 1, .dashed = true}};
  bool numbers = true;
  Table losses({"right logit less the other", "exact", "FP16 by hand", "autocast"});
  for (double gap = -20; gap <= 20; gap += 0.5) {
    const amp::Autocast region(DType::F16);
    const Variable loss = nn::cross_entropy(fp16({gap, 0}), Tensor::from<int64_t>({0}, {1}, lesson.device()));
    const double values[] = {loss.item<float>(), By<Half>::cross_entropy(gap) + 0.0};  // + 0: no -0
    for (size_t i = 0; i < 2; ++i) chart.series[i].x.push_back(gap), chart.series[i].y.push_back(values[i]);
    numbers &= std::abs(values[0] / By<double>::cross_entropy(gap) - 1) < 1e-3;
    if (std::abs(gap) == 18 || std::fmod(gap, 8) == 0)
      losses.row(gap, fmt::format("{:.4g}", By<double>::cross_entropy(gap)), values[1],
                 fmt::format("{:.4g}", values[0]));
  }
  lesson.show(losses);
  const bool ends = std::isinf(By<Half>::cross_entropy(-18)) && By<Half>::cross_entropy(8) == 0;
  lesson.predict("in FP16 it is infinite at -18 and 0 at 8", ends);
  lesson.predict("autocast's is right to 0.1 % from -20 to 20", numbers);
  lesson.save("autocast", chart);

  lesson.section("What one training step casts, batch 32");
  Table steps({"network", "operation", "reads", "gives", "FP16 copies", "casts", "KiB cast"});
  std::map<std::string, int64_t> kib;
  bool no_weight_cast = true;
  const auto show = [&](const std::string& network, const std::vector<amp::Inspector::Operation>& operations) {
    for (const auto& o : operations) {
      kib[network] += o.cast_bytes / 1024;
      no_weight_cast &= o.copies_made == 0;
      if (network == "as it is" || o.casts > 0)
        steps.row(network, o.layer + " " + o.op, fmt::format("{}", fmt::join(o.inputs, " ")), o.output, o.copies_used,
                  o.casts, o.cast_bytes / 1024);
    }
  };
  show("as it is", watch<SmallNet>(lesson, DType::F32));
  show("FP16 images", watch<SmallNet>(lesson, DType::F16));
  show("and fc in FP32", watch<SmallNet>(lesson, DType::F16, DType::F32));
  show("softplus for ReLU", watch<SoftplusNet>(lesson, DType::F16));
  lesson.show(steps);
  lesson.predict("no weight was cast", no_weight_cast);
  lesson.predict("FP32 images cost 6 bytes a value, FP16 images nothing",
                 kib["as it is"] == 6 * 32 * 32 * 32 * 3 / 1024 && kib["FP16 images"] == 0);
  lesson.predict("a softplus costs 12 bytes a value, there and back, and the convolution after it 12 more",
                 kib["softplus for ReLU"] == 12 * 32 * (2 * 16 * 16 * 16 + 8 * 8 * 32 + 32) / 1024);
}

}  // namespace demi::lessons
