// ResNet (He et al., "Deep Residual Learning for Image Recognition", 2016) with torchvision's names and, in the
// bottleneck, its placement of the stride (on the 3x3 convolution).
#pragma once

#include <memory>

#include "demi/nn/layers/batch_norm.h"
#include "demi/nn/layers/linear.h"
#include "demi/nn/layers/simple.h"

namespace demi::nn {

enum class Stem : uint8_t {
  Cifar,     // 3x3, stride 1, no pooling: for 32x32 images
  ImageNet,  // 7x7, stride 2, then 3x3 max pooling with stride 2
};

struct ResNetConfig {
  int depth = 18;  // 18, 34, 50, 101 or 152
  int64_t classes = 10;
  Stem stem = Stem::Cifar;
  double width = 1.0;  // multiplies all channel counts (64, 128, 256, 512), rounded
};

class ResNet : public Module {
 public:
  explicit ResNet(const ResNetConfig& config);
  Variable forward(const Variable& x) override;  // [N, H, W, 3] -> [N, classes]
  Module& classifier() { return *fc_; }

 private:
  ResNetConfig config_;
  std::unique_ptr<Conv2d> conv1_;
  std::unique_ptr<BatchNorm2d> bn1_;
  std::unique_ptr<Sequential> layers_[4];
  std::unique_ptr<Linear> fc_;
};

std::unique_ptr<ResNet> resnet(const ResNetConfig& config);
inline std::unique_ptr<ResNet> resnet18(ResNetConfig config = {}) { return config.depth = 18, resnet(config); }

}  // namespace demi::nn
