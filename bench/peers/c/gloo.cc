// Gloo's collectives over TCP, measured as collectives.c measures MPI's: every call on its
// own, an untimed barrier between, the mean over the ranks; results are checked first.
//
//   gloo allreduce|bcast|allgather|alltoall|barrier --ranks N --dir DIR --sizes A,B,... [--budget-ms N] [--rep-ms N]
//
// It starts its own N processes, which meet through files in a new directory below DIR. If it is killed,
// that directory stays, for the owner of DIR to remove.
// Output: op bytes ranks median_us p10_us p90_us repetitions
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr double min_reps = 11, max_reps = 2000, most_rep_us = 3e3;

struct Options {
  std::string op, dir;
  int ranks = 2;
  std::vector<size_t> sizes;
  double budget_us = 200e3, rep_us = 0; /* as in peer.h */
};

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Peer {
 public:
  Peer(const Options& o, int rank, const std::string& dir) : o_(o), rank_(rank) {
    gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0.1";
    gloo::rendezvous::FileStore store(dir);
    context_ = std::make_shared<gloo::rendezvous::Context>(rank, o.ranks);
    device_ = gloo::transport::tcp::CreateDevice(attr);
    context_->connectFullMesh(store, device_);
  }

  void run() {
    if (rank_ == 0) printf("# Gloo %d.%d.%d, tcp\n", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH);
    for (size_t bytes : o_.sizes) {
      prepare(bytes / sizeof(float));
      verify();
      measure(bytes);
    }
  }

 private:
  static float element(int rank, size_t i) { return static_cast<float>(i % 1021 + 3 * rank + 1); }
  float sum(size_t i) const {
    float s = 0;
    for (int r = 0; r < o_.ranks; r++) s += element(r, i);
    return s;
  }

  void barrier() {
    gloo::BarrierOptions b(context_);
    gloo::barrier(b);
  }

  void broadcast(double* v, size_t n) {
    gloo::BroadcastOptions b(context_);
    b.setOutput(v, n);
    b.setRoot(0);
    gloo::broadcast(b);
  }

  // Sets call_ and expected_ for n elements of the operation.
  void prepare(size_t n) {
    const size_t all = n * o_.ranks;
    const bool each = o_.op == "alltoall";
    send_.resize(each ? all : n);
    for (size_t i = 0; i < send_.size(); i++) send_[i] = element(rank_, i);
    recv_.assign(o_.op == "allgather" || each ? all : n, 0);
    expected_ = [this](size_t i) { return sum(i); };
    if (o_.op == "allreduce") {
      call_ = [this, n] {
        gloo::AllreduceOptions a(context_);
        a.setInput(send_.data(), n);
        a.setOutput(recv_.data(), n);
        a.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
        gloo::allreduce(a);
      };
    } else if (o_.op == "bcast") {
      if (rank_ == 0) recv_ = send_;
      expected_ = [](size_t i) { return element(0, i); };
      call_ = [this, n] {
        gloo::BroadcastOptions b(context_);
        b.setOutput(recv_.data(), n);
        b.setRoot(0);
        gloo::broadcast(b);
      };
    } else if (o_.op == "allgather") {
      expected_ = [n](size_t i) { return element(static_cast<int>(i / n), i % n); };
      call_ = [this, n, all] {
        gloo::AllgatherOptions a(context_);
        a.setInput(send_.data(), n);
        a.setOutput(recv_.data(), all);
        gloo::allgather(a);
      };
    } else if (o_.op == "alltoall") {
      expected_ = [this, n](size_t i) { return element(static_cast<int>(i / n), rank_ * n + i % n); };
      call_ = [this, all] {
        gloo::AlltoallOptions a(context_);
        a.setInput(send_.data(), all);
        a.setOutput(recv_.data(), all);
        gloo::alltoall(a);
      };
    } else if (o_.op == "barrier") {
      recv_.clear();
      call_ = [this] { barrier(); };
    } else {
      throw std::invalid_argument("unknown operation: " + o_.op);
    }
  }

  void verify() {
    call_();
    for (size_t i = 0; i < recv_.size(); i++)
      if (recv_[i] != expected_(i)) throw std::runtime_error("wrong result of " + o_.op + " at element " + std::to_string(i));
    barrier();
  }

  double batch(int count) {
    double mine = 0;
    for (int i = 0; i < count; i++) {
      const double t = now_us();
      call_();
      mine += now_us() - t;
      if (o_.op != "barrier") barrier();
    }
    gloo::AllreduceOptions a(context_);
    a.setOutput(&mine, 1);
    a.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<double>));
    gloo::allreduce(a);
    return mine / count / o_.ranks;
  }

  void measure(size_t bytes) {
    const double begin = now_us();
    double last = 0;
    int count = 1, filled = 0;
    batch(2);
    while (filled < 2) { /* as in peer.h */
      barrier();
      const double t = now_us();
      batch(count);
      last = now_us() - t;
      broadcast(&last, 1);
      if (last >= o_.rep_us || count >= 1 << 20) {
        filled++;
        continue;
      }
      filled = 0;
      count *= std::clamp(static_cast<int>(o_.rep_us * 1.2 / last), 2, 16);
    }
    double reps = std::clamp(std::max(0.0, o_.budget_us - (now_us() - begin)) / last, min_reps, max_reps);
    broadcast(&reps, 1);
    std::vector<double> value(static_cast<size_t>(reps));
    for (double& v : value) {
      barrier();
      v = batch(count);
    }
    if (rank_ != 0) return;
    std::sort(value.begin(), value.end());
    const size_t n = value.size();
    printf("%s %zu %d %.4f %.4f %.4f %zu\n", o_.op.c_str(), bytes, o_.ranks, value[n / 2], value[n / 10], value[n - 1 - n / 10], n);
    fflush(stdout);
  }

  const Options& o_;
  const int rank_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<float> send_, recv_;
  std::function<void()> call_;
  std::function<float(size_t)> expected_;
};

