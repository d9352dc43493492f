/* HCCL's collectives: how each is made of transfers, and the functions that torch_npu calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "issue.h"
#include "reduce.h"

enum { ONE_STEP_BYTES = 16 << 10 }; /* an all-reduce up to this size goes to everybody at once */

/* ---- the bodies, which run on the stream ---- */

static transfer send_to(uint32_t peer, const void *data, uint64_t bytes) {
    return (transfer){.what = TRANSFER_SEND, .peer = peer, .data = (char *)data, .bytes = bytes};
}

static transfer receive_from(uint32_t peer, void *data, uint64_t bytes) {
    return (transfer){.what = TRANSFER_RECEIVE, .peer = peer, .data = data, .bytes = bytes};
}

static transfer reduce_into(void *data, const void *own, uint64_t bytes) {
    return (transfer){.what = TRANSFER_REDUCE, .data = data, .own = own, .bytes = bytes};
}

/* Peers in the order rank+1, rank+2, ...: so that not everybody starts with rank 0. */
static uint32_t nth_peer(const communicator *comm, uint32_t n) {
    return (comm->rank + 1 + n) % comm->ranks;
}

static int run(const call *call, transfer *transfers, size_t count) {
    return run_transfers(call->comm, &call->header, transfers, count);
}

static void copy_own(void *to, const void *from, uint64_t bytes) {
    if (to != from && bytes) {
        memmove(to, from, bytes);
    }
}

/* Every rank sends something to every other one. */
static int exchange(const call *call, const char *in, const uint64_t *send_bytes, const uint64_t *send_at,
                    const uint64_t *receive_bytes, const uint64_t *receive_at) {
    const communicator *comm = call->comm;
    uint32_t peers = comm->ranks - 1;
    transfer transfers[2 * MAX_RANKS];
    for (uint32_t i = 0; i < peers; i++) {
        uint32_t peer = nth_peer(comm, i);
        transfers[i] = send_to(peer, in + send_at[peer], send_bytes[peer]);
        transfers[peers + i] = receive_from(peer, call->out + receive_at[peer], receive_bytes[peer]);
    }
    copy_own(call->out + receive_at[comm->rank], in + send_at[comm->rank], receive_bytes[comm->rank]);
    return run(call, transfers, 2 * peers);
}

/* All-gather and barrier; also all-to-all, whose input is put aside where it overlaps the output. */
static int exchange_all(const call *call) {
    uint64_t in_bytes = 0, out_bytes = 0;
    for (uint32_t rank = 0; rank < call->comm->ranks; rank++) {
        uint64_t in_end = call->send_at[rank] + call->send_bytes[rank];
        uint64_t out_end = call->receive_at[rank] + call->receive_bytes[rank];
        in_bytes = in_end > in_bytes ? in_end : in_bytes;
        out_bytes = out_end > out_bytes ? out_end : out_bytes;
    }
    bool gathers = call->header.kind == CALL_ALL_GATHER || call->header.kind == CALL_ALL_GATHER_V;
    bool overlap = !gathers && call->in < call->out + out_bytes && call->out < call->in + in_bytes;
    char *aside = overlap ? malloc(in_bytes) : NULL;
    if (overlap && !aside) {
        return npusim_error(ACL_TASK_FAILED, "EI0007: No host memory for an all-to-all in place.");
    }
    if (aside) {
        memcpy(aside, call->in, in_bytes);
    }
    int error = exchange(call, aside ? aside : call->in, call->send_bytes, call->send_at, call->receive_bytes,
                         call->receive_at);
    free(aside);
    return error;
}

/* Broadcast and scatter: the root sends each rank its part. */
static int send_from_root(const call *call) {
    const communicator *comm = call->comm;
    transfer transfers[MAX_RANKS];
    if (comm->rank != call->header.root) {
        transfers[0] = receive_from(call->header.root, call->out, call->bytes);
        return run(call, transfers, 1);
    }
    for (uint32_t i = 0; i + 1 < comm->ranks; i++) {
        uint32_t peer = nth_peer(comm, i);
        transfers[i] = send_to(peer, call->in + call->send_at[peer], call->bytes);
    }
    copy_own(call->out, call->in + call->send_at[comm->rank], call->bytes);
    return run(call, transfers, comm->ranks - 1);
}

