/* Counts all heap bytes of a process: LD_PRELOAD it. glibc only. Tests compare the runtime's counters with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
static atomic_long current, peak;
extern void *__libc_malloc(size_t), *__libc_calloc(size_t,size_t), *__libc_realloc(void*,size_t), *__libc_memalign(size_t,size_t); extern void __libc_free(void*);
static void add(long n){ long c=atomic_fetch_add(&current,n)+n; long p=atomic_load(&peak); while(c>p && !atomic_compare_exchange_weak(&peak,&p,c)); }
static void *in(void*p){ if(p) add(malloc_usable_size(p)); return p; }
void *malloc(size_t n){ return in(__libc_malloc(n)); }
void *calloc(size_t n,size_t m){ return in(__libc_calloc(n,m)); }
void free(void*p){ if(p) add(-(long)malloc_usable_size(p)); __libc_free(p); }
void *realloc(void*p,size_t n){ if(p) add(-(long)malloc_usable_size(p)); return in(__libc_realloc(p,n)); }
void *memalign(size_t a,size_t n){ return in(__libc_memalign(a,n)); }
void *aligned_alloc(size_t a,size_t n){ return in(__libc_memalign(a,n)); }
int posix_memalign(void**o,size_t a,size_t n){ void*p=__libc_memalign(a,n); if(!p) return 12; *o=in(p); return 0; }
long memcount_current(void){ return atomic_load(&current);} long memcount_peak(void){ return atomic_load(&peak);} void memcount_reset(void){ atomic_store(&peak, atomic_load(&current)); }
