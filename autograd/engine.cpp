#include "demi/autograd/engine.h"

#include <atomic>
#include <queue>

#include "demi/autograd/flat_storage.h"
#include "demi/autograd/node.h"
#include "demi/autograd/observer.h"
#include "demi/kernels/binary.h"
#include "demi/kernels/cast.h"
#include "demi/kernels/fill.h"

namespace demi {
namespace {
std::atomic<uint64_t> next_sequence{1};
thread_local Observer* attached = nullptr;
}  // namespace

Observer* observer() { return attached; }
void set_observer(Observer* o) { attached = o; }

Node::Node(const char* name, std::vector<Edge> inputs, Backward backward)
    : name_(name), sequence_(next_sequence++), inputs_(std::move(inputs)), backward_(std::move(backward)) {}

Node::~Node() {
  // Nodes that only this one keeps alive move to a list and die from it, one at a time, not inside each other.
  thread_local std::vector<std::shared_ptr<Node>>* dying = nullptr;
  std::vector<std::shared_ptr<Node>> list;
  const bool outermost = dying == nullptr;
  if (outermost) dying = &list;
  for (Edge& e : inputs_)
    if (e.node) dying->push_back(std::move(e.node));
  if (!outermost) return;
  while (!list.empty()) {
    const std::shared_ptr<Node> last = std::move(list.back());
    list.pop_back();
  }
  dying = nullptr;
}

class Engine {
 public:
  // After an error some nodes still wait: the next backward() must find neither their gradients nor their place here.
  ~Engine() {
    for (; !ready_.empty(); ready_.pop()) {
      ready_.top()->gradient_ = {};
      ready_.top()->queued_ = false;
    }
  }

  void run(const Variable& root, const Tensor& seed) {
    deliver(edge_of(root), seed);
    while (!ready_.empty()) {
      const std::shared_ptr<Node> node = ready_.top();
      ready_.pop();
      const Tensor dy = std::exchange(node->gradient_, {});
      node->queued_ = false;
      DEMI_CHECK(node->backward_,
                 "[backward] the graph behind '{}' was used up by an earlier backward(): run the forward again",
                 node->name_);
      const Backward closure = std::exchange(node->backward_, nullptr);
      std::vector<Tensor> gradients = closure(dy);
      DEMI_CHECK(gradients.size() == node->inputs_.size(), "[backward] '{}' gave {} gradients for {} inputs",
                 node->name_, gradients.size(), node->inputs_.size());
      if (Observer* o = observer()) o->backward(node->name_, node->sequence_, dy, gradients);
      for (size_t i = 0; i < gradients.size(); ++i)
        if (gradients[i].defined()) deliver(node->inputs_[i], std::move(gradients[i]));
    }
  }

 private:
  // The newest node first: by then everything that used its output has delivered.
  struct Older {
    bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const {
      return a->sequence() < b->sequence();
    }
  };

  void deliver(const Edge& edge, Tensor gradient) {
    if (edge.node) {
      Node& node = *edge.node;
      node.gradient_ = node.gradient_.defined() ? kernels::add(node.gradient_, gradient) : std::move(gradient);
      if (!std::exchange(node.queued_, true)) ready_.push(edge.node);
    } else if (edge.leaf) {
      deliver(*edge.leaf, std::move(gradient));
    }
  }

  void deliver(VariableState& leaf, Tensor gradient) {
    if (leaf.parameter) return leaf.parameter->accumulate(gradient);
    DEMI_CHECK(gradient.shape() == leaf.data.shape(), "[backward] gradient of shape {} for a leaf of shape {}",
               gradient.shape(), leaf.data.shape());
    gradient = kernels::cast(gradient, leaf.data.dtype());
    leaf.grad = leaf.grad.defined() ? kernels::add(leaf.grad, gradient) : std::move(gradient);
  }

  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, Older> ready_;
};

void backward(const Variable& root, const Tensor& seed) {
  DEMI_CHECK(root.requires_grad(), "[backward] nothing here requires a gradient");
  Tensor start = seed;
  if (!start.defined()) {
    DEMI_CHECK(root.tensor().numel() == 1, "[backward] of shape {}: only a single element needs no seed gradient",
               root.shape());
    start = kernels::full(root.shape(), 1.0, root.dtype(), root.device());
  }
  DEMI_CHECK(start.shape() == root.shape() && start.dtype() == root.dtype(), "[backward] seed {} {} for a root {} {}",
             start.dtype(), start.shape(), root.dtype(), root.shape());
  const NoGrad off;
  Engine().run(root, start);
}

}  // namespace demi
