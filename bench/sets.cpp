#include "demi/bench/sets.h"

#include <algorithm>

namespace demi::bench {
namespace {

using Shapes = std::vector<std::string>;

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* n) { return name == n; });
}

bool is_ladder(const Op& op) { return op.name.starts_with("ladder_"); }

Shapes ladder(const Op& op) {
  if (op.name.starts_with("ladder_matmul_")) return {"8192x8192x8192"};
  if (op.name.starts_with("ladder_sum_")) return {"16777216"};
  return {"256x32x32x64"};
}

// The activations of the four stages of ResNet-18 on CIFAR-10.
Shapes cifar_stages(int64_t n) {
  return {fmt::format("{}x32x32x64", n), fmt::format("{}x16x16x128", n), fmt::format("{}x8x8x256", n),
          fmt::format("{}x4x4x512", n)};
}

// ResNet-18 on CIFAR-10: its convolutions (those of a stage alike), activations, classifier, weights, batches.
Shapes cifar(const Op& op, int64_t n, bool small) {
  const Shapes stages = cifar_stages(n);
  switch (op.kind) {
    case Kind::Elements:
      if (is_one_of(op.name, {"sum", "amax"})) return {small ? "1048576" : "16777216"};
      if (op.name == "finite_check") return {small ? "1048576" : "11173962"};
      return {stages[0], stages[3]};
    case Kind::Rows:
      if (is_one_of(op.name, {"sum_rows", "bias"})) return {stages[0], fmt::format("{}x10", n)};
      return small ? Shapes{stages[0], stages[3]} : stages;
    case Kind::Images:
      return op.name.starts_with("global") ? Shapes{stages[3]} : Shapes{stages[0]};
    case Kind::Records:
      return {fmt::format("{}x32x32x3", n)};
    case Kind::Logits:
      return {fmt::format("{}x10", n)};
    case Kind::Weights:
      return {small ? "1048576" : "11173962"};
    case Kind::Matrix:
      if (op.name == "linear") return {fmt::format("{}x10x512", n)};
      return small ? Shapes{"512x512x512"} : Shapes{"8192x8192x8192", "1024x1024x1024"};
    case Kind::Convolution: {
      const std::string stem = fmt::format("{}x32x32x3_k64_r3_s1", n);
      const std::string first = stages[0] + "_k64_r3_s1", last = stages[3] + "_k512_r3_s1";
      if (op.name == "conv_fprop_bias") return {first};
      Shapes all =
          op.name == "conv_dgrad" ? Shapes{first} : Shapes{stem, first};  // nobody asks for the image's gradient
      if (small) return all;
      if (op.name != "conv_bn_relu") {
        all.push_back(stages[0] + "_k128_r3_s2");
        all.push_back(stages[0] + "_k128_r1_s2");
      }
      for (const std::string& shape : {stages[1] + "_k128_r3_s1", stages[2] + "_k256_r3_s1", last})
        all.push_back(shape);
      return all;
    }
  }
  return {};
}

// ResNet-50 on ImageNet.
Shapes imagenet(const Op& op, int64_t n) {
  const Shapes activations{fmt::format("{}x112x112x64", n), fmt::format("{}x56x56x256", n),
                           fmt::format("{}x28x28x512", n), fmt::format("{}x14x14x1024", n),
                           fmt::format("{}x7x7x2048", n)};
  switch (op.kind) {
    case Kind::Elements:
      if (op.name == "finite_check") return {"25557032"};
      return {activations[1], activations[4]};
    case Kind::Rows:
      if (is_one_of(op.name, {"sum_rows", "bias"})) return {fmt::format("{}x1000", n)};
      return activations;
    case Kind::Images:
      return op.name.starts_with("global") ? Shapes{activations[4]} : Shapes{activations[0]};
    case Kind::Records:
      return {fmt::format("{}x224x224x3", n)};
    case Kind::Logits:
      return {fmt::format("{}x1000", n)};
    case Kind::Weights:
      return {"25557032"};
    case Kind::Matrix:
      return {op.name == "linear" ? fmt::format("{}x1000x2048", n) : "4096x4096x4096"};
    case Kind::Convolution: {
      Shapes all;
      if (op.name != "conv_dgrad") all.push_back(fmt::format("{}x224x224x3_k64_r7_s2", n));
      for (const char* rest :
           {"56x56x64_k64_r3_s1", "56x56x256_k64_r1_s1", "56x56x64_k256_r1_s1", "28x28x128_k128_r3_s1",
            "28x28x512_k1024_r1_s2", "14x14x256_k256_r3_s1", "7x7x512_k512_r3_s1", "7x7x512_k2048_r1_s1"})
        all.push_back(fmt::format("{}x{}", n, rest));
      return all;
    }
  }
  return {};
}

