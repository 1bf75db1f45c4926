/* Notes the size of every block that is asked for, in order, aligned ones below zero: LD_PRELOAD it. glibc only. */
#include <stdatomic.h>
#include <stddef.h>
extern void *__libc_malloc(size_t);
extern void *__libc_memalign(size_t, size_t);
enum { MOST = 1 << 16 };
static long sizes[MOST];
static atomic_long count;
static atomic_int is_on;
static void note(long size) {
    if (!atomic_load(&is_on)) return;
    long at = atomic_fetch_add(&count, 1);
    if (at < MOST) sizes[at] = size;
}
void *malloc(size_t size) { note((long)size); return __libc_malloc(size); }
void *memalign(size_t alignment, size_t size) { note(-(long)size); return __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void **out, size_t alignment, size_t size) {
    *out = memalign(alignment, size);
    return *out ? 0 : 12;
}
void blocks_start(void) { atomic_store(&count, 0); atomic_store(&is_on, 1); }
long blocks_stop(void) { atomic_store(&is_on, 0); return atomic_load(&count); }
long block(long at) { return sizes[at]; }