static int reduce_to_root(const call *call) {
    bool root = call->comm->rank == call->header.root;
    transfer transfer =
        root ? reduce_into(call->out, call->in, call->bytes) : send_to(call->header.root, call->in, call->bytes);
    return run(call, &transfer, 1);
}

/* Part p of the input is reduced on rank p. */
static int reduce_parts(const call *call, char *out, const uint64_t *bytes, const uint64_t *at) {
    const communicator *comm = call->comm;
    transfer transfers[MAX_RANKS];
    for (uint32_t i = 0; i + 1 < comm->ranks; i++) {
        uint32_t peer = nth_peer(comm, i);
        transfers[i] = send_to(peer, call->in + at[peer], bytes[peer]);
    }
    transfers[comm->ranks - 1] = reduce_into(out, call->in + at[comm->rank], bytes[comm->rank]);
    return run(call, transfers, comm->ranks);
}

static int reduce_scatter(const call *call) {
    return reduce_parts(call, call->out, call->send_bytes, call->send_at);
}

/* The sends are over before the result is written, as both may be the same memory; so little fits the rings. */
static int all_reduce_in_one_step(const call *call) {
    const communicator *comm = call->comm;
    transfer transfers[MAX_RANKS], result = reduce_into(call->out, call->in, call->bytes);
    for (uint32_t i = 0; i + 1 < comm->ranks; i++) {
        transfers[i] = send_to(nth_peer(comm, i), call->in, call->bytes);
    }
    int error = run(call, transfers, comm->ranks - 1);
    return error ? error : run(call, &result, 1);
}

static int all_reduce(const call *call) {
    const communicator *comm = call->comm;
    if (call->bytes <= ONE_STEP_BYTES) {
        return all_reduce_in_one_step(call);
    }
    uint64_t bytes[MAX_RANKS], at[MAX_RANKS] = {0}, own_bytes[MAX_RANKS], own_at[MAX_RANKS];
    uint64_t part = (call->bytes / comm->ranks / CACHE_LINE + 1) * CACHE_LINE;
    for (uint32_t rank = 0; rank < comm->ranks; rank++) {
        at[rank] = rank * part < call->bytes ? rank * part : call->bytes;
        bytes[rank] = call->bytes - at[rank] < part ? call->bytes - at[rank] : part;
    }
    for (uint32_t rank = 0; rank < comm->ranks; rank++) {
        own_bytes[rank] = bytes[comm->rank];
        own_at[rank] = at[comm->rank];
    }
    int error = reduce_parts(call, call->out + at[comm->rank], bytes, at);
    return error ? error : exchange(call, call->out, own_bytes, own_at, bytes, at);
}

/* ---- what is common to the functions ---- */

static int check_reduction(const void *comm, HcclDataType type, HcclReduceOp op, uint32_t root, const char *function) {
    if (!can_reduce(type) || (uint32_t)op > HCCL_MIN) {
        return npusim_error(HCCL_E_NOT_SUPPORT,
                            "EI0003: %s: data type %d cannot be reduced with operation %d; convert the tensor first.",
                            function, (int)type, (int)op);
    }
    return check_arguments(comm, type, root, function);
}

/* `root` is 0 where a collective has none. */
static HcclResult start(call *call, const char *function, const void *in, void *out, uint64_t count, HcclDataType type,
                        uint32_t root, void *stream) {
    if (!call) {
        return HCCL_E_PTR;
    }
    call->in = (char *)in;
    call->out = out;
    call->header.count = count;
    call->header.data_type = type;
    call->header.root = root;
    call->bytes = moving_bytes(count, type);
    return issue(call, function, stream);
}

