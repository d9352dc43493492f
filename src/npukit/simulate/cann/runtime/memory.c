/* Memory of the cards and pinned host memory. A card's memory is host memory that takes no room until it is touched;
 * what a card could not hold is refused. All ranges are kept in one sorted table, so that any address can be told.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

/* What the driver and the system keep of a real card. */
static const size_t system_share = 32;   /* one part of so many */
static const size_t lazy_zero = 4 << 20; /* from here on giving pages back is cheaper than writing them */

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static npusim_block *blocks;
static size_t block_count, block_room;
static atomic_size_t used[MAX_DEVICES], peak[MAX_DEVICES];
static atomic_size_t refused[MAX_DEVICES]; /* what a fault on request refused last, 0: nothing */

static size_t page_rounded(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Index of the first block that starts after the address. */
static size_t after(const void *address) {
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].start <= (const char *)address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static npusim_block *containing(const void *address) {
    size_t index = after(address);
    if (index == 0 || (const char *)address >= blocks[index - 1].start + blocks[index - 1].bytes) {
        return NULL;
    }
    return &blocks[index - 1];
}

bool npusim_find_block(const void *address, npusim_block *found) {
    pthread_rwlock_rdlock(&lock);
    npusim_block *block = containing(address);
    if (block) {
        *found = *block;
    }
    pthread_rwlock_unlock(&lock);
    return block != NULL;
}

void npusim_add_block(npusim_block block) {
    pthread_rwlock_wrlock(&lock);
    if (block_count == block_room) {
        block_room = block_room ? 2 * block_room : 256;
        blocks = realloc(blocks, block_room * sizeof *blocks);
        if (!blocks) {
            abort();
        }
    }
    size_t index = after(block.start);
    memmove(blocks + index + 1, blocks + index, (block_count - index) * sizeof *blocks);
    blocks[index] = block;
    block_count++;
    pthread_rwlock_unlock(&lock);
}

bool npusim_remove_block(const void *start, npusim_memory_kind kind, npusim_block *removed) {
    pthread_rwlock_wrlock(&lock);
    npusim_block *block = containing(start);
    bool found = block && block->start == start && block->kind == kind;
    if (found) {
        *removed = *block;
        block_count--;
        size_t index = (size_t)(block - blocks);
        memmove(block, block + 1, (block_count - index) * sizeof *blocks);
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

void npusim_memory_fork(int stage) {
    if (stage < 0) {
        pthread_rwlock_wrlock(&lock);
    } else if (stage == 0) {
        pthread_rwlock_unlock(&lock);
    } else {
        pthread_rwlock_init(&lock, NULL);
    }
}

static size_t capacity(void) {
    size_t memory = npusim_the_machine()->memory;
    return memory - memory / system_share;
}

/* A fault on request stands up to retries, or nobody would see it: torch_npu empties its cache and asks again for as
 * much; when it gives up it asks how much is free. */
static bool refused_on_request(int device, size_t bytes) {
    bool due = npusim_next_fault(NPUSIM_ON_ALLOCATION, NULL).kind == NPUSIM_OUT_OF_MEMORY;
    bool again = atomic_load(&refused[device]) == bytes;
    atomic_store(&refused[device], due || again ? bytes : 0);
    return due || again;
}

int npusim_take_memory(int device, size_t bytes) {
    bool fault = refused_on_request(device, bytes);
    size_t before = atomic_load(&used[device]);
    do {
        if (fault || bytes > capacity() - before) {
            return npusim_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "Device %d has not %zu bytes: %zu of %zu are in use%s.",
                                device, bytes, before, capacity(), fault ? " (a fault on request)" : "");
        }
    } while (!atomic_compare_exchange_weak(&used[device], &before, before + bytes));
    size_t highest = atomic_load(&peak[device]);
    while (highest < before + bytes && !atomic_compare_exchange_weak(&peak[device], &highest, before + bytes)) {
    }
    return ACL_SUCCESS;
}

void npusim_give_memory(int device, size_t bytes) {
    atomic_fetch_sub(&used[device], bytes);
}

aclError aclrtGetMemInfo(aclrtMemAttr attribute, size_t *free_bytes, size_t *total) {
    (void)attribute;
    REQUIRE(free_bytes && total, "aclrtGetMemInfo");
    npusim_context *context = npusim_current_context();
    if (!context) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    atomic_store(&refused[context->device], 0);
    *total = npusim_the_machine()->memory;
    *free_bytes = capacity() - atomic_load(&used[context->device]);
    return ACL_SUCCESS;
}

int npusim_memory_percent(int device) {
    size_t total = npusim_the_machine()->memory;
    return (int)((total - capacity() + atomic_load(&used[device])) * 100 / total);
}

/* Work that is still under way must not fault on freed memory, as a device would not: its addresses stay, empty. */
static void give_back(const npusim_block *block) {
    if (npusim_anything_pending()) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
        mmap(block->start, block->bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    } else {
        munmap(block->start, block->bytes);
    }
    if (block->fd >= 0) {
        close(block->fd);
    }
}

aclError aclrtMallocAlign32(void **memory, size_t size, aclrtMemMallocPolicy policy) {
    (void)policy;
    npusim_moment started = npusim_moment_now();
    REQUIRE(memory && size, "aclrtMalloc");
    npusim_context *context = npusim_current_context();
    if (!context) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    size_t bytes = page_rounded(size);
    int error = npusim_take_memory(context->device, bytes);
    if (error) {
        return error;
    }
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        npusim_give_memory(context->device, bytes);
        return npusim_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "The host has no room for %zu bytes of device memory.",
                            bytes);
    }
    npusim_add_block((npusim_block){start, bytes, DEVICE_MEMORY, context->device, -1});
    *memory = start;
    npusim_profile_call("aclrtMalloc", started);
    return ACL_SUCCESS;
}

