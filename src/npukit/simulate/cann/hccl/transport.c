/* The engine: moves bytes through the rings of a communicator until a batch of transfers is complete.
 *
 * A message is a header and its payload, padded so that counters stay multiples of a cache line and no element is cut
 * by the end of a ring. Nobody spins for long: a rank without progress sleeps on its own bell, and looks up now and
 * then to see whether those it waits for still exist.
 */
#include "transport.h"

#include <stdio.h>
#include <string.h>

#include "links.h"
#include "reduce.h"

enum { PIECE = 64 << 10, SPINS = 2000, LOOK_UP_MS = 50, LOOKS = 2, LOOKS_ABROAD = 20 };
enum { NOBODY = MAX_RANKS };

_Static_assert(sizeof(call_header) <= CACHE_LINE, "a header must fit its line");
_Static_assert(RING_BYTES % CACHE_LINE == 0, "rings must hold whole lines");

const char *const call_names[] = {
    [CALL_POINT_TO_POINT] = "SendRecv", [CALL_BROADCAST] = "Broadcast",
    [CALL_ALL_REDUCE] = "AllReduce",    [CALL_REDUCE] = "Reduce",
    [CALL_ALL_GATHER] = "AllGather",    [CALL_REDUCE_SCATTER] = "ReduceScatter",
    [CALL_ALL_GATHER_V] = "AllGatherV", [CALL_REDUCE_SCATTER_V] = "ReduceScatterV",
    [CALL_ALL_TO_ALL] = "AlltoAll",     [CALL_ALL_TO_ALL_V] = "AlltoAllV",
    [CALL_SCATTER] = "Scatter",         [CALL_BARRIER] = "Barrier",
};

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t padded(uint64_t bytes) {
    return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

/* Bytes that can be written, or read, in one go from `at` on. */
static uint64_t room(ring *ring, char **at) {
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_acquire);
    *at = ring->data + written % RING_BYTES;
    return least(RING_BYTES - (written - read), RING_BYTES - written % RING_BYTES);
}

static uint64_t available(ring *ring, const char **at) {
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);
    *at = ring->data + read % RING_BYTES;
    return least(written - read, RING_BYTES - read % RING_BYTES);
}

static void advance(_Atomic uint64_t *counter, uint64_t bytes) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + bytes, memory_order_release);
}

/* ---- errors ---- */

int fail_with_timeout(communicator *comm, const call_header *call, const char *peer, const char *reason) {
    return end_communicator(
        comm, HCCL_E_TIMEOUT, ACL_TASK_TIMEOUT,
        "EI0002: The wait for a notification timed out: rank [%u] has not heard from remote rank [%s], which %s. Base "
        "information: [tag[%s_%s], collective number [%lu], count [%lu]]. Look at the errors of the remote rank first; "
        "a rank that is only slow needs a larger HCCL_EXEC_TIMEOUT.",
        comm->rank, peer, reason, call_names[call->kind], comm->name, (unsigned long)call->number,
        (unsigned long)call->count);
}

static int fail_with_disagreement(communicator *comm, const char *sentence) {
    return end_communicator(comm, HCCL_E_PARA, ACL_TASK_FAILED, "EI0005: %s", sentence);
}

/* The first rank that sees a disagreement tells all others, also those that would wait for ever. */
static int disagree(communicator *comm, const call_header *call, uint32_t peer, const char *parameter, const char *mine,
                    const char *theirs) {
    shared_state *shared = comm->shared;
    char sentence[sizeof shared->disagreement];
    snprintf(sentence, sizeof sentence,
             "The ranks called collectives with different arguments: tag[%s_%.127s], parameter[%s], rank %u has [%s], "
             "rank %u has [%s]. Every rank of a group must make the same calls in the same order.",
             call_names[call->kind], comm->name, parameter, comm->rank, mine, peer, theirs);
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&shared->disagreed, &none, 1)) {
        memcpy(shared->disagreement, sentence, sizeof sentence);
        atomic_store(&shared->disagreed, 2);
        for (uint32_t rank = 0; rank < comm->ranks; rank++) {
            ring_bell(&shared->members[rank]);
        }
        links_tell_disagreement(comm);
    }
    return fail_with_disagreement(comm, sentence);
}

static int compare(communicator *comm, const call_header *mine, const call_header *theirs, uint32_t peer) {
    if (memcmp(mine, theirs, sizeof *mine) == 0) {
        return 0;
    }
    if (mine->kind != theirs->kind) {
        const char *name = theirs->kind <= CALL_BARRIER ? call_names[theirs->kind] : "?";
        return disagree(comm, mine, peer, "operator", call_names[mine->kind], name);
    }
    const struct {
        const char *name;
        uint64_t mine, theirs;
    } fields[] = {
        {"count", mine->count, theirs->count}, {"dataType", mine->data_type, theirs->data_type},
        {"reduceOp", mine->op, theirs->op},    {"root", mine->root, theirs->root},
        {"bytes", mine->bytes, theirs->bytes}, {"number of the collective", mine->number, theirs->number},
    };
    size_t field = 0;
    while (field + 1 < sizeof fields / sizeof *fields && fields[field].mine == fields[field].theirs) {
        field++;
    }
    char here[24], there[24];
    snprintf(here, sizeof here, "%lu", (unsigned long)fields[field].mine);
    snprintf(there, sizeof there, "%lu", (unsigned long)fields[field].theirs);
    return disagree(comm, mine, peer, fields[field].name, here, there);
}

