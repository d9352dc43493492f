#define _GNU_SOURCE
#include "links.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "wire.h"

enum { LINGER_MS = 5000, LOOK_MS = 1000 };
struct links {
    communicator *comm;
    int event, pid;
    atomic_bool ending;
    pthread_t thread;
    struct links *next;
    wire of[];
};

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct links *all;

bool is_linked(const communicator *comm, uint32_t peer) {
    return comm->links && comm->links->of[peer].socket >= 0;
}

bool link_is_there(const communicator *comm, uint32_t peer) {
    return atomic_load(&comm->links->of[peer].there);
}

void links_wake(const communicator *comm) {
    eventfd_write(comm->links->event, 1);
}

/* ---- the thread ---- */

static bool anything_left(struct links *links) {
    for (uint32_t peer = 0; peer < links->comm->ranks; peer++) {
        wire *wire = &links->of[peer];
        const ring *ring = ring_between(links->comm, links->comm->rank, peer);
        bool listens = wire->socket >= 0 && !wire->mute && atomic_load(&wire->there);
        if (listens && (is_unsaid(wire) || atomic_load(&ring->written) != atomic_load(&ring->read))) {
            return true;
        }
    }
    return false;
}

static void wait_for_anything(struct links *links, struct pollfd *polled) {
    nfds_t count = 0;
    polled[count++] = (struct pollfd){.fd = links->event, .events = POLLIN};
    for (uint32_t peer = 0; peer < links->comm->ranks; peer++) {
        wire *wire = &links->of[peer];
        char *at;
        if (wire->socket >= 0 && atomic_load(&wire->there)) {
            short in = next_place(links->comm, wire, peer, &at) ? POLLIN : 0;
            short out = wire->out_from != wire->out_to ? POLLOUT : 0;
            if (in | out) { /* else its end, which poll always tells, would wake us again and again */
                polled[count++] = (struct pollfd){.fd = wire->socket, .events = (short)(in | out)};
            }
        }
    }
    eventfd_t ignored;
    poll(polled, count, LOOK_MS);
    eventfd_read(links->event, &ignored);
}

static void *carry(void *argument) {
    struct links *links = argument;
    communicator *comm = links->comm;
    struct pollfd *polled = calloc(comm->ranks + 1, sizeof *polled);
    int64_t deadline = INT64_MAX; /* for delivering what is left, once it ends */
    while (polled) {
        bool ending = atomic_load(&links->ending);
        deadline = ending && deadline == INT64_MAX ? now_ms() + LINGER_MS : deadline;
        if (ending && (!anything_left(links) || now_ms() > deadline)) {
            break;
        }
        bool moved = false, lost = false;
        for (uint32_t peer = 0; peer < comm->ranks; peer++) {
            wire *wire = &links->of[peer];
            if (wire->socket >= 0 && atomic_load(&wire->there)) {
                moved |= pump_out(comm, wire, peer);
                moved |= pump_in(comm, wire, peer);
                lost |= !atomic_load(&wire->there);
            }
        }
        if (moved || lost) {
            ring_bell(&comm->shared->members[comm->rank]);
        } else {
            wait_for_anything(links, polled);
        }
    }
    free(polled);
    return NULL;
}

bool links_begin(communicator *comm, const int *sockets) {
    struct links *links = calloc(1, sizeof *links + comm->ranks * sizeof(wire));
    if (!links) {
        return false;
    }
    links->comm = comm;
    links->pid = getpid();
    links->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (uint32_t peer = 0; peer < comm->ranks; peer++) {
        links->of[peer].socket = sockets[peer];
        atomic_init(&links->of[peer].there, true);
        pthread_mutex_init(&links->of[peer].lock, NULL);
    }
    comm->links = links;
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before); /* signals belong to the program's own threads */
    bool began = pthread_create(&links->thread, NULL, carry, links) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!began) {
        comm->links = NULL;
        free(links);
        return false;
    }
    pthread_mutex_lock(&all_lock);
    links->next = all;
    all = links;
    pthread_mutex_unlock(&all_lock);
    return true;
}

static void finish(struct links *links) {
    atomic_store(&links->ending, true);
    links_wake(links->comm);
    pthread_join(links->thread, NULL);
}

void links_end(communicator *comm) {
    struct links *links = comm->links;
    pthread_mutex_lock(&all_lock);
    struct links **place = &all;
    while (*place && *place != links) {
        place = &(*place)->next;
    }
    bool mine = *place && links->pid == getpid(); /* not in a child that was forked, where the thread is not */
    *place = *place ? links->next : NULL;
    pthread_mutex_unlock(&all_lock);
    if (mine) {
        finish(links);
    }
    for (uint32_t peer = 0; peer < comm->ranks; peer++) {
        if (links->of[peer].socket >= 0) {
            close(links->of[peer].socket);
        }
    }
    close(links->event);
    free(links);
    comm->links = NULL;
}

/* A process that ends without destroying its communicators has still sent what it sent. */
__attribute__((destructor)) static void deliver_at_exit(void) {
    for (struct links *links = all; links; links = links->next) {
        if (links->pid == getpid()) {
            finish(links);
        }
    }
}

void links_flush(const communicator *comm) {
    int64_t deadline = now_ms() + LINGER_MS;
    while (comm->links && anything_left(comm->links) && now_ms() < deadline) {
        links_wake(comm);
        usleep(20);
    }
}

/* ---- messages ---- */

static void say(struct links *links, uint32_t peer, frame_kind kind, const void *data, size_t bytes) {
    wire *wire = &links->of[peer];
    for (bool said = wire->socket < 0; !said; usleep(1000)) { /* messages are rare: one waits for the one before */
        pthread_mutex_lock(&wire->lock);
        said = wire->said.bytes == 0 || !atomic_load(&wire->there);
        if (said) {
            memcpy(&wire->saying, data, bytes);
            wire->said = (frame){kind, (uint32_t)bytes};
        }
        pthread_mutex_unlock(&wire->lock);
        links_wake(links->comm);
    }
}

void links_tell_disagreement(const communicator *comm) {
    for (uint32_t peer = 0; comm->links && peer < comm->ranks; peer++) {
        say(comm->links, peer, FRAME_DISAGREEMENT, comm->shared->disagreement, sizeof comm->shared->disagreement);
    }
    links_flush(comm); /* this process may end as soon as it knows */
}

void link_tell_group(const communicator *comm, uint32_t peer, const pending_group *group) {
    if (is_linked(comm, peer)) {
        say(comm->links, peer, FRAME_GROUP, group, sizeof *group);
    }
}
