// Node: one recorded operation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "demi/autograd/variable.h"

namespace demi {

// Where the gradient of one input goes: on to the node that made it, or into a leaf; nowhere when both are empty.
struct Edge {
  std::shared_ptr<Node> node;
  std::shared_ptr<VariableState> leaf;
  explicit operator bool() const { return node || leaf; }
};

class Node {
 public:
  Node(const char* name, std::vector<Edge> inputs, Backward backward);
  ~Node();  // without recursion: a chain of 200,000 nodes must not exhaust the stack
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const char* name() const { return name_; }
  // From 1; grows with creation, so an operation's number is larger than those of everything it was computed from.
  uint64_t sequence() const { return sequence_; }

 private:
  friend class Engine;
  const char* name_;
  uint64_t sequence_;
  std::vector<Edge> inputs_;
  Backward backward_;
  Tensor gradient_;  // what has arrived for the output so far, during backward
  bool queued_ = false;
};

Edge edge_of(const Variable& v);

}  // namespace demi
