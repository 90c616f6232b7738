/* Counts the unmappings that UCX is told of, for the test of cached registrations.
   UCX's own declarations are repeated so that its headers need not be installed. */
#include <stddef.h>

typedef union {
	struct {
		void *address;
		size_t size;
	} vm_unmapped;
	char room[64];
} ucm_event;

enum { VM_UNMAPPED = 1 << 17, KEPT = 256 };

int ucm_set_event_handler(int events, int priority, void (*f)(int, ucm_event *, void *), void *arg);

static struct {
	void *address;
	size_t size;
} seen[KEPT];
static int count;

static void note(int type, ucm_event *event, void *arg)
{
	if (type == VM_UNMAPPED) {
		int i = __sync_fetch_and_add(&count, 1) % KEPT;
		seen[i].address = event->vm_unmapped.address;
		seen[i].size = event->vm_unmapped.size;
	}
}

int count_install(void) { return ucm_set_event_handler(VM_UNMAPPED, 0, note, NULL); }

/* How many of the events kept cover [address, address+size). */
int count_covering(char *address, size_t size)
{
	int n = 0;
	for (int i = 0; i < KEPT; i++) {
		char *from = seen[i].address;
		n += from && from <= address && address + size <= from + seen[i].size;
	}
	return n;
}
