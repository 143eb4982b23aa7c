#include "demi/nn/resnet.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "demi/nn/init.h"

namespace demi::nn {
namespace {

std::unique_ptr<Conv2d> convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  auto conv = std::make_unique<Conv2d>(
      Conv2dConfig{.in = in, .out = out, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = false});
  conv->weight.assign(init::kaiming_normal(conv->weight.shape(), init::Fan::Out));
  return conv;
}

// What both kinds of block share: y = relu(last bn(last conv(...)) + shortcut(x)). The shortcut is the identity or,
// where the shape changes, a 1x1 convolution with batch norm.
class Block : public Module {
 public:
  Block(int64_t in, int64_t middle, int64_t out, int64_t stride, bool bottleneck) {
    if (bottleneck) {
      stages_.push_back({convolution(in, middle, 1, 1), std::make_unique<BatchNorm2d>(middle)});
      stages_.push_back({convolution(middle, middle, 3, stride), std::make_unique<BatchNorm2d>(middle)});
      stages_.push_back({convolution(middle, out, 1, 1), std::make_unique<BatchNorm2d>(out)});
    } else {
      stages_.push_back({convolution(in, out, 3, stride), std::make_unique<BatchNorm2d>(out)});
      stages_.push_back({convolution(out, out, 3, 1), std::make_unique<BatchNorm2d>(out)});
    }
    for (size_t i = 0; i < stages_.size(); ++i) {
      const std::string number = std::to_string(i + 1);
      register_modules({{"conv" + number, *stages_[i].conv}, {"bn" + number, *stages_[i].bn}});
    }
    if (stride == 1 && in == out) return;
    downsample_ = std::make_unique<Sequential>(convolution(in, out, 1, stride), std::make_unique<BatchNorm2d>(out));
    register_modules({{"downsample", *downsample_}});
  }

  Variable forward(const Variable& x) override {
    Variable y = x;
    for (size_t i = 0; i + 1 < stages_.size(); ++i) y = conv_bn_relu(*stages_[i].conv, *stages_[i].bn, y);
    return conv_bn_add_relu(*stages_.back().conv, *stages_.back().bn, y, downsample_ ? (*downsample_)(x) : x);
  }

 private:
  struct Stage {
    std::unique_ptr<Conv2d> conv;
    std::unique_ptr<BatchNorm2d> bn;
  };
  std::vector<Stage> stages_;
  std::unique_ptr<Sequential> downsample_;
};

struct Depth {
  int depth;
  std::array<int, 4> blocks;
  bool bottleneck;
};
constexpr std::array<Depth, 5> kDepths{{{18, {2, 2, 2, 2}, false},
                                        {34, {3, 4, 6, 3}, false},
                                        {50, {3, 4, 6, 3}, true},
                                        {101, {3, 4, 23, 3}, true},
                                        {152, {3, 8, 36, 3}, true}}};

}  // namespace

ResNet::ResNet(const ResNetConfig& config) : config_(config) {
  const auto depth =
      std::find_if(kDepths.begin(), kDepths.end(), [&](const Depth& d) { return d.depth == config.depth; });
  DEMI_CHECK(depth != kDepths.end(), "[resnet] depth is 18, 34, 50, 101 or 152, not {}", config.depth);
  DEMI_CHECK(config.width > 0 && config.classes > 0, "[resnet] width {} and {} classes: both are positive",
             config.width, config.classes);
  auto channels = [&](int64_t base) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(base) * config.width));
  };

  int64_t in = channels(64);
  conv1_ = config.stem == Stem::Cifar ? convolution(3, in, 3, 1) : convolution(3, in, 7, 2);
  bn1_ = std::make_unique<BatchNorm2d>(in);
  register_modules({{"conv1", *conv1_}, {"bn1", *bn1_}});
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t middle = channels(int64_t{64} << stage), out = depth->bottleneck ? 4 * middle : middle;
    layers_[stage] = std::make_unique<Sequential>();
    for (int i = 0; i < depth->blocks[static_cast<size_t>(stage)]; ++i) {
      layers_[stage]->append(std::make_unique<Block>(in, middle, out, stage > 0 && i == 0 ? 2 : 1, depth->bottleneck));
      in = out;
    }
    register_modules({{"layer" + std::to_string(stage + 1), *layers_[stage]}});
  }
  fc_ = std::make_unique<Linear>(LinearConfig{.in = in, .out = config.classes});
  register_modules({{"fc", *fc_}});
}

Variable ResNet::forward(const Variable& x) {
  Variable y = conv_bn_relu(*conv1_, *bn1_, x);
  if (config_.stem == Stem::ImageNet) y = max_pool2d(y, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  for (auto& layer : layers_) y = (*layer)(y);
  return (*fc_)(global_avg_pool(y));
}

std::unique_ptr<ResNet> resnet(const ResNetConfig& config) { return std::make_unique<ResNet>(config); }

}  // namespace demi::nn