/* ---- progress of one transfer ---- */

static bool complete(const communicator *comm, const transfer *transfer) {
    uint32_t headers = transfer->what == TRANSFER_REDUCE ? comm->ranks - 1 : 1;
    return transfer->opened == headers && transfer->done == transfer->bytes;
}

static bool advance_send(communicator *comm, const call_header *call, transfer *transfer) {
    ring *ring = ring_between(comm, comm->rank, transfer->peer);
    char *at;
    uint64_t free_bytes = room(ring, &at);
    if (free_bytes == 0) {
        return false;
    }
    if (!transfer->opened) {
        call_header header = *call;
        header.bytes = transfer->bytes;
        memcpy(at, &header, sizeof header);
        advance(&ring->written, CACHE_LINE);
        transfer->opened = 1;
        free_bytes = room(ring, &at);
    }
    uint64_t bytes = least(least(free_bytes, PIECE), transfer->bytes - transfer->done);
    if (bytes) {
        memcpy(at, transfer->data + transfer->done, bytes);
        transfer->done += bytes;
        advance(&ring->written, padded(bytes));
    }
    return true;
}

static int open_message(communicator *comm, const call_header *call, transfer *transfer, uint32_t peer, bool *moved) {
    ring *ring = ring_between(comm, peer, comm->rank);
    const char *at;
    if (available(ring, &at) == 0) {
        return 0;
    }
    call_header mine = *call, theirs;
    mine.bytes = transfer->bytes;
    memcpy(&theirs, at, sizeof theirs);
    int error = compare(comm, &mine, &theirs, peer);
    if (!error) {
        advance(&ring->read, CACHE_LINE);
        transfer->opened++;
        *moved = true;
    }
    return error;
}

static bool advance_receive(communicator *comm, transfer *transfer) {
    ring *ring = ring_between(comm, transfer->peer, comm->rank);
    const char *at;
    uint64_t bytes = least(least(available(ring, &at), PIECE), transfer->bytes - transfer->done);
    if (bytes == 0) {
        return false;
    }
    memcpy(transfer->data + transfer->done, at, bytes);
    transfer->done += bytes;
    advance(&ring->read, padded(bytes));
    return true;
}

/* Takes as much as every peer has sent, straight from the rings: contributions are combined in the order of ranks. */
static bool advance_reduction(communicator *comm, const call_header *call, transfer *transfer) {
    const void *sources[MAX_RANKS];
    uint64_t bytes = least(PIECE, transfer->bytes - transfer->done);
    for (uint32_t peer = 0; peer < comm->ranks; peer++) {
        const char *at = transfer->own + transfer->done;
        if (peer != comm->rank) {
            bytes = least(bytes, available(ring_between(comm, peer, comm->rank), &at));
        }
        sources[peer] = at;
    }
    if (bytes == 0) {
        return false;
    }
    reduce(transfer->data + transfer->done, sources, comm->ranks, bytes / bytes_of(call->data_type), call->data_type,
           call->op);
    transfer->done += bytes;
    for (uint32_t peer = 0; peer < comm->ranks; peer++) {
        if (peer != comm->rank) {
            advance(&ring_between(comm, peer, comm->rank)->read, padded(bytes));
        }
    }
    return true;
}

/* The peer whose header a reduction takes next. */
static uint32_t next_to_open(const communicator *comm, const transfer *transfer) {
    return transfer->what == TRANSFER_REDUCE ? transfer->opened + (transfer->opened >= comm->rank) : transfer->peer;
}

static int advance_transfer(communicator *comm, const call_header *call, transfer *transfer, bool *moved) {
    if (transfer->what == TRANSFER_SEND) {
        *moved = advance_send(comm, call, transfer);
        return 0;
    }
    uint32_t headers = transfer->what == TRANSFER_REDUCE ? comm->ranks - 1 : 1;
    while (transfer->opened < headers) {
        uint32_t before = transfer->opened;
        int error = open_message(comm, call, transfer, next_to_open(comm, transfer), moved);
        if (error || transfer->opened == before) {
            return error;
        }
    }
    *moved |=
        transfer->what == TRANSFER_REDUCE ? advance_reduction(comm, call, transfer) : advance_receive(comm, transfer);
    return 0;
}

/* ---- a batch ---- */

static void touch(communicator *comm, const transfer *transfer) {
    if (transfer->what == TRANSFER_REDUCE) {
        memset(comm->touched, 1, comm->ranks);
    } else {
        comm->touched[transfer->peer] = 1;
    }
}

