/* How ranks find each other, and how long they wait.
 *
 * The first rank makes a memfd; the others open it through /proc/PID/fd. Each rank holds a POSIX lock on one byte of
 * it, which the kernel drops when the process ends, however it ends: that is how the others know. No name exists
 * anywhere, so the kernel also takes the memory back with the last process. Ranks on other hosts: away.c.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../npusim.h"
#include "away.h"
#include "meeting.h"

enum { EXEC_TIMEOUT = 1836, POLL_MS = 50 };

int seconds_from(const char *variable, int fallback) {
    const char *text = getenv(variable);
    return text && *text ? atoi(text) : fallback;
}

int make_meeting_point(meeting_point *where, bool with_door) {
    int fd = memfd_create("npusim-hccl", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(shared_state)) != 0) {
        return npusim_error(HCCL_E_SYSCALL, "EI0007: A communicator needs shared memory, and the system gave none: %s.",
                            strerror(errno));
    }
    *where = (meeting_point){.pid = getpid(), .fd = fd, .host = this_host()};
    int32_t door = with_door ? open_door(&where->door) : -1;
    if (with_door && door < 0 && (getenv("HCCL_IF_IP") || getenv("HCCL_SOCKET_IFNAME"))) {
        return HCCL_E_NOT_FOUND;
    }
    if (pwrite(fd, &door, sizeof door, offsetof(shared_state, door)) != sizeof door ||
        getrandom(&where->nonce, sizeof where->nonce, 0) != sizeof where->nonce ||
        pwrite(fd, &where->nonce, sizeof where->nonce, offsetof(shared_state, nonce)) != sizeof where->nonce) {
        return npusim_error(HCCL_E_SYSCALL, "EI0007: The shared memory of a communicator cannot be written: %s.",
                            strerror(errno));
    }
    return HCCL_SUCCESS;
}

/* Several ranks may live in the root's process: the first takes over its descriptor, the others have copies, and each
 * closes its own. */
static int own_meeting_point(int fd) {
    shared_state *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) {
        return -1;
    }
    bool first = atomic_exchange(&shared->root_taken, 1) == 0;
    munmap(shared, sizeof *shared);
    return first ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static int open_meeting_point(const meeting_point *where) {
    if (where->pid == getpid()) {
        return own_meeting_point(where->fd);
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", where->pid, where->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* The root does not know how many ranks there will be: whoever comes makes the file large enough, and never smaller. */
static bool make_room(int fd, size_t bytes) {
    struct stat file;
    return fstat(fd, &file) == 0 && ((size_t)file.st_size >= bytes || ftruncate(fd, (off_t)bytes) == 0);
}

static communicator *map_communicator(int fd, uint32_t ranks, uint32_t rank) {
    communicator *comm = calloc(1, sizeof *comm);
    uint8_t *flags = calloc(3, ranks);
    size_t bytes = sizeof(shared_state) + (size_t)ranks * ranks * sizeof(ring);
    void *mapping = comm && flags && make_room(fd, bytes)
                        ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)
                        : MAP_FAILED;
    if (mapping == MAP_FAILED) {
        free(flags);
        free(comm);
        return NULL;
    }
    cpu_set_t cores;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    comm->shared = mapping;
    comm->bytes = bytes;
    comm->fd = fd;
    comm->ranks = ranks;
    comm->rank = rank;
    comm->spins = ranks <= (uint32_t)CPU_COUNT(&cores);
    comm->exec_timeout = seconds_from("HCCL_EXEC_TIMEOUT", EXEC_TIMEOUT);
    comm->busy_out = flags;
    comm->busy_in = flags + ranks;
    comm->touched = flags + 2 * ranks;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->turn_changed, NULL);
    atomic_init(&comm->holders, 1);
    return comm;
}

