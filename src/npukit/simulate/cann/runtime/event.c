/* Events: a place in a stream, remembered as the number of the work before it. */
#include <stdlib.h>
#include <time.h>

#include "runtime.h"

typedef struct {
    atomic_int references;
    uint32_t flags, id;
    pthread_mutex_t lock;  /* over what follows */
    bool recorded;
    npusim_stream *stream; /* NULL where the stream had nothing to do when it was recorded */
    uint64_t number;
    int64_t time_ns;       /* 0 until the stream has come to it */
} event_record;

static atomic_uint next_id;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000l + now.tv_nsec;
}

static void release(event_record *event) {
    if (atomic_fetch_sub(&event->references, 1) == 1) {
        if (event->stream) {
            npusim_stream_release(event->stream);
        }
        pthread_mutex_destroy(&event->lock);
        free(event);
    }
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *handle, uint32_t flag) {
    REQUIRE(handle, "aclrtCreateEventExWithFlag");
    if (flag & (ACL_EVENT_IPC | ACL_EVENT_EXTERNAL)) {
        return npusim_error(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "Events between processes or graphs are not simulated.");
    }
    event_record *event = calloc(1, sizeof *event);
    REQUIRE(event, "aclrtCreateEventExWithFlag");
    atomic_init(&event->references, 1);
    pthread_mutex_init(&event->lock, NULL);
    event->flags = flag;
    event->id = atomic_fetch_add(&next_id, 1);
    *handle = event;
    return ACL_SUCCESS;
}

aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag) {
    return aclrtCreateEventExWithFlag(event, flag);
}

aclError aclrtCreateEvent(aclrtEvent *event) {
    return aclrtCreateEventExWithFlag(event, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE | ACL_EVENT_CAPTURE_STREAM_PROGRESS);
}

aclError aclrtDestroyEvent(aclrtEvent event) {
    REQUIRE(event, "aclrtDestroyEvent");
    release(event);
    return ACL_SUCCESS;
}

aclError aclrtGetEventId(aclrtEvent event, uint32_t *id) {
    REQUIRE(event && id, "aclrtGetEventId");
    *id = ((event_record *)event)->id;
    return ACL_SUCCESS;
}

/* Stamps the time, unless the event was recorded again in the meantime: then its number is another. */
static int stamp(void *argument) {
    event_record *event = argument;
    pthread_mutex_lock(&event->lock);
    if (event->stream && npusim_stream_reached(event->stream, event->number - 1)) {
        event->time_ns = now_ns();
    }
    pthread_mutex_unlock(&event->lock);
    release(event);
    return ACL_SUCCESS;
}

aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
    REQUIRE(handle, "aclrtRecordEvent");
    npusim_stream *stream = npusim_stream_of(stream_handle);
    if (!stream) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    event_record *event = handle;
    pthread_mutex_lock(&event->lock);
    npusim_stream *before = event->stream;
    event->recorded = true;
    uint64_t last = npusim_stream_last(stream);
    if (npusim_stream_reached(stream, last) && !npusim_stream_error_at(stream, last)) {
        event->stream = NULL;
        event->time_ns = now_ns();
    } else {
        atomic_fetch_add(&event->references, 1);
        npusim_stream_hold(stream);
        event->stream = stream;
        event->time_ns = 0;
        event->number = npusim_stream_put(stream, stamp, event, ALWAYS);
    }
    pthread_mutex_unlock(&event->lock);
    if (before) {
        npusim_stream_release(before);
    }
    return ACL_SUCCESS;
}

/* The place an event stands for; NULL where there is nothing to wait for. The stream is held. */
static npusim_stream *place(event_record *event, uint64_t *number) {
    pthread_mutex_lock(&event->lock);
    npusim_stream *stream = event->stream;
    *number = event->number;
    if (stream) {
        npusim_stream_hold(stream);
    }
    pthread_mutex_unlock(&event->lock);
    return stream;
}

typedef struct {
    npusim_stream *stream;
    uint64_t number;
} awaited;

static int wait_for_place(void *argument) {
    awaited other = *(awaited *)argument;
    free(argument);
    int error = npusim_explain(other.stream, npusim_stream_follow(other.stream, other.number));
    npusim_stream_release(other.stream);
    return error;
}

aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent event) {
    REQUIRE(event, "aclrtStreamWaitEvent");
    npusim_stream *stream = npusim_stream_of(stream_handle);
    if (!stream) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    uint64_t number;
    npusim_stream *other = place(event, &number);
    if (!other) {
        return ACL_SUCCESS;
    }
    bool passed = npusim_stream_reached(other, number) && !npusim_stream_error_at(other, number);
    awaited *wait = other == stream || passed ? NULL : malloc(sizeof *wait);
    if (!wait) {
        npusim_stream_release(other);
        return ACL_SUCCESS;
    }
    *wait = (awaited){other, number};
    npusim_stream_put(stream, wait_for_place, wait, MAY_BLOCK | ALWAYS);
    return ACL_SUCCESS;
}

aclError aclrtStreamWaitEventWithTimeout(aclrtStream stream, aclrtEvent event, int32_t timeout) {
    (void)timeout;
    return aclrtStreamWaitEvent(stream, event);
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout) {
    REQUIRE(event, "aclrtSynchronizeEvent");
    uint64_t number;
    npusim_stream *stream = place(event, &number);
    if (!stream) {
        return ACL_SUCCESS;
    }
    int error = npusim_explain(stream, npusim_stream_wait(stream, number, timeout));
    npusim_stream_release(stream);
    if (error == ACL_ERROR_RT_STREAM_SYNC_TIMEOUT) {
        return npusim_error(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "The event did not come within %d ms.", timeout);
    }
    return error;
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
    return aclrtSynchronizeEventWithTimeout(event, -1);
}

static int query(aclrtEvent event, bool *passed) {
    uint64_t number;
    npusim_stream *stream = place(event, &number);
    *passed = !stream || npusim_stream_reached(stream, number);
    int error = stream && *passed ? npusim_explain(stream, npusim_stream_error_at(stream, number)) : ACL_SUCCESS;
    if (stream) {
        npusim_stream_release(stream);
    }
    return error;
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status) {
    REQUIRE(event && status, "aclrtQueryEventStatus");
    bool passed;
    int error = query(event, &passed);
    *status = passed ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return error;
}

aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus *status) {
    REQUIRE(event && status, "aclrtQueryEvent");
    bool passed;
    int error = query(event, &passed);
    *status = passed ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
    return error;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus *status) {
    REQUIRE(event && status, "aclrtQueryEventWaitStatus");
    bool passed;
    int error = query(event, &passed);
    *status = passed ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
    return error;
}

/* Forgets the record once the stream has come so far. */
aclError aclrtResetEvent(aclrtEvent handle, aclrtStream stream) {
    REQUIRE(handle, "aclrtResetEvent");
    event_record *event = handle;
    aclError error = aclrtSynchronizeStream(stream);
    pthread_mutex_lock(&event->lock);
    npusim_stream *before = event->stream;
    event->stream = NULL;
    event->recorded = false;
    event->time_ns = 0;
    pthread_mutex_unlock(&event->lock);
    if (before) {
        npusim_stream_release(before);
    }
    return error;
}

static int time_of(event_record *event, int64_t *time_ns) {
    pthread_mutex_lock(&event->lock);
    bool recorded = event->recorded;
    *time_ns = event->time_ns;
    pthread_mutex_unlock(&event->lock);
    if (!(event->flags & ACL_EVENT_TIME_LINE) || !recorded) {
        return npusim_error(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "Event %u was made without timing or never recorded.", event->id);
    }
    return *time_ns ? ACL_SUCCESS : npusim_error(ACL_ERROR_RT_EVENT_NOT_COMPLETE, "Event %u has not come yet.", event->id);
}

aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t *timestamp) {
    REQUIRE(event && timestamp, "aclrtEventGetTimestamp");
    int64_t time_ns = 0;
    int error = time_of(event, &time_ns);
    *timestamp = (uint64_t)time_ns / 1000;
    return error;
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent start, aclrtEvent end) {
    REQUIRE(ms && start && end, "aclrtEventElapsedTime");
    int64_t from, to;
    int error = time_of(start, &from);
    error = error ? error : time_of(end, &to);
    if (error) {
        return error;
    }
    *ms = (float)((double)(to - from) / 1e6);
    return ACL_SUCCESS;
}