/* One look at every transfer. A transfer waits for earlier ones that use the same ring. */
static int advance_all(communicator *comm, const call_header *call, transfer *transfers, size_t count, bool *moved,
                       bool *finished) {
    memset(comm->busy_out, 0, comm->ranks);
    memset(comm->busy_in, 0, comm->ranks);
    memset(comm->touched, 0, comm->ranks);
    int error = 0;
    *moved = false;
    *finished = true;
    for (size_t i = 0; i < count && !error; i++) {
        transfer *transfer = &transfers[i];
        uint8_t *busy = transfer->what == TRANSFER_SEND ? comm->busy_out : comm->busy_in;
        if (complete(comm, transfer) || (transfer->what != TRANSFER_REDUCE && busy[transfer->peer])) {
            continue;
        }
        bool progress = false;
        error = advance_transfer(comm, call, transfer, &progress);
        if (progress) {
            touch(comm, transfer);
            *moved = true;
        }
        if (!complete(comm, transfer)) {
            *finished = false;
            if (transfer->what != TRANSFER_REDUCE) {
                busy[transfer->peer] = 1;
            }
        }
    }
    for (uint32_t peer = 0; peer < comm->ranks; peer++) {
        if (comm->touched[peer] && peer != comm->rank) {
            is_linked(comm, peer) ? links_wake(comm) : ring_bell(&comm->shared->members[peer]);
        }
    }
    return error;
}

static bool waits_for(communicator *comm, const transfer *transfer, uint32_t peer) {
    if (complete(comm, transfer) || (transfer->what == TRANSFER_REDUCE ? peer == comm->rank : peer != transfer->peer)) {
        return false;
    }
    const char *at;
    char *space;
    return transfer->what == TRANSFER_SEND ? room(ring_between(comm, comm->rank, peer), &space) == 0
                                           : available(ring_between(comm, peer, comm->rank), &at) == 0;
}

/* Somebody we wait for: one that is gone if there is one, and *gone says so. */
static uint32_t find_missing(communicator *comm, const transfer *transfers, size_t count, bool *gone) {
    uint32_t missing = NOBODY;
    *gone = false;
    for (uint32_t peer = 0; peer < comm->ranks; peer++) {
        for (size_t i = 0; i < count; i++) {
            if (waits_for(comm, &transfers[i], peer)) {
                missing = peer;
                *gone = !peer_is_there(comm, peer);
                break;
            }
        }
        if (*gone) {
            break;
        }
    }
    return missing;
}

static void sleep_until_rung(communicator *comm, uint32_t seen) {
    member *self = &comm->shared->members[comm->rank];
    for (int i = 0; comm->spins && i < SPINS; i++) {
        if (atomic_load_explicit(&self->rung, memory_order_acquire) != seen) {
            return;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    atomic_store(&self->asleep, 1);
    futex_wait_shared(&self->rung, seen, LOOK_UP_MS);
    atomic_store(&self->asleep, 0);
}

/* Nothing has moved since `since`: is there still hope? A peer must be found gone twice, as what it sent last may have
 * come between the look at its ring and the look for it. Between hosts it may have gone because ranks disagree, and what
 * says so may still be on its way from another rank: a cause is waited for longer. */
static int look_up(communicator *comm, const call_header *call, const transfer *transfers, size_t count, int64_t since,
                   int *looks_gone) {
    bool gone;
    uint32_t missing = find_missing(comm, transfers, count, &gone);
    char name[12];
    snprintf(name, sizeof name, "%u", missing);
    *looks_gone = gone ? *looks_gone + 1 : 0;
    if (*looks_gone >= (comm->links ? LOOKS_ABROAD : LOOKS)) {
        return fail_with_timeout(comm, call, name, "has ended or left the communicator");
    }
    if (comm->exec_timeout && now_ms() - since >= comm->exec_timeout * 1000LL) {
        return fail_with_timeout(comm, call, name, "is alive but did not come to this collective in time");
    }
    return 0;
}

int run_transfers(communicator *comm, const call_header *call, transfer *transfers, size_t count) {
    int64_t since = 0, looked = 0; /* when progress stopped, 0 while there is some; when we last looked up */
    int looks_gone = 0;
    for (;;) {
        uint32_t seen = atomic_load(&comm->shared->members[comm->rank].rung);
        bool moved, finished;
        int error = advance_all(comm, call, transfers, count, &moved, &finished);
        if (error) {
            return error;
        }
        if (finished) {
            links_flush(comm); /* the peers have it, whatever this process does next */
            return 0;
        }
        if (moved) {
            since = 0;
            continue;
        }
        if (atomic_load(&comm->shared->disagreed) == 2) {
            return fail_with_disagreement(comm, comm->shared->disagreement);
        }
        int64_t now = now_ms();
        if (!since) {
            since = looked = now;
            looks_gone = 0;
        } else if (now - looked >= LOOK_UP_MS) {
            looked = now;
            error = look_up(comm, call, transfers, count, since, &looks_gone);
            if (error) {
                return error;
            }
        }
        sleep_until_rung(comm, seen);
    }
}
