/* How ranks find each other, and how long they wait.
 *
 * The first rank makes a memfd; the others open it through /proc/PID/fd. Each rank holds a POSIX lock on one byte of
 * it, which the kernel drops when the process ends, however it ends: that is how the others know. No name exists
 * anywhere, so the kernel also takes the memory back with the last process.
 */
#define _GNU_SOURCE
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
#include "communicator.h"

enum { CONNECT_TIMEOUT = 120, EXEC_TIMEOUT = 1836, POLL_MS = 50 };
enum { FREE_SLOT = 0, BUSY_SLOT = 1, FIRST_KEY = 2 }; /* of a pending group's key */

static int seconds_from(const char *variable, int fallback) {
    const char *text = getenv(variable);
    return text && *text ? atoi(text) : fallback;
}

static int make_meeting_point(meeting_point *where) {
    int fd = memfd_create("npusim-hccl", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(shared_state)) != 0) {
        return npusim_error(HCCL_E_SYSCALL, "EI0007: A communicator needs shared memory, and the system gave none: %s.",
                            strerror(errno));
    }
    *where = (meeting_point){.pid = getpid(), .fd = fd};
    if (getrandom(&where->nonce, sizeof where->nonce, 0) != sizeof where->nonce ||
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
                            "another one has [%u].", comm->rank, comm->ranks, nobody);
    }
    if (fcntl(comm->fd, F_SETLK, &lock) != 0 ||
        !atomic_compare_exchange_strong(&comm->shared->members[comm->rank].pid, &no_pid, getpid())) {
        return npusim_error(HCCL_E_PARA, "EI0004: Rank %u joined its communicator twice: give every process a rank of "
                                         "its own.", comm->rank);
    }
    atomic_fetch_add(&comm->shared->joined, 1);
    futex_wake_shared(&comm->shared->joined);
    return HCCL_SUCCESS;
}

static int wait_for_all(const communicator *comm, const meeting_point *where) {
    int timeout = seconds_from("HCCL_CONNECT_TIMEOUT", CONNECT_TIMEOUT);
    int64_t deadline = now_ms() + timeout * 1000LL;
    char left[128], missing[128], root[64];
    snprintf(root, sizeof root, "/proc/%d/fd/%d", where->pid, where->fd);
    for (;;) {
        bool any_left = list_ranks(comm, true, left, sizeof left);
        bool root_left = where->pid != getpid() && access(root, F_OK) != 0;
        list_ranks(comm, false, missing, sizeof missing);
        /* Asked last: once all have met, anybody may leave. */
        uint32_t joined = atomic_load(&comm->shared->joined);
        if (joined == comm->ranks) {
            return HCCL_SUCCESS;
        }
        if (any_left) {
            return npusim_error(HCCL_E_REMOTE, "EI0015: The ranks of a communicator cannot meet: rank [%s] has ended "
                                               "or given up. Look for its error first.", left);
        }
        if (root_left) {
            return npusim_error(HCCL_E_REMOTE, "EI0015: The ranks of a communicator cannot meet: the root process (PID "
                                               "%d) has ended. Look for its error first.", where->pid);
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

static void configure(communicator *comm, const HcclCommConfig *config, uint64_t nonce) {
    snprintf(comm->name, sizeof comm->name, "127.0.0.1%%lo_60000_0_%016lx", (unsigned long)nonce);
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

static int join(const meeting_point *where, uint32_t ranks, uint32_t rank, const HcclCommConfig *config, void **out) {
    if (ranks == 0 || ranks > MAX_RANKS || rank >= ranks) {
        return npusim_error(HCCL_E_PARA, "EI0003: Rank %u of %u is not possible in a communicator.", rank, ranks);
    }
    int fd = open_meeting_point(where);
    communicator *comm = fd < 0 ? NULL : map_communicator(fd, ranks, rank);
    if (!comm || comm->shared->nonce != where->nonce) {
        if (comm) {
            communicator_release(comm);
        }
        return npusim_error(HCCL_E_REMOTE, "EI0015: Rank %u cannot reach the root process (PID %d) of its "
                                           "communicator: it has ended, or belongs to another user or machine.",
                            rank, where->pid);
    }
    configure(comm, config, where->nonce);
    int result = register_rank(comm);
    result = result ? result : wait_for_all(comm, where);
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
    int result = make_meeting_point(&where);
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
    int result = count && count <= MAX_RANKS && comms ? make_meeting_point(&where) : HCCL_E_PARA;
    for (uint32_t rank = 0; !result && rank < count; rank++) {
        communicator *comm = map_communicator(rank ? dup(where.fd) : where.fd, count, rank);
        if (!comm) {
            return HCCL_E_MEMORY;
        }
        configure(comm, NULL, where.nonce);
        result = register_rank(comm);
        comms[rank] = comm;
    }
    return (HcclResult)result;
}

static pending_group *find_group(shared_state *shared, uint64_t key) {
    for (int i = 0; i < PENDING_GROUPS; i++) {
        if (atomic_load(&shared->pending[i].key) == key) {
            return &shared->pending[i];
        }
    }
    return NULL;
}

static int announce_group(shared_state *shared, uint64_t key, const meeting_point *where) {
    for (int i = 0; i < PENDING_GROUPS; i++) {
        uint64_t expected = FREE_SLOT;
        if (atomic_compare_exchange_strong(&shared->pending[i].key, &expected, BUSY_SLOT)) {
            shared->pending[i].where = *where;
            atomic_store(&shared->pending[i].key, key);
            return HCCL_SUCCESS;
        }
    }
    return HCCL_E_UNAVAIL;
}

/* The first rank of a sub-communicator says in the parent's mapping where to meet; the others look there. */
static int find_meeting_point(communicator *parent, uint64_t key, uint32_t rank, uint32_t first, meeting_point *where) {
    int64_t deadline = now_ms() + seconds_from("HCCL_CONNECT_TIMEOUT", CONNECT_TIMEOUT) * 1000LL;
    if (rank == 0) {
        int result = make_meeting_point(where);
        return result ? result : announce_group(parent->shared, key, where);
    }
    for (pending_group *slot;; usleep(1000)) {
        if ((slot = find_group(parent->shared, key))) {
            *where = slot->where;
            return HCCL_SUCCESS;
        }
        if (now_ms() >= deadline || !peer_is_there(parent, first)) {
            return npusim_error(HCCL_E_TIMEOUT, "EI0015: The first rank of a sub-communicator (rank %u of %s) did not "
                                                "come.", first, parent->name);
        }
    }
}

HcclResult HcclCreateSubCommConfig(void **parent, uint32_t count, uint32_t *ranks, uint64_t id, uint32_t rank,
                                   HcclCommConfig *config, void **comm) {
    if (!parent || !*parent || !comm) {
        return HCCL_E_PTR;
    }
    if (!ranks || count == 0) {
        *comm = NULL; /* this rank is not a member */
        return HCCL_SUCCESS;
    }
    communicator *above = *parent;
    uint64_t key = id;
    for (uint32_t i = 0; i < count; i++) {
        key = (key ^ ranks[i]) * 0x100000001b3u + 1;
    }
    key |= FIRST_KEY;
    meeting_point where;
    int result = ranks[0] < above->ranks ? find_meeting_point(above, key, rank, ranks[0], &where) : HCCL_E_PARA;
    result = result ? result : join(&where, count, rank, config, comm);
    pending_group *slot = rank == 0 ? find_group(above->shared, key) : NULL;
    if (slot) {
        atomic_store(&slot->key, FREE_SLOT);
    }
    return (HcclResult)result;
}
