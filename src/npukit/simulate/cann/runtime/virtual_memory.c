/* Addresses and memory apart, as expandable segments want them. Physical memory is only counted until it is mapped;
 * its pages come with the mapping, and go with it: what is mapped nowhere is zero when it is mapped again. It gets a
 * memfd, and keeps its bytes, when a second mapping or another process must see them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime.h"

typedef struct physical_memory {
    struct physical_memory *next; /* among those that are mapped without a memfd */
    size_t bytes;
    int device;
    int fd;          /* -1 while one private mapping is all there is */
    void *mapped_at; /* that mapping */
    bool borrowed;   /* of another process: not counted here */
} physical_memory;

typedef struct reservation {
    struct reservation *next;
    char *start;
    size_t bytes;
} reservation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static reservation *reservations;
static physical_memory *mapped_privately;

/* Takes the memory out of the list, by itself or by its address. */
static void forget_mapping(const physical_memory *memory, const void *address) {
    for (physical_memory **link = &mapped_privately; *link; link = &(*link)->next) {
        physical_memory *found = *link;
        if (found == memory || (address && found->mapped_at == address)) {
            found->mapped_at = NULL;
            *link = found->next;
            return;
        }
    }
}

aclError aclrtReserveMemAddress(void **address, size_t size, size_t alignment, void *wanted, uint64_t flags) {
    (void)alignment, (void)flags;
    REQUIRE(address && size, "aclrtReserveMemAddress");
    npusim_context *context = npusim_current_context();
    if (!context) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    size_t huge = 2 << 20; /* as the device does, start on a huge page */
    char *start = mmap(wanted, size + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        return npusim_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "No %zu bytes of addresses are free.", size);
    }
    char *aligned = (char *)(((uintptr_t)start + huge - 1) / huge * huge);
    if (aligned > start) {
        munmap(start, (size_t)(aligned - start));
    }
    munmap(aligned + size, (size_t)(start + huge - aligned));
    reservation *reserved = malloc(sizeof *reserved);
    REQUIRE(reserved, "aclrtReserveMemAddress");
    pthread_mutex_lock(&lock);
    *reserved = (reservation){reservations, aligned, size};
    reservations = reserved;
    pthread_mutex_unlock(&lock);
    *address = aligned;
    return ACL_SUCCESS;
}

aclError aclrtReleaseMemAddress(void *address) {
    pthread_mutex_lock(&lock);
    reservation **link = &reservations;
    while (*link && (*link)->start != address) {
        link = &(*link)->next;
    }
    reservation *found = *link;
    if (found) {
        *link = found->next;
    }
    pthread_mutex_unlock(&lock);
    if (!found) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID, "%p is not the start of reserved addresses.", address);
    }
    munmap(found->start, found->bytes);
    free(found);
    return ACL_SUCCESS;
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size, const aclrtPhysicalMemProp *property,
                             uint64_t flags) {
    (void)flags;
    REQUIRE(handle && property && size && size % PAGE == 0, "aclrtMallocPhysical");
    int device = (int)property->location.id;
    int error = npusim_check_device(device);
    error = error ? error : npusim_take_memory(device, size);
    if (error) {
        return error;
    }
    physical_memory *memory = malloc(sizeof *memory);
    REQUIRE(memory, "aclrtMallocPhysical");
    *memory = (physical_memory){NULL, size, device, -1, NULL, false};
    *handle = memory;
    return ACL_SUCCESS;
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
    REQUIRE(handle, "aclrtFreePhysical");
    physical_memory *memory = handle;
    pthread_mutex_lock(&lock);
    forget_mapping(memory, NULL);
    pthread_mutex_unlock(&lock);
    if (memory->fd >= 0) {
        close(memory->fd);
    }
    if (!memory->borrowed) {
        npusim_give_memory(memory->device, memory->bytes);
    }
    free(memory);
    return ACL_SUCCESS;
}