static void set_parts(const call *call, uint64_t *bytes, uint64_t *at, const uint64_t *counts, const uint64_t *offsets,
                      HcclDataType type) {
    for (uint32_t rank = 0; rank < call->comm->ranks; rank++) {
        bytes[rank] = moving_bytes(counts[rank], type);
        at[rank] = offsets[rank] * bytes_of(type);
    }
}

static void set_equal_parts(const call *call, uint64_t *bytes, uint64_t *at, uint64_t count, uint64_t distance,
                            HcclDataType type) {
    for (uint32_t rank = 0; rank < call->comm->ranks; rank++) {
        bytes[rank] = moving_bytes(count, type);
        at[rank] = rank * distance * bytes_of(type);
    }
}

/* ---- the functions ---- */

HcclResult HcclBroadcast(void *buffer, uint64_t count, HcclDataType type, uint32_t root, void *comm, void *stream) {
    int error = check_arguments(comm, type, root, __func__);
    return error ? (HcclResult)error
                 : start(new_call(comm, CALL_BROADCAST, send_from_root, 0), __func__, buffer, buffer, count, type, root,
                         stream);
}

HcclResult HcclScatter(void *in, void *out, uint64_t count, HcclDataType type, uint32_t root, void *comm,
                       void *stream) {
    int error = check_arguments(comm, type, root, __func__);
    call *call = error ? NULL : new_call(comm, CALL_SCATTER, send_from_root, 0);
    if (call) {
        set_equal_parts(call, call->send_bytes, call->send_at, count, count, type);
    }
    return error ? (HcclResult)error : start(call, __func__, in, out, count, type, root, stream);
}

static HcclResult start_reduction(uint32_t kind, call_body body, const char *function, void *in, void *out,
                                  uint64_t count, HcclDataType type, HcclReduceOp op, uint32_t root, void *comm,
                                  void *stream) {
    int error = check_reduction(comm, type, op, root, function);
    call *call = error ? NULL : new_call(comm, kind, body, 0);
    if (call) {
        call->header.op = op;
        set_equal_parts(call, call->send_bytes, call->send_at, count, count, type);
    }
    return error ? (HcclResult)error : start(call, function, in, out, count, type, root, stream);
}

HcclResult HcclAllReduce(void *in, void *out, uint64_t count, HcclDataType type, HcclReduceOp op, void *comm,
                         void *stream) {
    return start_reduction(CALL_ALL_REDUCE, all_reduce, __func__, in, out, count, type, op, 0, comm, stream);
}

HcclResult HcclReduce(void *in, void *out, uint64_t count, HcclDataType type, HcclReduceOp op, uint32_t root,
                      void *comm, void *stream) {
    return start_reduction(CALL_REDUCE, reduce_to_root, __func__, in, out, count, type, op, root, comm, stream);
}

HcclResult HcclReduceScatter(void *in, void *out, uint64_t count, HcclDataType type, HcclReduceOp op, void *comm,
                             void *stream) {
    return start_reduction(CALL_REDUCE_SCATTER, reduce_scatter, __func__, in, out, count, type, op, 0, comm, stream);
}

HcclResult HcclReduceScatterV(void *in, const void *counts, const void *offsets, void *out, uint64_t count,
                              HcclDataType type, HcclReduceOp op, void *comm, void *stream) {
    (void)count; /* it is this rank's entry of `counts` */
    int error = check_reduction(comm, type, op, 0, __func__);
    call *call = error ? NULL : new_call(comm, CALL_REDUCE_SCATTER_V, reduce_scatter, 0);
    if (call) {
        call->header.op = op;
        set_parts(call, call->send_bytes, call->send_at, counts, offsets, type);
    }
    return error ? (HcclResult)error : start(call, __func__, in, out, 0, type, 0, stream);
}

