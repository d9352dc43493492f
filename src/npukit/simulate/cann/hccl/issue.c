/* Calls become tasks on streams. Those of one communicator run one after the other, in the order they were issued. */
#include "issue.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "reduce.h"

enum { STEERING_INTEGERS = 64 << 20 }; /* in bytes */

call *new_call(void *handle, uint32_t kind, call_body body, size_t transfers) {
    communicator *comm = handle;
    if (!comm) {
        npusim_error(HCCL_E_PTR, "EI0003: A collective was called without a communicator.");
        return NULL;
    }
    call *call = calloc(1, sizeof *call + 4 * comm->ranks * sizeof(uint64_t) + transfers * sizeof(transfer));
    if (!call) {
        return NULL;
    }
    call->comm = comm;
    call->body = body;
    call->header.kind = kind;
    call->send_bytes = (uint64_t *)(call + 1);
    call->send_at = call->send_bytes + comm->ranks;
    call->receive_bytes = call->send_at + comm->ranks;
    call->receive_at = call->receive_bytes + comm->ranks;
    call->transfers = (transfer *)(call->receive_at + comm->ranks);
    call->transfer_count = transfers;
    return call;
}

/* Where only shapes count, integers still do, as sizes and pickled objects steer programs; and flags, as few floats. */
uint64_t moving_bytes(uint64_t count, HcclDataType type) {
    uint64_t bytes = count * bytes_of(type);
    bool integer = type != HCCL_FP16 && type != HCCL_FP32 && type != HCCL_FP64 && type < HCCL_BFP16;
    return npusim_shapes_only() && bytes > (uint64_t)(integer ? STEERING_INTEGERS : NPUSIM_STEERING_BYTES) ? 0 : bytes;
}

int check_arguments(const void *comm, HcclDataType type, uint32_t peer, const char *function) {
    if (bytes_of(type) == 0) {
        return npusim_error(HCCL_E_NOT_SUPPORT, "EI0003: %s: there is no HCCL data type %d.", function, (int)type);
    }
    if (comm && peer >= ((const communicator *)comm)->ranks) {
        return npusim_error(HCCL_E_PARA, "EI0003: %s: rank %u does not exist, the communicator has %u ranks.", function,
                            peer, ((const communicator *)comm)->ranks);
    }
    return HCCL_SUCCESS;
}

/* A stream that failed drops what is queued on it, so a turn may never come: hence the limit. */
static bool wait_for_turn(const call *call) {
    communicator *comm = call->comm;
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += comm->exec_timeout ? comm->exec_timeout : INT32_MAX;
    int waited = 0;
    pthread_mutex_lock(&comm->lock);
    while (comm->turn != call->turn && !atomic_load(&comm->failed) && waited != ETIMEDOUT) {
        waited = pthread_cond_timedwait(&comm->turn_changed, &comm->lock, &deadline);
    }
    bool came = comm->turn == call->turn;
    pthread_mutex_unlock(&comm->lock);
    return came;
}

static void end_turn(communicator *comm) {
    pthread_mutex_lock(&comm->lock);
    comm->turn++;
    pthread_cond_broadcast(&comm->turn_changed);
    pthread_mutex_unlock(&comm->lock);
}

static uint64_t size_of(const call *call) {
    uint64_t bytes = call->header.count * bytes_of(call->header.data_type);
    for (size_t i = 0; i < call->transfer_count; i++) {
        bytes += call->transfers[i].bytes;
    }
    for (uint32_t rank = 0; !bytes && rank < call->comm->ranks; rank++) {
        bytes += call->send_bytes[rank];
    }
    return bytes;
}

