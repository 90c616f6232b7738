/* The standard ABI of MPI 5.0 in front of MPICH, for the test of that ABI's table where
   no library offers it: only what package native calls, with the constants of the
   standard on this side and MPICH's on the other. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uintptr_t H; /* a handle of this side */
typedef struct {
	int source, tag, error, internal[5];
} Status;
typedef struct {
	int lo, hi, source, tag, error;
} Theirs;

static void *mpich(const char *name)
{
	static void *lib;
	void *f;
	if (!lib)
		lib = dlopen("libmpich.so.12", RTLD_NOW | RTLD_LOCAL);
	f = lib ? dlsym(lib, name) : NULL;
	if (!f)
		abort();
	return f;
}
#define F(name) ((int (*)())mpich("MPI_" #name))

static int comm(H h) { return h == 0x101 ? 0x44000000 : h == 0x102 ? 0x44000001 : (int)h; }
static int type(H h)
{
	static const struct { H ours; int theirs; } t[] = {
		{0x247, 0x4c00010d}, {0x240, 0x4c000137}, {0x248, 0x4c000238}, {0x250, 0x4c000439}, {0x258, 0x4c00083a},
		{0x241, 0x4c00013b}, {0x249, 0x4c00023c}, {0x251, 0x4c00043d}, {0x259, 0x4c00083e}, {0x210, 0x4c00040a},
		{0x214, 0x4c00080b}, {0x212, 0x4c000840}, {0x216, 0x4c001041}};
	for (unsigned i = 0; i < sizeof t / sizeof *t; i++)
		if (t[i].ours == h)
			return t[i].theirs;
	if (h < 0x1000)
		abort(); /* a predefined handle that the standard does not have there */
	return (int)h;
}
static int op(H h)
{
	switch (h) {
	case 0x21: return 0x58000003;
	case 0x22: return 0x58000002;
	case 0x23: return 0x58000001;
	case 0x24: return 0x58000004;
	case 0x28: return 0x58000006;
	case 0x29: return 0x58000008;
	case 0x2a: return 0x5800000a;
	}
	abort();
}
static int peer(int p) { return p == -1 ? -2 : p == -3 ? -1 : p; }
static int tag(int t) { return t == -2 ? -1 : t; }
static void *place(void *p) { return p == (void *)1 ? (void *)-1 : p; }
static H request(int r) { return r == 0x2c000000 ? 0x180 : (H)(intptr_t)r; }
static int class(int c)
{
	return c == 14 ? 15 : c == 15 ? 16 : c == 13 ? 14 : c == 19 ? 7 : c == 7 ? 8 : c == 8 ? 9 : c == 9 ? 10 : c;
}
static void give(Status *s, const Theirs *t)
{
	if (!s)
		return;
	s->source = t->source == -2 ? -1 : t->source == -1 ? -3 : t->source;
	s->tag = t->tag == -1 ? -2 : t->tag;
	s->error = t->error;
	s->internal[3] = t->lo; /* where nobody looks for a count */
	s->internal[4] = t->hi;
}
static Theirs take(const Status *s)
{
	Theirs t = {s->internal[3], s->internal[4], s->source, s->tag, s->error};
	return t;
}

int MPI_Abi_get_version(int *major, int *minor) { *major = 1; *minor = 0; return 0; }
int MPI_Get_library_version(char *s, int *n)
{
	strcpy(s, "Forum ABI test in front of an MPI library\n");
	*n = strlen(s);
	return 0;
}
int MPI_Init_thread(int *c, char ***v, int want, int *got)
{
	int rc = F(Init_thread)(c, v, want == 2048 ? 2 : -1, got);
	*got = *got == 0 ? 0 : *got == 1 ? 1024 : *got == 2 ? 2048 : 4096;
	return rc;
}
int MPI_Finalize(void) { return F(Finalize)(); }
int MPI_Abort(H c, int code) { return F(Abort)(comm(c), code); }
int MPI_Initialized(int *f) { return F(Initialized)(f); }
int MPI_Finalized(int *f) { return F(Finalized)(f); }
int MPI_Error_class(int code, int *c) { int rc = F(Error_class)(code, c); *c = class(*c); return rc; }
int MPI_Error_string(int code, char *s, int *n) { return F(Error_string)(code, s, n); }
int MPI_Comm_rank(H c, int *r) { return F(Comm_rank)(comm(c), r); }
int MPI_Comm_size(H c, int *r) { return F(Comm_size)(comm(c), r); }
int MPI_Comm_set_errhandler(H c, H e)
{
	if (e != 0x143)
		abort();
	return F(Comm_set_errhandler)(comm(c), 0x54000001);
}
int MPI_Comm_get_attr(H c, int key, void *v, int *f)
{
	if (key != 501)
		abort();
	return F(Comm_get_attr)(comm(c), 0x64400001, v, f);
}
/* New handles are stored when the call is made, except by Comm_idup: MPICH writes it then
   too, but as an int. */
int MPI_Comm_idup(H c, H *n, H *r)
{
	int q, rc = F(Comm_idup)(comm(c), (int *)n, &q);
	*n = (H)(intptr_t)*(int *)n;
	*r = request(q);
	return rc;
}
int MPI_Comm_free(H *c) { int h = comm(*c), rc = F(Comm_free)(&h); *c = 0x100; return rc; }
int MPI_Comm_group(H c, H *g) { int h, rc = F(Comm_group)(comm(c), &h); *g = (H)(intptr_t)h; return rc; }
int MPI_Group_incl(H g, int n, const int *r, H *o) { int h, rc = F(Group_incl)((int)g, n, r, &h); *o = (H)(intptr_t)h; return rc; }
int MPI_Group_free(H *g) { int h = (int)*g; return F(Group_free)(&h); }
int MPI_Comm_create_group(H c, H g, int t, H *o) { int h, rc = F(Comm_create_group)(comm(c), (int)g, t, &h); *o = (H)(intptr_t)h; return rc; }