Options parse(int argc, char** argv) {
  Options o;
  if (argc < 2 || argc % 2 != 0) throw std::invalid_argument("usage: gloo OP --ranks N --dir DIR --sizes A,B,... [--budget-ms N] [--rep-ms N]");
  o.op = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string flag = argv[i], v = argv[i + 1];
    if (flag == "--ranks") {
      o.ranks = std::stoi(v);
    } else if (flag == "--dir") {
      o.dir = v;
    } else if (flag == "--sizes") {
      std::stringstream list(v);
      for (std::string s; std::getline(list, s, ',');) o.sizes.push_back(std::stoull(s));
    } else if (flag == "--budget-ms") {
      o.budget_us = std::stod(v) * 1e3;
    } else if (flag == "--rep-ms") {
      o.rep_us = std::stod(v) * 1e3;
    } else {
      throw std::invalid_argument("unknown flag " + flag);
    }
  }
  if (o.op == "barrier" || o.sizes.empty()) o.sizes = {0};
  if (o.rep_us <= 0) o.rep_us = std::min(most_rep_us, o.budget_us / min_reps);
  if (o.ranks < 2) throw std::invalid_argument("--ranks wants 2 or more");
  if (o.dir.empty()) throw std::invalid_argument("no --dir");
  return o;
}

// Scratch is a directory of this run's own, in which the ranks meet; it is removed at the end of the run.
struct Scratch {
  std::string dir;
  explicit Scratch(const std::string& in) : dir(std::filesystem::path(in) / "gloo.XXXXXX") {
    if (mkdtemp(dir.data()) == nullptr) throw std::runtime_error("mkdtemp: " + std::string(strerror(errno)));
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(dir, ignored);
  }
  Scratch(const Scratch&) = delete;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options o = parse(argc, argv);
    const Scratch scratch(o.dir);
    std::vector<pid_t> started;
    for (int rank = 0; rank < o.ranks; rank++) {
      const pid_t pid = fork();
      if (pid < 0) {
        const std::string why = strerror(errno);
        for (pid_t p : started) kill(p, SIGKILL);
        while (wait(nullptr) > 0) {
        }
        throw std::runtime_error("fork: " + why);
      }
      if (pid > 0) {
        started.push_back(pid);
        continue;
      }
      int code = 0;
      try {
        Peer(o, rank, scratch.dir).run();
      } catch (const std::exception& e) {
        fprintf(stderr, "gloo: rank %d: %s\n", rank, e.what());
        code = 3;
      }
      fflush(stdout);
      _exit(code);
    }
    int worst = 0;
    for (int rank = 0, status; rank < o.ranks; rank++) {
      wait(&status);
      worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    return worst;
  } catch (const std::exception& e) {
    fprintf(stderr, "gloo: %s\n", e.what());
    return 2;
  }
}
