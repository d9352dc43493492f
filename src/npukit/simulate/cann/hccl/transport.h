/* The one way in which bytes move between ranks: a batch of transfers that all make progress at once. */
#ifndef NPUSIM_TRANSPORT_H
#define NPUSIM_TRANSPORT_H

#include "communicator.h"

#pragma GCC visibility push(hidden)

/* What every message says about the call it belongs to; both sides must have called the same thing. */
typedef struct {
    uint32_t kind; /* index of a name in call_names */
    uint32_t data_type, op, root;
    uint64_t count, number;
    uint64_t bytes; /* of this message, as the caller has it */
} call_header;

enum {
    CALL_POINT_TO_POINT,
    CALL_BROADCAST,
    CALL_ALL_REDUCE,
    CALL_REDUCE,
    CALL_ALL_GATHER,
    CALL_REDUCE_SCATTER,
    CALL_ALL_GATHER_V,
    CALL_REDUCE_SCATTER_V,
    CALL_ALL_TO_ALL,
    CALL_ALL_TO_ALL_V,
    CALL_SCATTER,
    CALL_BARRIER
};
extern const char *const call_names[];

typedef struct {
    enum { TRANSFER_SEND, TRANSFER_RECEIVE, TRANSFER_REDUCE } what;
    uint32_t peer;   /* of a send or a receive; a reduction takes from every other rank */
    char *data;      /* what is sent, or where the result goes */
    const char *own; /* this rank's contribution to a reduction; may be `data` */
    uint64_t bytes;
    uint64_t done;   /* the engine's own: bytes that have moved */
    uint32_t opened; /* the engine's own: headers that have moved */
} transfer;

/* Run the transfers to their end. Transfers with the same peer and direction are done in the order of the list.
 * Returns 0, or the ACL code that the stream shall fail with; the communicator is then unusable. */
int run_transfers(communicator *comm, const call_header *call, transfer *transfers, size_t count);

/* End the communicator with the error of a rank that did not come; returns the ACL code. */
int fail_with_timeout(communicator *comm, const call_header *call, const char *peer, const char *reason);

#pragma GCC visibility pop

#endif
