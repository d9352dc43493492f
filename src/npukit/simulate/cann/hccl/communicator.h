/* A communicator: the ranks that share one mapping, and one rank's view of it. */
#ifndef NPUSIM_COMMUNICATOR_H
#define NPUSIM_COMMUNICATOR_H

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hccl_abi.h"
#include "network.h"

#pragma GCC visibility push(hidden)

enum {
    CACHE_LINE = 64,
    RING_BYTES = 256 << 10,
    MAX_RANKS = 256,
    PENDING_GROUPS = 32,
    PID_AWAY = -1,
    /* ACL codes of a task on a stream that failed: a wait that timed out, and any other failure. */
    ACL_TASK_TIMEOUT = 507048,
    ACL_TASK_FAILED = 507049,
};

/* Bytes on their way from one rank to another. Both counters only grow, in steps of CACHE_LINE. */
typedef struct {
    _Alignas(CACHE_LINE) _Atomic uint64_t written;
    _Alignas(CACHE_LINE) _Atomic uint64_t read;
    _Alignas(CACHE_LINE) char data[RING_BYTES];
} ring;

/* Where a rank sleeps: whoever has done something for it counts the bell up. */
typedef struct {
    _Alignas(CACHE_LINE) _Atomic uint32_t rung;
    _Atomic uint32_t asleep;
    _Atomic int32_t pid; /* 0 until the rank has joined */
    endpoint door;       /* of a rank that is away, which is PID_AWAY */
} member;

/* What a rank needs to find the mapping: it travels in HcclRootInfo, or through a parent communicator. */
typedef struct {
    int32_t pid, fd;
    uint64_t nonce, host;
    endpoint door; /* for ranks on other hosts */
} meeting_point;

/* A sub-communicator whose first rank waits for the others. */
typedef struct {
    _Atomic uint64_t key;
    meeting_point where;
} pending_group;

typedef struct {
    uint64_t nonce;
    int32_t door; /* the root's own socket, -1 for none */
    _Atomic uint32_t ranks, joined;
    pending_group pending[PENDING_GROUPS];
    _Atomic uint32_t root_taken; /* a rank of the root's process has taken over the root's descriptor */
    _Atomic uint32_t disagreed;  /* 1: somebody is writing the sentence below, 2: it is there */
    char disagreement[512];
    member members[MAX_RANKS];
    ring rings[]; /* [sender * ranks + receiver] */
} shared_state;

typedef struct {
    shared_state *shared;
    size_t bytes;
    int fd;
    uint32_t ranks, rank;
    bool spins;       /* there is a core for every rank */
    int exec_timeout; /* seconds; 0: for ever */
    char name[HCCL_COMM_NAME_LENGTH];
    uint8_t *busy_out, *busy_in, *touched; /* one flag a peer, for the engine */
    struct links *links;                   /* to ranks on other hosts; NULL where there are none */
    int *visitors; /* only of the root while it waits: those who come from other hosts, -1 for nobody */

    /* Collectives run in the order in which they were issued, on whatever streams. */
    pthread_mutex_t lock;
    pthread_cond_t turn_changed;
    uint64_t issued, turn;
    uint64_t collectives; /* number of the collective that is issued next */
    _Atomic int failed;   /* the HcclResult that ended this communicator; what follows says it in words */
    int failure_code;
    char failure[768];
    _Atomic int holders;
} communicator;

static inline ring *ring_between(const communicator *comm, uint32_t sender, uint32_t receiver) {
    return &comm->shared->rings[(size_t)sender * comm->ranks + receiver];
}

void communicator_hold(communicator *comm);
void communicator_release(communicator *comm);

/* Make the communicator unusable, with a message for aclGetRecentErrMsg; returns the ACL code for the stream. */
int end_communicator(communicator *comm, HcclResult result, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Leave that message again, for another thread or a later call; returns the ACL code. */
int report_failure(const communicator *comm);

/* pending.c: where a sub-communicator meets is said in a slot of its parent's mapping. */
enum { FREE_SLOT = 0, BUSY_SLOT = 1, FIRST_KEY = 2 }; /* of a pending group's key */
pending_group *find_group(shared_state *shared, uint64_t key);
int announce_group(shared_state *shared, const pending_group *group);

/* The lock that a rank holds as long as it is there. */
struct flock lock_of(uint32_t rank);

/* False once the process behind a rank has ended or has destroyed the communicator. */
bool peer_is_there(const communicator *comm, uint32_t peer);

/* waiting.c: milliseconds on a clock that only goes forward; sleeping on a word; waking a rank of the same mapping. */
int64_t now_ms(void);
void futex_wait_shared(_Atomic uint32_t *word, uint32_t seen, int milliseconds);
void futex_wake_shared(_Atomic uint32_t *word);
void ring_bell(member *member);

#pragma GCC visibility pop

#endif