/* "1, 3": the ranks that have not joined, or that have left again. */
static bool list_ranks(const communicator *comm, bool left, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (uint32_t rank = 0; rank < comm->ranks && used + 12 < size; rank++) {
        bool joined = atomic_load(&comm->shared->members[rank].pid) != 0;
        if (left ? joined && !peer_is_there(comm, rank) : !joined) {
            used += (size_t)snprintf(text + used, size - used, used ? ", %u" : "%u", rank);
        }
    }
    return used != 0;
}

static int register_rank(communicator *comm) {
    struct flock lock = lock_of(comm->rank);
    uint32_t nobody = 0;
    int32_t no_pid = 0;
    if (!atomic_compare_exchange_strong(&comm->shared->ranks, &nobody, comm->ranks) && nobody != comm->ranks) {
        return npusim_error(HCCL_E_PARA,
                            "EI0005: The ranks disagree about their communicator: parameter[nRanks], rank %u has [%u], "
                            "another one has [%u].",
                            comm->rank, comm->ranks, nobody);
    }
    if (fcntl(comm->fd, F_SETLK, &lock) != 0 ||
        !atomic_compare_exchange_strong(&comm->shared->members[comm->rank].pid, &no_pid, getpid())) {
        return npusim_error(HCCL_E_PARA,
                            "EI0004: Rank %u joined its communicator twice: give every process a rank of "
                            "its own.",
                            comm->rank);
    }
    atomic_fetch_add(&comm->shared->joined, 1);
    futex_wake_shared(&comm->shared->joined);
    return HCCL_SUCCESS;
}

static int wait_for_all(communicator *comm, const meeting_point *where, int timeout, int64_t deadline) {
    char left[128], missing[128], root[64];
    snprintf(root, sizeof root, "/proc/%d/fd/%d", where->pid, where->fd);
    for (;;) {
        if (comm->visitors) {
            admit_visitors(comm);
        }
        bool any_left = list_ranks(comm, true, left, sizeof left);
        bool root_left = where->pid != getpid() && access(root, F_OK) != 0;
        list_ranks(comm, false, missing, sizeof missing);
        /* Asked last: once all have met, anybody may leave. */
        uint32_t joined = atomic_load(&comm->shared->joined);
        if (joined == comm->ranks) {
            return HCCL_SUCCESS;
        }
        if (any_left) {
            return npusim_error(HCCL_E_REMOTE,
                                "EI0015: The ranks of a communicator cannot meet: rank [%s] has ended "
                                "or given up. Look for its error first.",
                                left);
        }
        if (root_left) {
            return npusim_error(HCCL_E_REMOTE,
                                "EI0015: The ranks of a communicator cannot meet: the root process (PID "
                                "%d) has ended. Look for its error first.",
                                where->pid);
        }
        if (now_ms() >= deadline) {
            return npusim_error(HCCL_E_TIMEOUT,
                                "EI0015: The ranks of a communicator did not meet within %d s: %u of %u came, missing "
                                "rank [%s]. Check that every rank runs and makes its process groups in the same order, "
                                "or give them longer with HCCL_CONNECT_TIMEOUT.",
                                timeout, joined, comm->ranks, missing);
        }
        futex_wait_shared(&comm->shared->joined, joined, POLL_MS);
    }
}

static void configure(communicator *comm, const HcclCommConfig *config, const meeting_point *where) {
    endpoint door = where->door.port ? where->door : (endpoint){htonl(INADDR_LOOPBACK), htons(60000), 0};
    snprintf(comm->name, sizeof comm->name, "%s_%016lx", endpoint_text(&door), (unsigned long)where->nonce);
    if (!config) {
        return;
    }
    if (config->size >= offsetof(HcclCommConfig, udi) && config->name[0]) {
        memcpy(comm->name, config->name, sizeof comm->name - 1);
    }
    if (config->size >= sizeof *config && config->exec_timeout >= 0) {
        comm->exec_timeout = config->exec_timeout;
    }
}

