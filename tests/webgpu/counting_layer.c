/* A Vulkan layer that counts the bytes of buffers and of memory, and where it is told to loses the device or has no more.

It lies between the loader and the driver, so it sees what a provider really takes, whatever that says of itself. The
declarations are those of Vulkan 1.0 and of the loader's interface for layers, version 2; only what is read is spelt out.
*/
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define LAYER_INSTANCE_INFO 47
#define LAYER_DEVICE_INFO 48
#define USAGE_UNIFORM 0x10u
#define USAGE_STORAGE 0x20u
#define OUT_OF_DEVICE_MEMORY (-2)
#define DEVICE_LOST (-4)
#define INITIALIZATION_FAILED (-3)
#define MOST_TRACKED 65536

typedef void (*Function)(void);
typedef Function (*GetProc)(void *, const char *);
typedef struct Link { struct Link *next; GetProc instance_proc; GetProc other_proc; } Link;
typedef struct Chain { int32_t type; struct Chain *next; int32_t function; union { Link *link; void *other; } u; } Chain;
typedef struct { int32_t type; const void *next; uint32_t flags; uint64_t size; uint32_t usage; } BufferInfo;
typedef struct { int32_t type; const void *next; uint64_t size; uint32_t memory_type; } AllocateInfo;
typedef struct { int32_t type; void *next; uint32_t version; GetProc instance_proc, device_proc, physical_proc; } Negotiation;

/* What is counted: storage buffers, uniform buffers, all other buffers (staging), and device memory. */
enum { STORAGE, UNIFORM, OTHER, MEMORY, KINDS };
typedef struct { uint64_t handle, size; int kind; } Tracked;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Tracked tracked[MOST_TRACKED];
static int tracked_count;
static uint64_t live[KINDS], peak[KINDS], made[KINDS], submits;
static GetProc next_instance_proc, next_device_proc;
static int32_t (*next_create_buffer)(void *, const BufferInfo *, const void *, uint64_t *);
static void (*next_destroy_buffer)(void *, uint64_t, const void *);
static int32_t (*next_allocate)(void *, const AllocateInfo *, const void *, uint64_t *);
static void (*next_free)(void *, uint64_t, const void *);
static int32_t (*next_submit)(void *, uint32_t, const void *, uint64_t);

EXPORT uint64_t layer_live_bytes(int kind) { return live[kind]; }
EXPORT uint64_t layer_peak_bytes(int kind) { return peak[kind]; }
EXPORT uint64_t layer_made(int kind) { return made[kind]; }
EXPORT uint64_t layer_submits(void) { return submits; }
/* Sizes of what is live now of a kind, at most so many; how many there are. */
EXPORT int layer_sizes(int kind, uint64_t *sizes, int most) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < tracked_count; i++)
        if (tracked[i].kind == kind && found++ < most) sizes[found - 1] = tracked[i].size;
    pthread_mutex_unlock(&lock);
    return found;
}

EXPORT void layer_begin(void) {
    pthread_mutex_lock(&lock);
    memcpy(peak, live, sizeof peak);
    memset(made, 0, sizeof made);
    pthread_mutex_unlock(&lock);
}

static void add(uint64_t handle, uint64_t size, int kind) {
    pthread_mutex_lock(&lock);
    if (tracked_count == MOST_TRACKED) abort();
    tracked[tracked_count++] = (Tracked){handle, size, kind};
    live[kind] += size;
    made[kind]++;
    if (live[kind] > peak[kind]) peak[kind] = live[kind];
    pthread_mutex_unlock(&lock);
}

static void drop(uint64_t handle, int is_memory) {
    pthread_mutex_lock(&lock);
    for (int i = tracked_count; i--;)
        if (tracked[i].handle == handle && (tracked[i].kind == MEMORY) == is_memory) {
            live[tracked[i].kind] -= tracked[i].size;
            tracked[i] = tracked[--tracked_count];
            break;
        }
    pthread_mutex_unlock(&lock);
}

static int32_t create_buffer(void *device, const BufferInfo *info, const void *allocator, uint64_t *buffer) {
    int32_t result = next_create_buffer(device, info, allocator, buffer);
    int kind = info->usage & USAGE_STORAGE ? STORAGE : info->usage & USAGE_UNIFORM ? UNIFORM : OTHER;
    if (result == 0) add(*buffer, info->size, kind);
    return result;
}