aclError aclrtMalloc(void **memory, size_t size, aclrtMemMallocPolicy policy) {
    return aclrtMallocAlign32(memory, size, policy);
}

aclError aclrtMallocWithCfg(void **memory, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig *config) {
    (void)config;
    return aclrtMallocAlign32(memory, size, policy);
}

aclError aclrtFree(void *memory) {
    npusim_moment started = npusim_moment_now();
    npusim_block block;
    if (!npusim_remove_block(memory, DEVICE_MEMORY, &block)) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID, "%p is not the start of device memory.", memory);
    }
    give_back(&block);
    npusim_give_memory(block.device, block.bytes);
    npusim_profile_call("aclrtFree", started);
    return ACL_SUCCESS;
}

/* One line a module on hardware; here the program is the only one. */
aclError aclrtGetMemUsageInfo(int32_t device, aclrtMemUsageInfo *usage, size_t room, size_t *count) {
    REQUIRE(usage && room && count, "aclrtGetMemUsageInfo");
    int error = npusim_check_device(device);
    if (!error) {
        memset(usage, 0, sizeof *usage);
        strcpy(usage->name, "APP");
        usage->curMemSize = atomic_load(&used[device]);
        usage->memPeakSize = atomic_load(&peak[device]);
        *count = 1;
    }
    return error;
}

aclError aclrtMallocHost(void **memory, size_t size) {
    REQUIRE(memory && size, "aclrtMallocHost");
    size_t bytes = page_rounded(size);
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        return npusim_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "The host has no room for %zu bytes of pinned memory.",
                            bytes);
    }
    npusim_add_block((npusim_block){start, bytes, HOST_PINNED, -1, -1});
    *memory = start;
    return ACL_SUCCESS;
}

aclError aclrtMallocHostWithCfg(void **memory, uint64_t size, aclrtMallocConfig *config) {
    (void)config;
    return aclrtMallocHost(memory, size);
}

aclError aclrtFreeHost(void *memory) {
    npusim_block block;
    if (!npusim_remove_block(memory, HOST_PINNED, &block)) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID, "%p is not the start of pinned host memory.", memory);
    }
    give_back(&block);
    return ACL_SUCCESS;
}

aclError aclrtHostRegisterV2(void *memory, uint64_t size, uint32_t flag) {
    (void)flag;
    REQUIRE(memory && size, "aclrtHostRegister");
    npusim_block block;
    if (npusim_find_block(memory, &block)) {
        if (block.kind == HOST_PINNED) {
            return ACL_SUCCESS; /* the device can reach it as it is */
        }
        return npusim_error(ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "The host memory at %p is registered already.",
                            memory);
    }
    npusim_add_block((npusim_block){memory, size, HOST_REGISTERED, -1, -1});
    return ACL_SUCCESS;
}

