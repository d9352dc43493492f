#include "away.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../npusim.h"
#include "links.h"

enum { HELLO_MS = 5000, GRACE_MS = 5000, GONE = -2 };

/* What a rank says first: to the root with its own door, to a peer without. */
typedef struct {
    uint64_t nonce;
    uint32_t ranks, rank;
    endpoint door;
} hello;

/* What the root answers when all have come, or when it gives up; where all came, everybody's door follows. */
typedef struct {
    int32_t result;
    uint32_t joined;
} verdict;

bool may_have_ranks_away(void) {
    const char *here = getenv("LOCAL_WORLD_SIZE"), *everywhere = getenv("WORLD_SIZE");
    return !here || !everywhere || strcmp(here, everywhere) != 0;
}

static int unreachable(uint32_t rank, const char *what, const endpoint *where, int error) {
    return npusim_error(
        HCCL_E_TCP_CONNECT,
        "EI0006: Rank %u cannot connect to %s at %s: %s. Check that the machines reach each other there, "
        "or choose another network with HCCL_SOCKET_IFNAME.",
        rank, what, endpoint_text(where), strerror(error));
}

/* ---- the root's side ---- */

static void admit(communicator *comm, int visitor) {
    hello said;
    bool heard = receive_whole(visitor, &said, sizeof said, now_ms() + HELLO_MS) && said.nonce == comm->shared->nonce &&
                 said.ranks == comm->ranks && said.rank < comm->ranks;
    int32_t nobody = 0;
    if (!heard || !atomic_compare_exchange_strong(&comm->shared->members[said.rank].pid, &nobody, PID_AWAY)) {
        verdict refused = {HCCL_E_PARA, 0};
        send_whole(visitor, &refused, sizeof refused, now_ms() + HELLO_MS);
        close(visitor);
        return;
    }
    comm->shared->members[said.rank].door = said.door;
    comm->visitors[said.rank] = visitor;
    atomic_fetch_add(&comm->shared->joined, 1);
    futex_wake_shared(&comm->shared->joined);
}

