// A small pool of threads for the CPU backend.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace demi {

// Splits [0, n) into at most num_threads() contiguous ranges of at least `grain` items and calls body(begin, end) on
// each, one of them on the calling thread; returns when all are done. The split depends on n, grain and num_threads()
// alone, so results that depend on it are repeatable. Inside a body it runs serially. The first exception is rethrown.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

int num_threads();  // the environment's DEMI_NUM_THREADS, else the cores this process may use
void set_num_threads(int n);

}  // namespace demi