/* For the profiler: what is called SendRecv is a send or a receive where it is one alone. */
static void profile(const call *call, npusim_moment started) {
    const communicator *comm = call->comm;
    const char *name = call_names[call->header.kind];
    if (call->header.kind == CALL_POINT_TO_POINT && call->transfer_count == 1) {
        name = call->transfers[0].what == TRANSFER_SEND ? "Send" : "Receive";
    }
    char more[HCCL_COMM_NAME_LENGTH + 128];
    snprintf(more, sizeof more, "\"group\": \"%s\", \"rank\": %u, \"ranks\": %u, \"bytes\": %lu", comm->name,
             comm->rank, comm->ranks, (unsigned long)size_of(call));
    npusim_profile_work(call->stream, "collective", name, call->issued, started, more);
}

static int execute(const call *call) {
    communicator *comm = call->comm;
    bool my_turn = wait_for_turn(call);
    if (atomic_load(&comm->failed)) {
        return report_failure(comm);
    }
    switch (my_turn ? call->fault.kind : NPUSIM_TIMEOUT) {
    case NPUSIM_TIMEOUT:
        return fail_with_timeout(comm, &call->header, "unknown", "did not come to this collective in time");
    case NPUSIM_ACL_ERROR:
        return npusim_error(call->fault.code, "%s failed, as was asked for.", call_names[call->header.kind]);
    case NPUSIM_KILL:
        raise(SIGKILL);
        break;
    default:
        break;
    }
    npusim_moment started = npusim_moment_now();
    uint64_t slow = npusim_slow_link_ns(size_of(call));
    if (slow) { /* before anything is sent, so that the others feel it as well */
        nanosleep(&(struct timespec){(time_t)(slow / 1000000000), (long)(slow % 1000000000)}, NULL);
    }
    int code = call->body(call);
    if (started.time) {
        profile(call, started);
    }
    return code;
}

static int run_call(void *argument) {
    call *call = argument;
    communicator *comm = call->comm;
    int code = execute(call);
    end_turn(comm);
    communicator_release(comm);
    free(call);
    return code;
}

static HcclResult put(call *call, const char *function, void *stream) {
    communicator *comm = call->comm;
    call->fault = npusim_next_fault(NPUSIM_ON_COLLECTIVE, function);
    call->issued = npusim_moment_now();
    call->stream = stream;
    communicator_hold(comm);
    pthread_mutex_lock(&comm->lock);
    bool numbered = call->header.kind != CALL_POINT_TO_POINT;
    call->header.number = numbered ? comm->collectives : 0;
    call->turn = comm->issued;
    int error = npusim_stream_enqueue(stream, run_call, call);
    if (!error) {
        comm->issued++;
        comm->collectives += numbered;
    }
    pthread_mutex_unlock(&comm->lock);
    if (error) {
        communicator_release(comm);
        free(call);
        return HCCL_E_RUNTIME;
    }
    return HCCL_SUCCESS;
}

static call *clone_call(const call *template) {
    communicator *comm = template->comm;
    call *made = new_call(comm, template->header.kind, template->body, template->transfer_count);
    if (made) {
        made->in = template->in;
        made->out = template->out;
        made->bytes = template->bytes;
        made->header = template->header;
        memcpy(made->send_bytes, template->send_bytes, 4 * comm->ranks * sizeof(uint64_t));
        memcpy(made->transfers, template->transfers, template->transfer_count * sizeof(transfer));
    }
    return made;
}

/* What a graph keeps of a call: every execution issues a copy, which takes its turn like any other call. */
static int issue_again(void *kept, void *stream) {
    call *call = clone_call(kept);
    return call ? (int)put(call, call_names[call->header.kind], stream) : HCCL_E_MEMORY;
}

static void drop(void *kept) {
    communicator_release(((call *)kept)->comm);
    free(kept);
}

HcclResult issue(call *call, const char *function, void *stream) {
    static const npusim_keeping keep_call = {.launch = issue_again, .drop = drop};
    if (!npusim_stream_keeps(stream)) {
        return put(call, function, stream);
    }
    communicator_hold(call->comm);
    return npusim_keep(stream, &keep_call, call, function) ? HCCL_E_RUNTIME : HCCL_SUCCESS;
}
