/* Communicators once they exist: who is still there, what they are called, how they end. */
#include "communicator.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../npusim.h"
#include "links.h"

void communicator_hold(communicator *comm) {
    atomic_fetch_add(&comm->holders, 1);
}

void communicator_release(communicator *comm) {
    if (atomic_fetch_sub(&comm->holders, 1) != 1) {
        return;
    }
    if (comm->links) {
        links_end(comm);
    }
    munmap(comm->shared, comm->bytes);
    close(comm->fd);
    free(comm->busy_out);
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->turn_changed);
    free(comm);
}

int end_communicator(communicator *comm, HcclResult result, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(comm->failure, sizeof comm->failure, format, arguments);
    va_end(arguments);
    comm->failure_code = code;
    atomic_store(&comm->failed, result);
    return report_failure(comm);
}

int report_failure(const communicator *comm) {
    return npusim_error(comm->failure_code, "%s", comm->failure);
}

struct flock lock_of(uint32_t rank) {
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

bool peer_is_there(const communicator *comm, uint32_t peer) {
    if (is_linked(comm, peer)) {
        return link_is_there(comm, peer);
    }
    int pid = atomic_load(&comm->shared->members[peer].pid);
    if (pid == PID_AWAY) {
        return !comm->visitors || comm->visitors[peer] >= 0;
    }
    if (pid == getpid()) {
        return true; /* a process does not see its own locks */
    }
    struct flock lock = lock_of(peer);
    return fcntl(comm->fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

HcclResult HcclCommDestroy(void *comm) {
    if (!comm) {
        return HCCL_E_PTR;
    }
    communicator_release(comm); /* what is still on a stream keeps it until it is done */
    return HCCL_SUCCESS;
}

HcclResult HcclGetCommName(void *comm, char *name) {
    if (!comm || !name) {
        return HCCL_E_PTR;
    }
    memcpy(name, ((communicator *)comm)->name, HCCL_COMM_NAME_LENGTH);
    return HCCL_SUCCESS;
}

HcclResult HcclGetRankSize(void *comm, uint32_t *ranks) {
    *ranks = ((communicator *)comm)->ranks;
    return HCCL_SUCCESS;
}

HcclResult HcclGetRankId(void *comm, uint32_t *rank) {
    *rank = ((communicator *)comm)->rank;
    return HCCL_SUCCESS;
}

HcclResult HcclGetCommAsyncError(void *comm, HcclResult *error) {
    if (!comm || !error) {
        return HCCL_E_PTR;
    }
    *error = (HcclResult)atomic_load(&((communicator *)comm)->failed);
    if (*error) {
        report_failure(comm); /* the thread that asks is not the one that met the error */
    }
    return HCCL_SUCCESS;
}

uint32_t HcclGetCommConfigCapability(void) {
    return HCCL_COMM_CONFIG_CAPABILITIES;
}

HcclResult HcclCommSuspend(void *comm) {
    return comm ? HCCL_SUCCESS : HCCL_E_PTR;
}

/* What was under way in a communicator that failed is lost, on every rank: it cannot go on. */
HcclResult HcclCommResume(void *comm) {
    if (!comm) {
        return HCCL_E_PTR;
    }
    communicator *self = comm;
    if (!atomic_load(&self->failed)) {
        return HCCL_SUCCESS;
    }
    return (HcclResult)npusim_error(HCCL_E_NOT_SUPPORT,
                                    "Communicator %s failed and cannot be resumed on a simulated "
                                    "NPU: destroy its process group and make a new one.",
                                    self->name);
}

/* Every simulated collective is deterministic already. */
HcclResult HcclSetConfig(int32_t config, int32_t value) {
    (void)config;
    (void)value;
    return HCCL_SUCCESS;
}

HcclResult HcclGetConfig(int32_t config, int32_t *value) {
    (void)config;
    *value = 1;
    return HCCL_SUCCESS;
}
