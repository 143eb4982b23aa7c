#include "demi/core/parallel.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>

namespace demi {
namespace {

thread_local bool inside_body = false;

int default_threads() {
  if (const char* text = std::getenv("DEMI_NUM_THREADS"))
    if (const int n = std::atoi(text); n > 0) return n;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Workers wait for a job, take one range each by number, and count themselves out. One job runs at a time.
class Pool {
 public:
  explicit Pool(int workers) {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this, i] { work(i + 1); });
  }

  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  void run(int ranges, const std::function<void(int)>& job) {
    std::unique_lock one_job(job_mutex_);
    {
      std::lock_guard lock(mutex_);
      job_ = &job;
      ranges_ = ranges;
      pending_ = ranges - 1;
      ++generation_;
      error_ = nullptr;
    }
    wake_.notify_all();
    guarded(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
    job_ = nullptr;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void guarded(int range) {
    inside_body = true;
    try {
      (*job_)(range);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    inside_body = false;
  }

  void work(int range) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      if (range >= ranges_) continue;
      lock.unlock();
      guarded(range);
      lock.lock();
      if (--pending_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_, job_mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int)>* job_ = nullptr;
  int ranges_ = 0, pending_ = 0;
  uint64_t generation_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
};

std::mutex pool_mutex;
int thread_count = default_threads();
std::shared_ptr<Pool> the_pool;

std::shared_ptr<Pool> pool() {
  std::lock_guard lock(pool_mutex);
  if (!the_pool) the_pool = std::make_shared<Pool>(thread_count - 1);
  return the_pool;
}

}  // namespace

int num_threads() { return thread_count; }

void set_num_threads(int n) {
  std::lock_guard lock(pool_mutex);
  thread_count = std::max(1, n);
  the_pool.reset();
}

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  const int64_t most = (n + std::max<int64_t>(grain, 1) - 1) / std::max<int64_t>(grain, 1);
  const int ranges = static_cast<int>(std::min<int64_t>(most, thread_count));
  if (ranges <= 1 || inside_body) {
    body(0, n);
    return;
  }
  pool()->run(ranges, [&](int i) { body(n * i / ranges, n * (i + 1) / ranges); });
}

}  // namespace demi
