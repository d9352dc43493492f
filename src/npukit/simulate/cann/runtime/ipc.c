/* Device memory that other processes see. What is exported moves, at its own address, into a file in memory (memfd);
 * the key names the process, the file and the place in it. Nothing is left behind when the processes end.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime.h"

typedef struct import {
    struct import *next;
    char key[64];
    void *mapped; /* where the mapping starts, and in it the memory that was asked for */
    void *memory;
    int uses;
} import;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static import *imports;

int npusim_open_shared(int pid, int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

unsigned long npusim_file_id(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

aclError aclrtIpcMemGetExportKey(void *memory, size_t size, char *key, size_t length, uint64_t flags) {
    (void)flags;
    REQUIRE(memory && key && length >= 64, "aclrtIpcMemGetExportKey");
    npusim_block block;
    int error = npusim_find_block(memory, &block) && block.fd < 0 ? npusim_wait_for_device(block.device, -1) : 0;
    error = error ? error : npusim_share_block(memory, &block);
    if (!error) {
        memset(key, 0, length);
        size_t offset = (size_t)((char *)memory - block.start);
        snprintf(key, length, "%d:%d:%lu:%zu:%zu", (int)getpid(), block.fd, npusim_file_id(block.fd), offset, size);
    }
    return error;
}

static int map_key(const char *key, import *new) {
    int pid, fd;
    unsigned long file_id;
    size_t offset, size;
    npusim_context *context = npusim_current_context();
    if (!context) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    if (sscanf(key, "%d:%d:%lu:%zu:%zu", &pid, &fd, &file_id, &offset, &size) != 5) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID, "This is no key of shared memory.");
    }
    int file = npusim_open_shared(pid, fd);
    size_t before = offset % PAGE, bytes = (before + size + PAGE - 1) / PAGE * PAGE;
    char *start = MAP_FAILED;
    if (file >= 0 && npusim_file_id(file) == file_id) {
        start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, (off_t)(offset - before));
    }
    if (start == MAP_FAILED) {
        if (file >= 0) {
            close(file);
        }
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID,
                            "Memory shared by process %d is gone; has it ended or freed it?", pid);
    }
    npusim_add_block((npusim_block){start, bytes, DEVICE_IMPORTED, context->device, file});
    new->mapped = start;
    new->memory = start + before;
    return ACL_SUCCESS;
}

aclError aclrtIpcMemImportByKey(void **memory, const char *key, uint64_t flags) {
    (void)flags;
    REQUIRE(memory && key && strnlen(key, 64) < 64, "aclrtIpcMemImportByKey");
    pthread_mutex_lock(&lock);
    import *known = imports;
    while (known && strcmp(known->key, key) != 0) {
        known = known->next;
    }
    int error = ACL_SUCCESS;
    if (!known) {
        known = calloc(1, sizeof *known);
        error = known ? map_key(key, known) : ACL_ERROR_RT_MEMORY_ALLOCATION;
        if (error) {
            free(known);
        } else {
            strcpy(known->key, key);
            known->next = imports;
            imports = known;
        }
    }
    if (!error) {
        known->uses++;
        *memory = known->memory;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* Closing by the exporter is allowed too: its memory then simply stays where it is. */
aclError aclrtIpcMemClose(const char *key) {
    REQUIRE(key, "aclrtIpcMemClose");
    pthread_mutex_lock(&lock);
    for (import **link = &imports; *link; link = &(*link)->next) {
        import *known = *link;
        if (strcmp(known->key, key) == 0) {
            if (--known->uses == 0) {
                npusim_block block;
                if (npusim_remove_block(known->mapped, DEVICE_IMPORTED, &block)) {
                    munmap(block.start, block.bytes);
                    close(block.fd);
                }
                *link = known->next;
                free(known);
            }
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return ACL_SUCCESS;
}

aclError aclrtIpcMemSetImportPid(const char *key, int32_t *pids, size_t count) {
    REQUIRE(key && pids && count, "aclrtIpcMemSetImportPid");
    return ACL_SUCCESS;
}