/* From here on the bytes live in a file in memory that others can map. */
static int make_shared(physical_memory *memory) {
    if (memory->fd < 0) {
        npusim_block block = {NULL, 0, DEVICE_MEMORY, memory->device, -1};
        int error = memory->mapped_at ? npusim_share_block(memory->mapped_at, &block) : ACL_SUCCESS;
        memory->fd = memory->mapped_at ? dup(block.fd) : npusim_shared_file(memory->bytes);
        if (error || memory->fd < 0) {
            return npusim_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "The host cannot share %zu bytes.", memory->bytes);
        }
        forget_mapping(memory, NULL);
    }
    return ACL_SUCCESS;
}

aclError aclrtMapMem(void *address, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
    (void)flags;
    physical_memory *memory = handle;
    REQUIRE(address && memory && offset == 0 && size <= memory->bytes, "aclrtMapMem");
    pthread_mutex_lock(&lock);
    int error = memory->mapped_at ? make_shared(memory) : ACL_SUCCESS;
    int kind = MAP_FIXED | MAP_NORESERVE | (memory->fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
    if (!error && mmap(address, size, PROT_READ | PROT_WRITE, kind, memory->fd, 0) == MAP_FAILED) {
        error = npusim_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "The host cannot map %zu bytes at %p.", size, address);
    }
    if (!error) {
        if (memory->fd < 0) {
            memory->mapped_at = address;
            memory->next = mapped_privately;
            mapped_privately = memory;
        }
        int fd = memory->fd >= 0 ? dup(memory->fd) : -1;
        npusim_add_block((npusim_block){address, size, DEVICE_MAPPED, memory->device, fd});
    }
    pthread_mutex_unlock(&lock);
    return error;
}

aclError aclrtUnmapMem(void *address) {
    npusim_block block;
    if (!npusim_remove_block(address, DEVICE_MAPPED, &block)) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID, "Nothing is mapped at %p.", address);
    }
    pthread_mutex_lock(&lock);
    forget_mapping(NULL, address);
    pthread_mutex_unlock(&lock);
    mmap(block.start, block.bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block.fd >= 0) {
        close(block.fd);
    }
    return ACL_SUCCESS;
}

/* A shareable handle is the process and its file: anyone who may look into the process can map it. */
aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType type, uint64_t flags,
                                         uint64_t *shareable) {
    (void)type, (void)flags;
    REQUIRE(handle && shareable, "aclrtMemExportToShareableHandle");
    physical_memory *memory = handle;
    pthread_mutex_lock(&lock);
    int error = make_shared(memory);
    pthread_mutex_unlock(&lock);
    *shareable = error ? 0 : (uint64_t)getpid() << 32 | (uint32_t)memory->fd;
    return error;
}

aclError aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, aclrtDrvMemHandle *handle) {
    REQUIRE(handle, "aclrtMemImportFromShareableHandle");
    int error = npusim_check_device(device);
    if (error) {
        return error;
    }
    int fd = npusim_open_shared((pid_t)(shareable >> 32), (int)(uint32_t)shareable);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID, "The process that shared this memory is gone or not ours.");
    }
    physical_memory *memory = malloc(sizeof *memory);
    REQUIRE(memory, "aclrtMemImportFromShareableHandle");
    *memory = (physical_memory){NULL, (size_t)status.st_size, device, fd, NULL, true};
    *handle = memory;
    return ACL_SUCCESS;
}

aclError aclrtMemSetPidToShareableHandle(uint64_t shareable, int32_t *pids, size_t count) {
    (void)shareable;
    REQUIRE(pids && count, "aclrtMemSetPidToShareableHandle");
    return ACL_SUCCESS;
}

aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp *property, aclrtMemGranularityOptions option,
                                          size_t *granularity) {
    (void)option;
    REQUIRE(property && granularity, "aclrtMemGetAllocationGranularity");
    *granularity = 2 << 20;
    return ACL_SUCCESS;
}
