/* A call of a collective between the moment it is issued and the moment it runs on its stream. */
#ifndef NPUSIM_ISSUE_H
#define NPUSIM_ISSUE_H

#include "../npusim.h"
#include "transport.h"

#pragma GCC visibility push(hidden)

typedef struct call call;
typedef int (*call_body)(const call *call); /* 0, or an ACL code */

struct call {
    communicator *comm;
    call_body body;
    call_header header;
    npusim_fault fault;
    npusim_moment issued;
    void *stream;
    uint64_t turn;
    char *in, *out;
    uint64_t bytes;
    /* Collectives that treat each rank differently: one entry a rank, offsets in bytes. */
    uint64_t *send_bytes, *send_at, *receive_bytes, *receive_at;
    /* Point-to-point calls are transfers already. */
    transfer *transfers;
    size_t transfer_count;
};

/* Everything zero, with room for the arrays. NULL, with a message left, where memory is out or `comm` is NULL. */
call *new_call(void *comm, uint32_t kind, call_body body, size_t transfers);

/* HCCL_SUCCESS, or an error with a message left; `peer` is the root or the other side, 0 where there is none. */
int check_arguments(const void *comm, HcclDataType type, uint32_t peer, const char *function);

/* How much of a buffer really moves. */
uint64_t moving_bytes(uint64_t count, HcclDataType type);

/* Put the call on the stream; takes the call over. */
HcclResult issue(call *call, const char *function, void *stream);

#pragma GCC visibility pop

#endif
