// PlanCache: plans of a library call by what they were made for, at most `Capacity` of them; the plan that was used
// longest ago makes room. Not shared between threads: each keeps its own beside its library handles.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

namespace demi::kernels::cuda {

template <size_t N>
struct PlanKey {  // everything a plan depends on, as numbers
  std::array<int64_t, N> values{};
  friend bool operator==(const PlanKey&, const PlanKey&) = default;
  struct Hash {
    size_t operator()(const PlanKey& key) const {
      uint64_t hash = 0xcbf29ce484222325u;
      for (const int64_t value : key.values) {
        hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
      }
      return static_cast<size_t>(hash);
    }
  };
};

template <typename Key, typename Plan, size_t Capacity = 256>
class PlanCache {
 public:
  // nullptr when there is none. The plan stays where it is until the next insert().
  Plan* find(const Key& key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return nullptr;
    recent_.splice(recent_.begin(), recent_, found->second);
    return &found->second->second;
  }

  Plan& insert(const Key& key, Plan plan) {
    if (recent_.size() >= Capacity) {
      by_key_.erase(recent_.back().first);
      recent_.pop_back();
    }
    recent_.emplace_front(key, std::move(plan));
    by_key_[key] = recent_.begin();
    return recent_.front().second;
  }

 private:
  std::list<std::pair<Key, Plan>> recent_;  // last used first
  std::unordered_map<Key, typename std::list<std::pair<Key, Plan>>::iterator, typename Key::Hash> by_key_;
};

}  // namespace demi::kernels::cuda