// Sizes around the cache: 1 MiB to 1 GiB a tensor of FP32.
Shapes sweep(const Op& op, bool small) {
  Shapes all;
  if (is_one_of(op.name, {"copy", "add", "relu"}))
    for (int64_t n = int64_t{1} << 18; n <= int64_t{1} << (small ? 24 : 28); n *= small ? 4 : 2)
      all.push_back(std::to_string(n));
  return all;
}

// What misses the fast paths: channels that are no multiple of a 16-byte piece, operands that start unaligned.
Shapes odd(const Op& op, int64_t n) {
  Shapes all;
  switch (op.kind) {
    case Kind::Elements:
    case Kind::Weights:
      return {"1048573", "1048576_odd"};
    case Kind::Rows:
    case Kind::Images:
      for (const int c : {3, 7, 65}) all.push_back(fmt::format("{}x32x32x{}", n, c));
      all.push_back(fmt::format("{}x32x32x64_odd", n));
      return all;
    case Kind::Records:
      return {fmt::format("{}x33x31x3", n)};
    case Kind::Logits:
      return {fmt::format("{}x1001", n), fmt::format("{}x1000_odd", n)};
    case Kind::Matrix:
      return {"511x513x515", "512x512x512_odd"};
    case Kind::Convolution:
      for (const int c : {3, 7, 65}) all.push_back(fmt::format("{}x32x32x{}_k64_r3_s1", n, c));
      all.push_back(fmt::format("{}x32x32x64_k65_r3_s1", n));
      all.push_back(fmt::format("{}x32x32x64_k64_r3_s1_odd", n));
      return all;
  }
  return all;
}

// One shape an op.
Shapes quick(const Op& op, int64_t n, bool small) {
  if (op.name == "matmul" && !small) return {"4096x4096x4096"};
  if (op.kind == Kind::Convolution) return {fmt::format("{}x16x16x128_k128_r3_s1", n)};
  return {cifar(op, n, small).front()};
}

}  // namespace

const std::vector<std::string>& set_names() {
  static const std::vector<std::string> names{"default", "resnet50", "sweep", "odd", "ladder", "all", "quick"};
  return names;
}

std::vector<SetShape> shapes_of(const std::string& set, const Op& op, Device device) {
  const bool small = device.is_cpu();
  Shapes shapes;
  const auto add = [&](const Shapes& more) {
    for (const std::string& s : more)
      if (std::find(shapes.begin(), shapes.end(), s) == shapes.end()) shapes.push_back(s);
  };
  const bool all = set == "all";
  if (is_ladder(op)) {
    if (all || set == "ladder") add(ladder(op));
  } else {
    if (all || set == "default") add(cifar(op, small ? 8 : 256, small));
    if (all || set == "resnet50") add(imagenet(op, small ? 2 : 64));
    if (all || set == "sweep") add(sweep(op, small));
    if (all || set == "odd") add(odd(op, small ? 8 : 256));
    if (set == "quick") add(quick(op, small ? 8 : 256, small));
  }
  std::vector<SetShape> list;
  for (const std::string& s : shapes) list.push_back({s, set != "quick" && set != "ladder"});
  return list;
}

}  // namespace demi::bench
