#include "wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* ---- out ---- */

static void fill(wire *wire, size_t bytes) {
    wire->out_from = 0;
    wire->out_to = sizeof(frame) + bytes;
}

static bool take_message(wire *wire) {
    pthread_mutex_lock(&wire->lock);
    size_t bytes = wire->said.bytes;
    if (bytes) {
        memcpy(wire->out, &wire->said, sizeof wire->said);
        memcpy(wire->out + sizeof(frame), &wire->saying, bytes);
        fill(wire, bytes);
        wire->said.bytes = 0;
    }
    pthread_mutex_unlock(&wire->lock);
    return bytes;
}

bool is_unsaid(wire *wire) {
    pthread_mutex_lock(&wire->lock);
    bool unsaid = wire->said.bytes || wire->out_from != wire->out_to;
    pthread_mutex_unlock(&wire->lock);
    return unsaid && !wire->mute && atomic_load(&wire->there);
}

static void take_data(communicator *comm, wire *wire, uint32_t peer) {
    ring *ring = ring_between(comm, comm->rank, peer);
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&ring->written, memory_order_acquire) - read;
    uint64_t in_one_go = RING_BYTES - read % RING_BYTES;
    bytes = bytes < in_one_go ? bytes : in_one_go;
    bytes = bytes < CHUNK ? bytes : CHUNK;
    if (bytes) {
        frame head = {FRAME_DATA, (uint32_t)bytes};
        memcpy(wire->out, &head, sizeof head);
        memcpy(wire->out + sizeof head, ring->data + read % RING_BYTES, bytes);
        fill(wire, bytes);
        atomic_store_explicit(&ring->read, read + bytes, memory_order_release);
    }
}

bool pump_out(communicator *comm, wire *wire, uint32_t peer) {
    if (wire->out_from == wire->out_to && !take_message(wire)) {
        take_data(comm, wire, peer);
    }
    if (wire->mute || wire->out_from == wire->out_to) {
        wire->out_from = (size_t)wire->out_to; /* nobody reads it */
        return false;
    }
    ssize_t sent = send(wire->socket, wire->out + wire->out_from, wire->out_to - wire->out_from, MSG_NOSIGNAL);
    if (sent > 0) {
        wire->out_from += (size_t)sent;
        return true;
    }
    wire->mute = errno != EAGAIN && errno != EINTR;
    return false;
}

/* ---- in ---- */

static void take_heard(communicator *comm, wire *wire) {
    shared_state *shared = comm->shared;
    if (wire->in.kind == FRAME_GROUP) {
        announce_group(shared, &wire->heard.group);
        return;
    }
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&shared->disagreed, &none, 1)) {
        memcpy(shared->disagreement, wire->heard.disagreement, sizeof shared->disagreement);
        atomic_store(&shared->disagreed, 2);
    }
}

size_t next_place(communicator *comm, wire *wire, uint32_t peer, char **at) {
    if (!wire->in_open) {
        *at = (char *)&wire->in + wire->in_got;
        return sizeof wire->in - wire->in_got;
    }
    if (wire->in.kind != FRAME_DATA) {
        *at = (char *)&wire->heard + wire->in_got;
        return wire->in.bytes - wire->in_got;
    }
    ring *ring = ring_between(comm, peer, comm->rank);
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed) + wire->in_partial;
    uint64_t room = RING_BYTES - (written - atomic_load_explicit(&ring->read, memory_order_acquire));
    uint64_t in_one_go = RING_BYTES - written % RING_BYTES;
    uint64_t left = wire->in.bytes - wire->in_got;
    *at = ring->data + written % RING_BYTES;
    room = room < in_one_go ? room : in_one_go;
    return room < left ? room : left;
}

/* Counters of a ring move by whole lines. */
static void take_in(communicator *comm, wire *wire, uint32_t peer, size_t bytes) {
    wire->in_got += bytes;
    if (!wire->in_open) {
        wire->in_open = wire->in_got == sizeof wire->in;
        wire->in_got = wire->in_open ? 0 : wire->in_got;
        if (wire->in_open && wire->in.bytes > (wire->in.kind == FRAME_DATA ? CHUNK : sizeof wire->heard)) {
            atomic_store(&wire->there, false); /* not one of us */
        }
        return;
    }
    if (wire->in.kind == FRAME_DATA) {
        ring *ring = ring_between(comm, peer, comm->rank);
        wire->in_partial += bytes;
        uint64_t lines = wire->in_partial / CACHE_LINE * CACHE_LINE;
        uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
        atomic_store_explicit(&ring->written, written + lines, memory_order_release);
        wire->in_partial -= lines;
    } else if (wire->in_got == wire->in.bytes) {
        take_heard(comm, wire);
    }
    if (wire->in_got == wire->in.bytes) {
        wire->in_open = false;
        wire->in_got = 0;
    }
}

bool pump_in(communicator *comm, wire *wire, uint32_t peer) {
    char *at;
    size_t place = next_place(comm, wire, peer, &at);
    ssize_t got = place ? recv(wire->socket, at, place, 0) : -1;
    if (got > 0) {
        take_in(comm, wire, peer, (size_t)got);
        return true;
    }
    if (place && (got == 0 || (errno != EAGAIN && errno != EINTR))) {
        atomic_store(&wire->there, false);
    }
    return false;
}
