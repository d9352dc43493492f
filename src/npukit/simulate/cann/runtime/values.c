/* Values in device memory that streams write and wait for. torch_npu makes its external events of them, which tell a
 * graph under way that it may go on. */
#include <stdlib.h>
#include <time.h>

#include "runtime.h"

enum { LOOK_AGAIN_MS = 5 }; /* others may write there, too, without telling */

typedef struct {
    uint64_t *address, value;
    uint32_t comparison;
} value_job;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t written = PTHREAD_COND_INITIALIZER;

static int do_write(void *argument) {
    const value_job *job = argument;
    pthread_mutex_lock(&lock);
    __atomic_store_n(job->address, job->value, __ATOMIC_SEQ_CST);
    pthread_cond_broadcast(&written);
    pthread_mutex_unlock(&lock);
    return ACL_SUCCESS;
}

static bool holds(const value_job *job) {
    uint64_t now = __atomic_load_n(job->address, __ATOMIC_SEQ_CST);
    switch (job->comparison) {
    case ACL_STREAM_WAIT_VALUE_GEQ:
        return (int64_t)(now - job->value) >= 0;
    case ACL_STREAM_WAIT_VALUE_AND:
        return (now & job->value) != 0;
    case ACL_STREAM_WAIT_VALUE_NOR:
        return ~(now | job->value) != 0;
    default:
        return now == job->value;
    }
}

static int do_wait(void *argument) {
    const value_job *job = argument;
    pthread_mutex_lock(&lock);
    while (!holds(job)) {
        struct timespec when;
        clock_gettime(CLOCK_REALTIME, &when);
        when.tv_nsec += LOOK_AGAIN_MS * 1000000;
        when.tv_sec += when.tv_nsec / 1000000000;
        when.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&written, &lock, &when);
    }
    pthread_mutex_unlock(&lock);
    return ACL_SUCCESS;
}

static const npusim_keeping keep_write = {.run = do_write, .drop = free};
static const npusim_keeping keep_wait = {.run = do_wait, .drop = free};

static int write_once(void *argument) {
    int error = do_write(argument);
    free(argument);
    return error;
}

static int wait_once(void *argument) {
    int error = do_wait(argument);
    free(argument);
    return error;
}

static int put(void *address, uint64_t value, uint32_t comparison, aclrtStream handle, bool writes) {
    REQUIRE(address && (uintptr_t)address % sizeof value == 0, "aclrtValueWrite or aclrtValueWait");
    npusim_stream *stream = npusim_stream_of(handle);
    value_job *job = stream ? malloc(sizeof *job) : NULL;
    if (!job) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    *job = (value_job){address, value, comparison};
    if (npusim_stream_keeps(stream)) {
        return npusim_keep(stream, writes ? &keep_write : &keep_wait, job, writes ? "VALUE_WRITE" : "VALUE_WAIT");
    }
    npusim_stream_put(stream, writes ? write_once : wait_once, job, PROMPT | MAY_BLOCK);
    return ACL_SUCCESS;
}

aclError aclrtValueWrite(void *address, uint64_t value, uint32_t flag, aclrtStream stream) {
    (void)flag;
    return put(address, value, 0, stream, true);
}

aclError aclrtValueWait(void *address, uint64_t value, uint32_t flag, aclrtStream stream) {
    return put(address, value, flag, stream, false);
}