/* On the root's host: in its mapping, with links to those who are away. */
static int join_here(communicator *comm, const meeting_point *where, int timeout, int64_t deadline) {
    bool root = where->pid == getpid() && comm->shared->door >= 0;
    comm->visitors = root ? malloc(comm->ranks * sizeof *comm->visitors) : NULL;
    for (uint32_t rank = 0; comm->visitors && rank < comm->ranks; rank++) {
        comm->visitors[rank] = -1;
    }
    int result = register_rank(comm);
    result = result ? result : wait_for_all(comm, where, timeout, deadline);
    if (comm->visitors) {
        dismiss_visitors(comm, result, deadline);
    }
    return result ? result : link_to_those_away(comm, deadline);
}

int join(const meeting_point *where, uint32_t ranks, uint32_t rank, const HcclCommConfig *config, void **out) {
    if (ranks == 0 || ranks > MAX_RANKS || rank >= ranks) {
        return npusim_error(HCCL_E_PARA, "EI0003: Rank %u of %u is not possible in a communicator.", rank, ranks);
    }
    int timeout = seconds_from("HCCL_CONNECT_TIMEOUT", CONNECT_TIMEOUT);
    int64_t deadline = now_ms() + timeout * 1000LL;
    bool away = where->host != this_host();
    meeting_point own = *where;
    int result = away ? make_meeting_point(&own, false) : HCCL_SUCCESS;
    int fd = result ? -1 : open_meeting_point(&own);
    communicator *comm = fd < 0 ? NULL : map_communicator(fd, ranks, rank);
    if (!comm || (!away && comm->shared->nonce != where->nonce)) {
        if (comm) {
            communicator_release(comm);
        }
        return npusim_error(HCCL_E_REMOTE,
                            "EI0015: Rank %u cannot reach the root process (PID %d) of its "
                            "communicator: it has ended, or belongs to another user.",
                            rank, where->pid);
    }
    comm->shared->nonce = where->nonce;
    configure(comm, config, where);
    result = away ? join_from_away(comm, where, deadline) : join_here(comm, where, timeout, deadline);
    if (result) {
        communicator_release(comm);
        return result;
    }
    *out = comm;
    return HCCL_SUCCESS;
}

HcclResult HcclGetRootInfo(HcclRootInfo *info) {
    if (!info) {
        return HCCL_E_PTR;
    }
    meeting_point where;
    int result = make_meeting_point(&where, may_have_ranks_away());
    memset(info, 0, sizeof *info);
    memcpy(info->internal, &where, sizeof where);
    return (HcclResult)result;
}

HcclResult HcclCommInitRootInfoConfig(uint32_t ranks, const HcclRootInfo *info, uint32_t rank,
                                      const HcclCommConfig *config, void **comm) {
    if (!info || !comm) {
        return HCCL_E_PTR;
    }
    meeting_point where;
    memcpy(&where, info->internal, sizeof where);
    return (HcclResult)join(&where, ranks, rank, config, comm);
}

HcclResult HcclCommInitRootInfo(uint32_t ranks, const HcclRootInfo *info, uint32_t rank, void **comm) {
    return HcclCommInitRootInfoConfig(ranks, info, rank, NULL, comm);
}

/* One process that drives several cards: nobody to wait for, so the ranks are joined one after the other. */
HcclResult HcclCommInitAll(uint32_t count, int32_t *devices, void **comms) {
    (void)devices;
    meeting_point where;
    int result = count && count <= MAX_RANKS && comms ? make_meeting_point(&where, false) : HCCL_E_PARA;
    for (uint32_t rank = 0; !result && rank < count; rank++) {
        communicator *comm = map_communicator(rank ? dup(where.fd) : where.fd, count, rank);
        if (!comm) {
            return HCCL_E_MEMORY;
        }
        configure(comm, NULL, &where);
        result = register_rank(comm);
        comms[rank] = comm;
    }
    return (HcclResult)result;
}
