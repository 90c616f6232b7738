/* Collectives with the system's MPI library, timed as OSU's benchmarks do: every call on its
 * own, an untimed barrier between, the mean over the ranks.
 *
 *   barrier allreduce reduce bcast allgather alltoall reduce_scatter gather scatter scan
 *
 * bytes: of the vector (allreduce, reduce, bcast, scan), of one rank's share (allgather,
 * alltoall, gather, scatter), of the whole vector (reduce_scatter). Reductions are sums of
 * float32. Send and receive buffers are separate and never rewritten while time is taken.
 * Every result is checked, all elements, before anything is timed.
 */
#include "peer.h"

static float *sendbuf, *recvbuf;
static size_t send_bytes, recv_bytes;
static int *counts;

static void (*call)(int n);

static void do_barrier(int n) { (void)n; MPI_Barrier(MPI_COMM_WORLD); }
static void do_allreduce(int n) { MPI_Allreduce(sendbuf, recvbuf, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void do_reduce(int n) { MPI_Reduce(sendbuf, recvbuf, n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); }
static void do_bcast(int n) { MPI_Bcast(sendbuf, n, MPI_FLOAT, 0, MPI_COMM_WORLD); }
static void do_allgather(int n) { MPI_Allgather(sendbuf, n, MPI_FLOAT, recvbuf, n, MPI_FLOAT, MPI_COMM_WORLD); }
static void do_alltoall(int n) { MPI_Alltoall(sendbuf, n, MPI_FLOAT, recvbuf, n, MPI_FLOAT, MPI_COMM_WORLD); }
static void do_reduce_scatter(int n) { (void)n; MPI_Reduce_scatter(sendbuf, recvbuf, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void do_gather(int n) { MPI_Gather(sendbuf, n, MPI_FLOAT, recvbuf, n, MPI_FLOAT, 0, MPI_COMM_WORLD); }
static void do_scatter(int n) { MPI_Scatter(sendbuf, n, MPI_FLOAT, recvbuf, n, MPI_FLOAT, 0, MPI_COMM_WORLD); }
static void do_scan(int n) { MPI_Scan(sendbuf, recvbuf, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }

/* Element i of what a rank sends: small integers, so that every sum is exact. */
static float element(int rank, size_t i) { return (float)(i % 1021 + 3 * (size_t)rank + 1); }
static float sum_over(int ranks, size_t i) { return (float)(ranks * (i % 1021) + 3.0 * ranks * (ranks - 1) / 2 + ranks); }

/* What this rank must hold at index i after the operation; -1 where it holds nothing. */
static float expected(const char *op, size_t n, size_t i) {
  if (strcmp(op, "allreduce") == 0) return sum_over(world_size, i);
  if (strcmp(op, "reduce") == 0) return world_rank == 0 ? sum_over(world_size, i) : -1;
  if (strcmp(op, "scan") == 0) return sum_over(world_rank + 1, i);
  if (strcmp(op, "allgather") == 0) return element((int)(i / n), i % n);
  if (strcmp(op, "gather") == 0) return world_rank == 0 ? element((int)(i / n), i % n) : -1;
  if (strcmp(op, "alltoall") == 0) return element((int)(i / n), (size_t)world_rank * n + i % n);
  if (strcmp(op, "scatter") == 0) return element(0, (size_t)world_rank * n + i);
  size_t skip = 0; /* reduce_scatter */
  for (int r = 0; r < world_rank; r++) skip += counts[r];
  return sum_over(world_size, skip + i);
}

/* How many elements the operation leaves in recvbuf; n is how many make up `bytes`. */
static size_t results(const char *op, size_t n) {
  if (strcmp(op, "allgather") == 0 || strcmp(op, "gather") == 0 || strcmp(op, "alltoall") == 0) return n * world_size;
  if (strcmp(op, "reduce_scatter") == 0) return counts[world_rank];
  return n;
}

static void verify(const char *op, size_t n) {
  int bcast = strcmp(op, "bcast") == 0;
  for (size_t i = 0; i < send_bytes / sizeof(float); i++) sendbuf[i] = bcast && world_rank != 0 ? 0 : element(world_rank, i);
  memset(recvbuf, 0, recv_bytes);
  MPI_Barrier(MPI_COMM_WORLD);
  call((int)n);
  size_t have = strcmp(op, "barrier") == 0 ? 0 : results(op, n);
  for (size_t i = 0; i < have; i++) {
    float want = bcast ? element(0, i) : expected(op, n, i), got = bcast ? sendbuf[i] : recvbuf[i];
    if (want >= 0 && got != want) {
      fprintf(stderr, "peer: rank %d: %s of %zu floats: element %zu is %g, want %g\n", world_rank, op, n, i, got, want);
      MPI_Abort(MPI_COMM_WORLD, 3);
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

static double batch(size_t bytes, int count, const struct options *o) {
  int n = (int)(bytes / sizeof(float)), barrier = call == do_barrier;
  double mine = 0, all = 0;
  (void)o;
  for (int i = 0; i < count; i++) {
    double t = now_us();
    call(n);
    mine += now_us() - t;
    if (!barrier) MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Reduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  return all / count / world_size;
}

int main(int argc, char **argv) {
  /* how many times `bytes` the two buffers hold: 0 none, 1 once, -1 once per rank */
  static const struct { const char *name; void (*call)(int); int send, recv; } ops[] = {
      {"barrier", do_barrier, 0, 0},       {"allreduce", do_allreduce, 1, 1}, {"reduce", do_reduce, 1, 1},
      {"bcast", do_bcast, 1, 0},           {"allgather", do_allgather, 1, -1}, {"alltoall", do_alltoall, -1, -1},
      {"reduce_scatter", do_reduce_scatter, 1, 1}, {"gather", do_gather, 1, -1}, {"scatter", do_scatter, -1, 1},
      {"scan", do_scan, 1, 1}};
  struct options o;
  int known = 0;
  start(argc, argv, &o);
  counts = calloc(world_size, sizeof *counts);
  if (counts == NULL) fail("out of memory", "counts");
  for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
    if (strcmp(ops[k].name, o.op) != 0) continue;
    known = 1;
    call = ops[k].call;
    for (int i = 0; i < o.nsizes; i++) {
      size_t bytes = call == do_barrier ? 0 : o.sizes[i], n = bytes / sizeof(float);
      if (bytes % sizeof(float) != 0 || bytes > 1u << 30) fail("sizes are multiples of 4 up to 1 GiB", o.op);
      send_bytes = ops[k].send < 0 ? bytes * world_size : ops[k].send * bytes;
      recv_bytes = ops[k].recv < 0 ? bytes * world_size : ops[k].recv * bytes;
      for (int r = 0; r < world_size; r++) counts[r] = (int)(n / world_size + (r < (int)(n % world_size)));
      sendbuf = (float *)buffer(send_bytes);
      recvbuf = (float *)buffer(recv_bytes);
      verify(o.op, n);
      measure(o.op, bytes, batch, &o);
      free(sendbuf);
      free(recvbuf);
    }
  }
  if (!known) fail("unknown operation", o.op);
  MPI_Finalize();
  return 0;
}
