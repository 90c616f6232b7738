/* Point to point with the system's MPI library.
 *
 *   latency  half a round trip of blocking Send and Recv between ranks 0 and 1
 *   fresh    the same, and each message is written by a copy before it is sent, and read by one when it has come
 *   bw       time per message: a window of Isend/Irecv, then a short answer
 *   bibw     the same in both directions at once, time per message of one direction
 *   mbw_mr   bw between rank i and i+P/2 for all i at once, time per message over all pairs
 *   pairs    every rank exchanges one message with every other in P-1 rounds, time per round
 *
 * Send and receive buffers are separate and, but for fresh, never rewritten while time is taken; the
 * messages of one window share theirs. What arrives is checked before anything is timed.
 */
#include "peer.h"

static char *sendbuf, *recvbuf;
static char *made, *used; /* what fresh copies into sendbuf, and where it copies recvbuf */
static MPI_Request *requests;

static unsigned char pattern(int rank, size_t i) { return (unsigned char)(i * 7 + i / 251 + rank * 13 + 1); }

static void fill(size_t bytes) {
  for (size_t i = 0; i < bytes; i++) sendbuf[i] = (char)pattern(world_rank, i);
  memset(recvbuf, 0, bytes);
}

static void check(size_t bytes, int from) {
  for (size_t i = 0; i < bytes; i++)
    if ((unsigned char)recvbuf[i] != pattern(from, i)) {
      fprintf(stderr, "peer: rank %d: byte %zu of %zu from rank %d is wrong\n", world_rank, i, bytes, from);
      MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

static double latency(size_t bytes, int count, const struct options *o) {
  (void)o;
  double t = now_us();
  for (int i = 0; i < count; i++) {
    if (world_rank == 0) {
      MPI_Send(sendbuf, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
      MPI_Recv(recvbuf, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (world_rank == 1) {
      MPI_Recv(recvbuf, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(sendbuf, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
  }
  return (now_us() - t) / (2.0 * count);
}

static void send_fresh(size_t bytes, int peer) {
  memcpy(sendbuf, made, bytes);
  MPI_Send(sendbuf, (int)bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
}

static void recv_fresh(size_t bytes, int peer) {
  MPI_Recv(recvbuf, (int)bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  memcpy(used, recvbuf, bytes);
}

static double fresh(size_t bytes, int count, const struct options *o) {
  (void)o;
  double t = now_us();
  for (int i = 0; i < count; i++) {
    if (world_rank == 0) send_fresh(bytes, 1);
    recv_fresh(bytes, 1 - world_rank);
    if (world_rank == 1) send_fresh(bytes, 0);
  }
  return (now_us() - t) / (2.0 * count);
}

/* Windows of messages from the lower half of the ranks to the upper, both ways if asked for. */
static double windows(size_t bytes, int count, const struct options *o, int both) {
  int half = world_size / 2, w = o->window;
  char answer[4] = {0};
  double t = now_us();
  if (world_rank < 2 * half) {
    int upper = world_rank >= half, peer = upper ? world_rank - half : world_rank + half;
    for (int i = 0; i < count; i++) {
      int n = 0;
      if (upper || both)
        for (int j = 0; j < w; j++) MPI_Irecv(recvbuf, (int)bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[n++]);
      if (!upper || both)
        for (int j = 0; j < w; j++) MPI_Isend(sendbuf, (int)bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[n++]);
      MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
      if (upper)
        MPI_Send(answer, sizeof answer, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
      else
        MPI_Recv(answer, sizeof answer, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  }
  return (now_us() - t) / ((double)count * w);
}

static double bw(size_t bytes, int count, const struct options *o) { return windows(bytes, count, o, 0); }
static double bibw(size_t bytes, int count, const struct options *o) { return windows(bytes, count, o, 1); }

static double mbw_mr(size_t bytes, int count, const struct options *o) {
  double mine = windows(bytes, count, o, 0), slowest;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest / (world_size / 2);
}

/* Round r pairs a with b where a+b = r modulo P-1; the last rank is paired with the one that is left alone. */
static int partner(int round) {
  int m = world_size - 1, p;
  if (world_rank == m) {
    for (p = 0; p < m; p++)
      if (2 * p % m == round) return p;
    return -1;
  }
  p = ((round - world_rank) % m + m) % m;
  return p == world_rank ? m : p;
}

static double pairs(size_t bytes, int count, const struct options *o) {
  (void)o;
  double t = now_us();
  for (int i = 0; i < count; i++)
    for (int r = 0; r < world_size - 1; r++) {
      int p = partner(r);
      MPI_Sendrecv(sendbuf, (int)bytes, MPI_BYTE, p, 3, recvbuf, (int)bytes, MPI_BYTE, p, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  return (now_us() - t) / count;
}

/* The operation's pattern, once, with every byte looked at. */
static void verify(const char *op, size_t bytes, const struct options *o) {
  int half = world_size / 2;
  fill(bytes);
  MPI_Barrier(MPI_COMM_WORLD);
  if (strcmp(op, "latency") == 0) {
    latency(bytes, 1, o);
    if (world_rank < 2) check(bytes, 1 - world_rank);
  } else if (strcmp(op, "fresh") == 0) {
    memcpy(made, sendbuf, bytes);
    memset(sendbuf, 0, bytes);
    memset(used, 0, bytes);
    fresh(bytes, 1, o);
    memcpy(recvbuf, used, bytes);
    check(bytes, 1 - world_rank);
  } else if (strcmp(op, "pairs") == 0) {
    for (int r = 0; r < world_size - 1; r++) {
      int p = partner(r);
      memset(recvbuf, 0, bytes);
      MPI_Sendrecv(sendbuf, (int)bytes, MPI_BYTE, p, 3, recvbuf, (int)bytes, MPI_BYTE, p, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      check(bytes, p);
    }
  } else {
    windows(bytes, 1, o, strcmp(op, "bibw") == 0);
    if (world_rank < 2 * half && (world_rank >= half || strcmp(op, "bibw") == 0))
      check(bytes, world_rank >= half ? world_rank - half : world_rank + half);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
  static const struct { const char *name; batch_fn batch; int ranks; } ops[] = {
      {"latency", latency, 2}, {"fresh", fresh, 2}, {"bw", bw, 2}, {"bibw", bibw, 2}, {"mbw_mr", mbw_mr, 0}, {"pairs", pairs, 0}};
  struct options o;
  size_t most = 0;
  start(argc, argv, &o);
  for (int i = 0; i < o.nsizes; i++) most = o.sizes[i] > most ? o.sizes[i] : most;
  if (most > 1u << 30) fail("sizes end at", "1 GiB");
  sendbuf = buffer(most);
  recvbuf = buffer(most);
  made = buffer(most);
  used = buffer(most);
  requests = malloc(2 * o.window * sizeof *requests);
  if (requests == NULL) fail("out of memory", "requests");
  int known = 0;
  for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
    if (strcmp(ops[k].name, o.op) != 0) continue;
    known = 1;
    if (world_size < 2 || (ops[k].ranks != 0 && world_size != ops[k].ranks) || world_size % 2 != 0)
      fail("wants an even number of ranks, 2 for latency, fresh, bw and bibw", o.op);
    for (int i = 0; i < o.nsizes; i++) {
      verify(o.op, o.sizes[i], &o);
      measure(o.op, o.sizes[i], ops[k].batch, &o);
    }
  }
  if (!known) fail("unknown operation", o.op);
  MPI_Finalize();
  return 0;
}