aclError aclrtHostRegister(void *memory, uint64_t size, aclrtHostRegisterType type, void **device_memory) {
    int error = aclrtHostRegisterV2(memory, size, (uint32_t)type);
    if (!error && device_memory) {
        *device_memory = memory;
    }
    return error;
}

aclError aclrtHostUnregister(void *memory) {
    npusim_block block;
    bool pinned = npusim_find_block(memory, &block) && block.kind == HOST_PINNED;
    if (!pinned && !npusim_remove_block(memory, HOST_REGISTERED, &block)) {
        return npusim_error(ACL_ERROR_HOST_MEMORY_NOT_REGISTERED, "The host memory at %p is not registered.", memory);
    }
    return ACL_SUCCESS;
}

bool npusim_on_device(const void *address) {
    npusim_block block;
    return npusim_find_block(address, &block) && block.kind >= DEVICE_MEMORY;
}

aclError aclrtPointerGetAttributes(const void *address, aclrtPtrAttributes *attributes) {
    REQUIRE(attributes, "aclrtPointerGetAttributes");
    memset(attributes, 0, sizeof *attributes);
    npusim_block block;
    if (!npusim_find_block(address, &block)) {
        attributes->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
        return ACL_SUCCESS;
    }
    bool on_device = block.kind >= DEVICE_MEMORY;
    attributes->location.type = on_device ? ACL_MEM_LOCATION_TYPE_DEVICE : ACL_MEM_LOCATION_TYPE_HOST;
    attributes->location.id = on_device ? (uint32_t)block.device : 0;
    attributes->pageSize = PAGE;
    return ACL_SUCCESS;
}

int npusim_shared_file(size_t bytes) {
    int fd = memfd_create("npusim", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Pages that hold only zeros need no copy: the file has them so. */
static bool copy_pages(int fd, const npusim_block *block) {
    static const char zeros[PAGE];
    for (size_t at = 0; at < block->bytes; at += PAGE) {
        if (memcmp(block->start + at, zeros, PAGE) != 0 && pwrite(fd, block->start + at, PAGE, (off_t)at) != PAGE) {
            return false;
        }
    }
    return true;
}

int npusim_share_block(const void *address, npusim_block *shared) {
    int error = ACL_SUCCESS;
    pthread_rwlock_wrlock(&lock);
    npusim_block *block = containing(address);
    if (!block || block->kind < DEVICE_MEMORY) {
        error = ACL_ERROR_RT_PARAM_INVALID;
    } else if (block->fd < 0) {
        int fd = npusim_shared_file(block->bytes);
        bool copied = fd >= 0 && copy_pages(fd, block);
        int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
        if (!copied || mmap(block->start, block->bytes, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED) {
            error = ACL_ERROR_RT_MEMORY_ALLOCATION;
        } else {
            block->fd = fd;
        }
    }
    if (!error) {
        *shared = *block;
    }
    pthread_rwlock_unlock(&lock);
    return error ? npusim_error(error, "The memory at %p cannot be given to other processes.", address) : ACL_SUCCESS;
}

/* Private pages that are given back read as zero again; a shared mapping would keep its content. */
void npusim_zero(void *memory, size_t bytes) {
    npusim_block block;
    char *first = (char *)(((uintptr_t)memory + PAGE - 1) / PAGE * PAGE);
    char *last = (char *)(((uintptr_t)memory + bytes) / PAGE * PAGE);
    bool lazy = bytes >= lazy_zero && npusim_find_block(memory, &block) && block.fd < 0 &&
                block.kind >= DEVICE_MEMORY && last <= block.start + block.bytes;
    if (!lazy || madvise(first, (size_t)(last - first), MADV_DONTNEED) != 0) {
        memset(memory, 0, bytes);
        return;
    }
    memset(memory, 0, (size_t)(first - (char *)memory));
    memset(last, 0, (size_t)((char *)memory + bytes - last));
}
