/* Sends and receives: alone, as a batch, or collected between HcclGroupStart and HcclGroupEnd. */
#include <stdlib.h>
#include <string.h>

#include "issue.h"
#include "reduce.h"

/* What this thread has collected since HcclGroupStart. Collectives within a group do not wait for its end: their order
 * among themselves is all that matters, and it stays. */
static _Thread_local struct {
    int depth;
    void *comm, *stream;
    HcclSendRecvItem *items;
    uint32_t count, room;
} group;

static int point_to_point(const call *call) {
    return run_transfers(call->comm, &call->header, call->transfers, call->transfer_count);
}

static HcclResult submit(const HcclSendRecvItem *items, uint32_t count, void *comm, const char *function,
                         void *stream) {
    call *call = new_call(comm, CALL_POINT_TO_POINT, point_to_point, count);
    if (!call) {
        return HCCL_E_PTR;
    }
    for (uint32_t i = 0; i < count; i++) {
        call->transfers[i] = (transfer){
            .what = items[i].direction == HCCL_SEND ? TRANSFER_SEND : TRANSFER_RECEIVE,
            .peer = items[i].peer,
            .data = items[i].buffer,
            .bytes = moving_bytes(items[i].count, items[i].data_type),
        };
    }
    return issue(call, function, stream);
}

static HcclResult submit_group(void) {
    HcclResult result =
        group.count ? submit(group.items, group.count, group.comm, "HcclBatchSendRecv", group.stream) : HCCL_SUCCESS;
    group.count = 0;
    return result;
}

static HcclResult collect(const HcclSendRecvItem *items, uint32_t count, void *comm, void *stream) {
    if (group.comm != comm || group.stream != stream) {
        HcclResult result = submit_group();
        if (result) {
            return result;
        }
        group.comm = comm;
        group.stream = stream;
    }
    if (group.count + count > group.room) {
        group.room = 2 * (group.count + count);
        group.items = realloc(group.items, group.room * sizeof *group.items);
        if (!group.items) {
            group.room = group.count = 0;
            return HCCL_E_MEMORY;
        }
    }
    memcpy(group.items + group.count, items, count * sizeof *items);
    group.count += count;
    return HCCL_SUCCESS;
}

static HcclResult send_receive(const HcclSendRecvItem *items, uint32_t count, void *comm, const char *function,
                               void *stream) {
    for (uint32_t i = 0; i < count; i++) {
        int error = check_arguments(comm, items[i].data_type, items[i].peer, function);
        if (error) {
            return (HcclResult)error;
        }
    }
    return group.depth ? collect(items, count, comm, stream) : submit(items, count, comm, function, stream);
}

HcclResult HcclSend(void *data, uint64_t count, HcclDataType type, uint32_t peer, void *comm, void *stream) {
    HcclSendRecvItem item = {HCCL_SEND, data, count, type, peer};
    return send_receive(&item, 1, comm, __func__, stream);
}

HcclResult HcclRecv(void *data, uint64_t count, HcclDataType type, uint32_t peer, void *comm, void *stream) {
    HcclSendRecvItem item = {HCCL_RECV, data, count, type, peer};
    return send_receive(&item, 1, comm, __func__, stream);
}

HcclResult HcclBatchSendRecv(HcclSendRecvItem *items, uint32_t count, void *comm, void *stream) {
    return items ? send_receive(items, count, comm, __func__, stream) : HCCL_E_PTR;
}

HcclResult HcclGroupStart(void) {
    group.depth++;
    return HCCL_SUCCESS;
}

HcclResult HcclGroupEnd(void) {
    if (group.depth == 0) {
        return (HcclResult)npusim_error(HCCL_E_PARA, "EI0003: HcclGroupEnd was called without HcclGroupStart.");
    }
    return --group.depth ? HCCL_SUCCESS : submit_group();
}