void admit_visitors(communicator *comm) {
    for (int visitor; (visitor = accept_at(comm->shared->door, now_ms() + 1)) >= 0;) {
        admit(comm, visitor);
    }
    for (uint32_t rank = 0; rank < comm->ranks; rank++) {
        char byte;
        if (comm->visitors[rank] >= 0 && recv(comm->visitors[rank], &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
            close(comm->visitors[rank]);
            comm->visitors[rank] = GONE;
        }
    }
}

void dismiss_visitors(communicator *comm, int result, int64_t deadline) {
    endpoint doors[MAX_RANKS];
    for (uint32_t rank = 0; rank < comm->ranks; rank++) {
        doors[rank] = comm->shared->members[rank].door;
    }
    verdict answer = {result, atomic_load(&comm->shared->joined)};
    for (uint32_t rank = 0; rank < comm->ranks; rank++) {
        if (comm->visitors[rank] >= 0) {
            if (send_whole(comm->visitors[rank], &answer, sizeof answer, deadline + GRACE_MS) && !result) {
                send_whole(comm->visitors[rank], doors, comm->ranks * sizeof *doors, deadline);
            }
            close(comm->visitors[rank]);
        }
    }
    close(comm->shared->door);
    free(comm->visitors);
    comm->visitors = NULL;
}

/* ---- links ---- */

static int knock(const communicator *comm, uint32_t peer, const endpoint *door, int64_t deadline) {
    int one = connect_to(door, deadline);
    hello mine = {comm->shared->nonce, comm->ranks, comm->rank, {0}};
    if (one >= 0 && send_whole(one, &mine, sizeof mine, deadline)) {
        return one;
    }
    char what[24];
    snprintf(what, sizeof what, "rank %u", peer);
    unreachable(comm->rank, what, door, errno);
    if (one >= 0) {
        close(one);
    }
    return -1;
}

static int begin(communicator *comm, int *sockets, int result) {
    if (!result && !links_begin(comm, sockets)) {
        result = npusim_error(HCCL_E_MEMORY, "EI0007: No memory for links to other hosts.");
    }
    for (uint32_t peer = 0; result && peer < comm->ranks; peer++) {
        if (sockets[peer] >= 0) {
            close(sockets[peer]);
        }
    }
    return result;
}

int link_to_those_away(communicator *comm, int64_t deadline) {
    int sockets[MAX_RANKS], result = HCCL_SUCCESS;
    bool any = false;
    for (uint32_t peer = 0; peer < comm->ranks; peer++) {
        const member *other = &comm->shared->members[peer];
        bool away = atomic_load(&other->pid) == PID_AWAY;
        sockets[peer] = away && !result ? knock(comm, peer, &other->door, deadline) : -1;
        result = away && sockets[peer] < 0 ? HCCL_E_TCP_CONNECT : result;
        any |= away;
    }
    return any ? begin(comm, sockets, result) : HCCL_SUCCESS;
}

/* The others come to our own door: those on the root's host, and of those away the ones after us. */
static int wait_at_door(communicator *comm, int door, int *sockets, uint32_t expected, int64_t deadline) {
    while (expected) {
        int one = accept_at(door, deadline);
        hello said;
        if (one < 0) {
            return npusim_error(HCCL_E_TIMEOUT,
                                "EI0006: Getting socket times out. Reason: %u ranks did not connect to "
                                "rank %u in time.",
                                expected, comm->rank);
        }
        if (receive_whole(one, &said, sizeof said, now_ms() + HELLO_MS) && said.nonce == comm->shared->nonce &&
            said.rank < comm->ranks && sockets[said.rank] < 0) {
            sockets[said.rank] = one;
            expected--;
        } else {
            close(one);
        }
    }
    return HCCL_SUCCESS;
}

static int ask_root(communicator *comm, const meeting_point *where, const endpoint *door, endpoint *doors,
                    int64_t deadline) {
    if (!where->door.port) {
        return npusim_error(HCCL_E_REMOTE,
                            "EI0015: Rank %u is on another machine than the root process (PID %d) of its "
                            "communicator, which is not reachable over the network: LOCAL_WORLD_SIZE "
                            "says that all ranks are on one, or it has no network.",
                            comm->rank, where->pid);
    }
    int root = connect_to(&where->door, deadline);
    if (root < 0 && errno == ECONNREFUSED) {
        return npusim_error(HCCL_E_REMOTE,
                            "EI0015: Rank %u cannot reach the root process of its communicator at %s: it "
                            "has ended, or a firewall is between them.",
                            comm->rank, endpoint_text(&where->door));
    }
    if (root < 0) {
        return unreachable(comm->rank, "the root of its communicator", &where->door, errno);
    }
    hello mine = {where->nonce, comm->ranks, comm->rank, *door};
    verdict answer = {HCCL_E_REMOTE, 0};
    bool told = send_whole(root, &mine, sizeof mine, deadline) &&
                receive_whole(root, &answer, sizeof answer, deadline + GRACE_MS) && !answer.result &&
                receive_whole(root, doors, comm->ranks * sizeof *doors, deadline + GRACE_MS);
    close(root);
    if (answer.result == HCCL_E_PARA) {
        return npusim_error(HCCL_E_PARA,
                            "EI0004: Rank %u of %u joined its communicator twice, or another one has "
                            "another number of ranks.",
                            comm->rank, comm->ranks);
    }
    return told ? HCCL_SUCCESS
                : npusim_error(answer.result == HCCL_E_TIMEOUT ? HCCL_E_TIMEOUT : HCCL_E_REMOTE,
                               "EI0015: The ranks of a communicator did not meet: %u of %u came to the root at %s, "
                               "which has ended or given up. Look for its error first.",
                               answer.joined, comm->ranks, endpoint_text(&where->door));
}

int join_from_away(communicator *comm, const meeting_point *where, int64_t deadline) {
    endpoint own, doors[MAX_RANKS];
    int sockets[MAX_RANKS];
    int door = open_door(&own);
    if (door < 0) {
        return HCCL_E_NOT_FOUND;
    }
    int result = ask_root(comm, where, &own, doors, deadline);
    uint32_t expected = 0;
    for (uint32_t peer = 0; peer < comm->ranks; peer++) {
        sockets[peer] = -1;
        bool away = !result && doors[peer].port;
        if (away && peer < comm->rank) {
            sockets[peer] = knock(comm, peer, &doors[peer], deadline);
            result = sockets[peer] < 0 ? HCCL_E_TCP_CONNECT : HCCL_SUCCESS;
        } else {
            expected += peer != comm->rank;
        }
    }
    result = result ? result : wait_at_door(comm, door, sockets, expected, deadline);
    close(door);
    return begin(comm, sockets, result);
}
