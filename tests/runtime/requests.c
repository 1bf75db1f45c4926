/* Notes every aligned request of a process and when it is given back, in order: LD_PRELOAD it. glibc only.
   With the arena off, the runtime's CPU allocator asks the system for each tensor like this. */
#include <stdatomic.h>
#include <stddef.h>
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
enum { MOST = 1 << 20, ALIGNMENT = 64, FREED = -1 };
static struct { long size; void *place; } events[MOST];
static atomic_long count;
static atomic_int is_on;
static void note(long size, void *place) {
    if (!atomic_load(&is_on)) return;
    long at = atomic_fetch_add(&count, 1);
    if (at < MOST) { events[at].size = size; events[at].place = place; }
}
static void *aligned(size_t alignment, size_t size) {
    void *place = __libc_memalign(alignment, size);
    if (place && alignment >= ALIGNMENT) note((long)size, place);
    return place;
}
int posix_memalign(void **out, size_t alignment, size_t size) { *out = aligned(alignment, size); return *out ? 0 : 12; }
void *aligned_alloc(size_t alignment, size_t size) { return aligned(alignment, size); }
void *memalign(size_t alignment, size_t size) { return aligned(alignment, size); }
void free(void *place) { if (place) note(FREED, place); __libc_free(place); }
void requests_start(void) { atomic_store(&count, 0); atomic_store(&is_on, 1); }
long requests_stop(void) { atomic_store(&is_on, 0); return atomic_load(&count); }
long request_size(long at) { return events[at].size; }
void *request_place(long at) { return events[at].place; }
