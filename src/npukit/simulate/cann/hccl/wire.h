/* One end of a connection to a rank on another host, which stands for two rings: see links.h. */
#ifndef NPUSIM_WIRE_H
#define NPUSIM_WIRE_H

#include "communicator.h"

#pragma GCC visibility push(hidden)

enum { CHUNK = 64 << 10 };
typedef enum { FRAME_DATA, FRAME_DISAGREEMENT, FRAME_GROUP } frame_kind;

typedef struct {
    uint32_t kind, bytes;
} frame;

typedef union {
    char disagreement[sizeof((shared_state *)0)->disagreement];
    pending_group group;
} message;

typedef struct {
    int socket; /* -1: the peer is on this host */
    atomic_bool there;
    atomic_bool mute; /* nothing can be sent any more */
    char out[sizeof(frame) + CHUNK];
    _Atomic size_t out_from, out_to;
    frame said; /* the message that goes out next, with 0 bytes for none */
    message saying;
    frame in;
    size_t in_got;       /* of the frame's head, then of its message */
    uint64_t in_partial; /* of the next line in the ring */
    bool in_open;        /* the head is there */
    message heard;
    pthread_mutex_t lock; /* over `said` and `saying` */
} wire;

/* Carry what can be carried without waiting, from the ring to the peer and from the peer into its ring; true where
 * something moved. */
bool pump_out(communicator *comm, wire *wire, uint32_t peer);
bool pump_in(communicator *comm, wire *wire, uint32_t peer);

/* Whether the peer has not been sent all that was said to it. */
bool is_unsaid(wire *wire);

/* Where the next bytes from the peer belong, and how many of them; 0 where the ring is full. */
size_t next_place(communicator *comm, wire *wire, uint32_t peer, char **at);

#pragma GCC visibility pop

#endif