static void destroy_buffer(void *device, uint64_t buffer, const void *allocator) {
    drop(buffer, 0);
    next_destroy_buffer(device, buffer, allocator);
}

/* More than so many bytes at once are not there. */
static int32_t allocate(void *device, const AllocateInfo *info, const void *allocator, uint64_t *memory) {
    const char *most = getenv("LAYER_MOST_AT_ONCE");
    if (most && info->size > strtoull(most, NULL, 10)) return OUT_OF_DEVICE_MEMORY;
    int32_t result = next_allocate(device, info, allocator, memory);
    if (result == 0) add(*memory, info->size, MEMORY);
    return result;
}

static void free_memory(void *device, uint64_t memory, const void *allocator) {
    drop(memory, 1);
    next_free(device, memory, allocator);
}

/* From the submit of that number on (counted from 1), the device is lost. */
static int32_t submit(void *queue, uint32_t count, const void *infos, uint64_t fence) {
    const char *last = getenv("LAYER_LOSES_DEVICE_AT");
    submits++;
    if (last && submits >= strtoull(last, NULL, 10)) return DEVICE_LOST;
    return next_submit(queue, count, infos, fence);
}

static Link *taken(const void *info, int32_t type) {
    Chain *chain = *(Chain **)((char *)info + sizeof(void *)); /* pNext, behind sType and padding */
    while (chain && !(chain->type == type && chain->function == 0)) chain = chain->next;
    if (!chain || !chain->u.link) return NULL;
    Link *link = chain->u.link;
    chain->u.link = link->next; /* the next layer finds its own */
    return link;
}

static int32_t create_instance(const void *info, const void *allocator, void **instance) {
    Link *link = taken(info, LAYER_INSTANCE_INFO);
    if (!link) return INITIALIZATION_FAILED;
    next_instance_proc = link->instance_proc;
    int32_t (*next)(const void *, const void *, void **) = (void *)next_instance_proc(NULL, "vkCreateInstance");
    return next(info, allocator, instance);
}

static int32_t create_device(void *physical, const void *info, const void *allocator, void **device) {
    Link *link = taken(info, LAYER_DEVICE_INFO);
    if (!link) return INITIALIZATION_FAILED;
    next_device_proc = link->other_proc;
    int32_t (*next)(void *, const void *, const void *, void **) = (void *)link->instance_proc(NULL, "vkCreateDevice");
    int32_t result = next(physical, info, allocator, device);
    if (result) return result;
    next_create_buffer = (void *)next_device_proc(*device, "vkCreateBuffer");
    next_destroy_buffer = (void *)next_device_proc(*device, "vkDestroyBuffer");
    next_allocate = (void *)next_device_proc(*device, "vkAllocateMemory");
    next_free = (void *)next_device_proc(*device, "vkFreeMemory");
    next_submit = (void *)next_device_proc(*device, "vkQueueSubmit");
    return 0;
}

static Function instance_proc(void *instance, const char *name);
static Function device_proc(void *device, const char *name);
static const struct { const char *name; void *function; } OURS[] = {
    {"vkGetInstanceProcAddr", instance_proc}, {"vkGetDeviceProcAddr", device_proc},
    {"vkCreateInstance", create_instance},    {"vkCreateDevice", create_device},
    {"vkCreateBuffer", create_buffer},        {"vkDestroyBuffer", destroy_buffer},
    {"vkAllocateMemory", allocate},           {"vkFreeMemory", free_memory},
    {"vkQueueSubmit", submit},
};

static Function ours(const char *name) {
    for (size_t i = 0; i < sizeof OURS / sizeof *OURS; i++)
        if (!strcmp(name, OURS[i].name)) return (Function)OURS[i].function;
    return NULL;
}

static Function instance_proc(void *instance, const char *name) {
    Function found = ours(name);
    return found ? found : next_instance_proc ? next_instance_proc(instance, name) : NULL;
}

static Function device_proc(void *device, const char *name) {
    Function found = ours(name);
    return found ? found : next_device_proc(device, name);
}

EXPORT int32_t vkNegotiateLoaderLayerInterfaceVersion(Negotiation *told) {
    if (told->version > 2) told->version = 2;
    told->instance_proc = instance_proc;
    told->device_proc = device_proc;
    told->physical_proc = NULL;
    return 0;
}