HcclResult HcclAllGather(void *in, void *out, uint64_t count, HcclDataType type, void *comm, void *stream) {
    int error = check_arguments(comm, type, 0, __func__);
    call *call = error ? NULL : new_call(comm, CALL_ALL_GATHER, exchange_all, 0);
    if (call) {
        set_equal_parts(call, call->send_bytes, call->send_at, count, 0, type);
        set_equal_parts(call, call->receive_bytes, call->receive_at, count, count, type);
    }
    return error ? (HcclResult)error : start(call, __func__, in, out, count, type, 0, stream);
}

HcclResult HcclAllGatherV(void *in, uint64_t count, void *out, const void *counts, const void *offsets,
                          HcclDataType type, void *comm, void *stream) {
    int error = check_arguments(comm, type, 0, __func__);
    call *call = error ? NULL : new_call(comm, CALL_ALL_GATHER_V, exchange_all, 0);
    if (call) {
        set_equal_parts(call, call->send_bytes, call->send_at, count, 0, type);
        set_parts(call, call->receive_bytes, call->receive_at, counts, offsets, type);
    }
    return error ? (HcclResult)error : start(call, __func__, in, out, 0, type, 0, stream);
}

HcclResult HcclAlltoAll(const void *in, uint64_t in_count, HcclDataType in_type, const void *out, uint64_t out_count,
                        HcclDataType out_type, void *comm, void *stream) {
    int error = check_arguments(comm, in_type, 0, __func__) || check_arguments(comm, out_type, 0, __func__);
    call *call = error ? NULL : new_call(comm, CALL_ALL_TO_ALL, exchange_all, 0);
    if (call) {
        set_equal_parts(call, call->send_bytes, call->send_at, in_count, in_count, in_type);
        set_equal_parts(call, call->receive_bytes, call->receive_at, out_count, out_count, out_type);
    }
    return error ? HCCL_E_PARA : start(call, __func__, in, (void *)out, in_count, in_type, 0, stream);
}

HcclResult HcclAlltoAllV(const void *in, const void *in_counts, const void *in_offsets, HcclDataType in_type,
                         const void *out, const void *out_counts, const void *out_offsets, HcclDataType out_type,
                         void *comm, void *stream) {
    int error = check_arguments(comm, in_type, 0, __func__) || check_arguments(comm, out_type, 0, __func__);
    call *call = error ? NULL : new_call(comm, CALL_ALL_TO_ALL_V, exchange_all, 0);
    if (call) {
        set_parts(call, call->send_bytes, call->send_at, in_counts, in_offsets, in_type);
        set_parts(call, call->receive_bytes, call->receive_at, out_counts, out_offsets, out_type);
    }
    return error ? HCCL_E_PARA : start(call, __func__, in, (void *)out, 0, in_type, 0, stream);
}

/* `counts` is a matrix: row i is what rank i sends to each rank, packed without gaps. */
HcclResult HcclAlltoAllVC(const void *in, const void *counts, HcclDataType in_type, const void *out,
                          HcclDataType out_type, void *comm, void *stream) {
    const communicator *self = comm;
    const uint64_t *matrix = counts;
    if (!self || !matrix) {
        return HCCL_E_PTR;
    }
    uint64_t tables[4][MAX_RANKS] = {0}; /* send counts and offsets, receive counts and offsets */
    for (uint32_t rank = 0; rank < self->ranks; rank++) {
        tables[0][rank] = matrix[self->rank * self->ranks + rank];
        tables[2][rank] = matrix[rank * self->ranks + self->rank];
        tables[1][rank] = rank ? tables[1][rank - 1] + tables[0][rank - 1] : 0;
        tables[3][rank] = rank ? tables[3][rank - 1] + tables[2][rank - 1] : 0;
    }
    return HcclAlltoAllV(in, tables[0], tables[1], in_type, out, tables[2], tables[3], out_type, comm, stream);
}

HcclResult HcclBarrier(void *comm, void *stream) {
    return start(new_call(comm, CALL_BARRIER, exchange_all, 0), __func__, NULL, NULL, 0, HCCL_INT8, 0, stream);
}
