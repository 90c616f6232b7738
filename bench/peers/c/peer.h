/* What the peers' programs share: arguments, buffers, the clock, repetitions and the output.
 *
 * A measurement is many short repetitions of a batch of calls; each gives one value in
 * microseconds, and the median, the 10th and the 90th percentile over all are printed:
 *
 *   op bytes ranks median_us p10_us p90_us repetitions
 */
#ifndef FISTERRA_PEER_H
#define FISTERRA_PEER_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_SIZES 64
#define MIN_REPS 11
#define MAX_REPS 2000
#define REP_US 3e3

struct options {
  const char *op;
  size_t sizes[MAX_SIZES];
  int nsizes;
  int window;
  double budget_us; /* time for one size, calibration included */
  double rep_us;    /* how long one repetition should last; by default REP_US, or less where so few would fill the budget */
};

static int world_rank, world_size;

static void fail(const char *what, const char *value) {
  if (world_rank == 0) fprintf(stderr, "peer: %s: %s\n", what, value);
  MPI_Abort(MPI_COMM_WORLD, 2);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

/* One page aligned buffer, every page touched. */
static char *buffer(size_t bytes) {
  void *p = NULL;
  if (posix_memalign(&p, 4096, bytes ? bytes : 1) != 0) fail("out of memory", "buffer");
  memset(p, 0, bytes ? bytes : 1);
  return p;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void report(const char *op, size_t bytes, double *value, int reps) {
  qsort(value, reps, sizeof *value, by_value);
  printf("%s %zu %d %.4f %.4f %.4f %d\n", op, bytes, world_size, value[reps / 2],
         value[reps / 10], value[reps - 1 - reps / 10], reps);
  fflush(stdout);
}

/* batch runs the measured thing count times and returns microseconds per unit on rank 0. */
typedef double (*batch_fn)(size_t bytes, int count, const struct options *o);

static void measure(const char *op, size_t bytes, batch_fn batch, const struct options *o) {
  static double value[MAX_REPS];
  double begin = now_us(), last = 0;
  int count = 1, filled = 0, plan[2];
  batch(bytes, 2, o);  /* connections, first touch */
  while (filled < 2) { /* as many calls as fill one repetition, twice in a row: once they may have been held up */
    MPI_Barrier(MPI_COMM_WORLD);
    double t = now_us();
    batch(bytes, count, o);
    last = now_us() - t;
    MPI_Bcast(&last, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (last >= o->rep_us || count >= 1 << 20) {
      filled++;
      continue;
    }
    filled = 0;
    int grow = last > 0 ? (int)(o->rep_us * 1.2 / last) : 2;
    count *= grow < 2 ? 2 : grow > 16 ? 16 : grow;
  }
  plan[0] = count;
  double left = o->budget_us - (now_us() - begin);
  plan[1] = left > 0 && last > 0 ? (int)(left / last) : 0;
  if (plan[1] < MIN_REPS) plan[1] = MIN_REPS;
  if (plan[1] > MAX_REPS) plan[1] = MAX_REPS;
  MPI_Bcast(plan, 2, MPI_INT, 0, MPI_COMM_WORLD);
  for (int r = 0; r < plan[1]; r++) {
    MPI_Barrier(MPI_COMM_WORLD);
    value[r] = batch(bytes, plan[0], o);
  }
  if (world_rank == 0) report(op, bytes, value, plan[1]);
}

static const char *level_name(int level) {
  return level == MPI_THREAD_SINGLE       ? "single"
         : level == MPI_THREAD_FUNNELED   ? "funneled"
         : level == MPI_THREAD_SERIALIZED ? "serialized"
                                          : "multiple";
}

/* program OP --sizes A,B,... [--thread LEVEL] [--window N] [--budget-ms N] [--rep-ms N] */
static void start(int argc, char **argv, struct options *o) {
  int level = MPI_THREAD_SINGLE, provided, length;
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  *o = (struct options){.window = 64, .budget_us = 200e3};
  for (int i = 1; i + 1 < argc; i++)
    if (strcmp(argv[i], "--thread") == 0)
      for (level = MPI_THREAD_SINGLE; level < MPI_THREAD_MULTIPLE; level++)
        if (strcmp(argv[i + 1], level_name(level)) == 0) break;
  MPI_Init_thread(&argc, &argv, level, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  if (argc < 2) fail("usage", "OP --sizes A,B,... [--thread single|funneled|serialized|multiple] [--window N] [--budget-ms N] [--rep-ms N]");
  o->op = argv[1];
  for (int i = 2; i < argc; i += 2) {
    char *flag = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
    if (v == NULL) fail("flag without a value", flag);
    if (strcmp(flag, "--sizes") == 0) {
      for (char *end; *v != 0; v = *end == ',' ? end + 1 : end) {
        if (o->nsizes == MAX_SIZES) fail("too many sizes", v);
        o->sizes[o->nsizes++] = strtoull(v, &end, 10);
        if (end == v || (*end != ',' && *end != 0)) fail("not a size in bytes", v);
      }
    } else if (strcmp(flag, "--window") == 0) {
      o->window = atoi(v);
      if (o->window < 1) fail("--window wants a positive number, got", v);
    } else if (strcmp(flag, "--budget-ms") == 0) {
      o->budget_us = atof(v) * 1e3;
    } else if (strcmp(flag, "--rep-ms") == 0) {
      o->rep_us = atof(v) * 1e3;
    } else if (strcmp(flag, "--thread") == 0) {
      if (strcmp(v, level_name(level)) != 0) fail("unknown thread level", v);
    } else {
      fail("unknown flag", flag);
    }
  }
  if (o->rep_us <= 0) o->rep_us = o->budget_us < MIN_REPS * REP_US ? o->budget_us / MIN_REPS : REP_US;
  if (o->nsizes == 0) o->nsizes = 1; /* barrier: one size, 0 */
  MPI_Get_library_version(version, &length);
  version[strcspn(version, "\n")] = 0;
  if (world_rank == 0) printf("# %s; thread level %s\n", version, level_name(provided));
}

#endif