#define START(call) int q = 0x2c000000, rc = call; *r = request(q); return rc
int MPI_Isend(const void *b, int n, H t, int d, int g, H c, H *r) { START(F(Isend)(b, n, type(t), peer(d), g, comm(c), &q)); }
int MPI_Irecv(void *b, int n, H t, int s, int g, H c, H *r) { START(F(Irecv)(b, n, type(t), peer(s), tag(g), comm(c), &q)); }
int MPI_Isend_c(const void *b, int64_t n, H t, int d, int g, H c, H *r) { START(F(Isend_c)(b, n, type(t), peer(d), g, comm(c), &q)); }
int MPI_Irecv_c(void *b, int64_t n, H t, int s, int g, H c, H *r) { START(F(Irecv_c)(b, n, type(t), peer(s), tag(g), comm(c), &q)); }
int MPI_Test(H *r, int *f, Status *s)
{
	int q = *r == 0x180 ? 0x2c000000 : (int)*r, rc;
	Theirs t = {0};
	rc = F(Test)(&q, f, &t);
	*r = request(q);
	if (*f || rc)
		give(s, &t);
	return rc;
}
int MPI_Cancel(H *r) { int q = (int)*r; return F(Cancel)(&q); }
int MPI_Request_free(H *r) { int q = (int)*r, rc = F(Request_free)(&q); *r = 0x180; return rc; }
int MPI_Test_cancelled(const Status *s, int *f) { Theirs t = take(s); return F(Test_cancelled)(&t, f); }
int MPI_Iprobe(int p, int g, H c, int *f, Status *s)
{
	Theirs t = {0};
	int rc = F(Iprobe)(peer(p), tag(g), comm(c), f, &t);
	if (*f)
		give(s, &t);
	return rc;
}
int MPI_Get_count(const Status *s, H t, int *n) { Theirs u = take(s); return F(Get_count)(&u, type(t), n); }
int MPI_Get_elements_x(const Status *s, H t, int64_t *n) { Theirs u = take(s); return F(Get_elements_x)(&u, type(t), n); }
int MPI_Status_set_elements_x(Status *s, H t, int64_t n)
{
	Theirs u = take(s);
	int rc = F(Status_set_elements_x)(&u, type(t), n);
	give(s, &u);
	return rc;
}
int MPI_Type_create_hindexed(int n, const int *l, const intptr_t *d, H t, H *o)
{
	int h, rc = F(Type_create_hindexed)(n, l, d, type(t), &h);
	*o = (H)(intptr_t)h;
	return rc;
}
int MPI_Type_commit(H *t) { int h = (int)*t; return F(Type_commit)(&h); }
int MPI_Type_free(H *t) { int h = (int)*t; return F(Type_free)(&h); }

int MPI_Ibarrier(H c, H *r) { START(F(Ibarrier)(comm(c), &q)); }
int MPI_Ibcast(void *b, int n, H t, int root, H c, H *r) { START(F(Ibcast)(b, n, type(t), root, comm(c), &q)); }
int MPI_Ireduce(void *s, void *b, int n, H t, H o, int root, H c, H *r) { START(F(Ireduce)(place(s), b, n, type(t), op(o), root, comm(c), &q)); }
#define FOLD(name) \
	int MPI_##name(void *s, void *b, int n, H t, H o, H c, H *r) { START(F(name)(place(s), b, n, type(t), op(o), comm(c), &q)); }
FOLD(Iallreduce) FOLD(Iscan) FOLD(Iexscan) FOLD(Ireduce_scatter_block)
int MPI_Ireduce_scatter(void *s, void *b, const int *n, H t, H o, H c, H *r) { START(F(Ireduce_scatter)(place(s), b, n, type(t), op(o), comm(c), &q)); }
#define BLOCKS(name) \
	int MPI_##name(void *s, int n, H t, void *b, int m, H u, H c, H *r) { START(F(name)(place(s), n, type(t), b, m, type(u), comm(c), &q)); }
BLOCKS(Iallgather) BLOCKS(Ialltoall)
#define ROOTED(name) \
	int MPI_##name(void *s, int n, H t, void *b, int m, H u, int root, H c, H *r) { START(F(name)(place(s), n, type(t), place(b), m, type(u), root, comm(c), &q)); }
ROOTED(Igather) ROOTED(Iscatter)
int MPI_Iallgatherv(void *s, int n, H t, void *b, const int *m, const int *d, H u, H c, H *r) { START(F(Iallgatherv)(place(s), n, type(t), b, m, d, type(u), comm(c), &q)); }
int MPI_Igatherv(void *s, int n, H t, void *b, const int *m, const int *d, H u, int root, H c, H *r) { START(F(Igatherv)(place(s), n, type(t), b, m, d, type(u), root, comm(c), &q)); }
int MPI_Iscatterv(void *s, const int *m, const int *d, H t, void *b, int n, H u, int root, H c, H *r) { START(F(Iscatterv)(s, m, d, type(t), place(b), n, type(u), root, comm(c), &q)); }
int MPI_Ialltoallv(void *s, const int *m, const int *d, H t, void *b, const int *k, const int *e, H u, H c, H *r) { START(F(Ialltoallv)(s, m, d, type(t), b, k, e, type(u), comm(c), &q)); }
