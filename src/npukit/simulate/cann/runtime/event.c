/* Events: a place in a stream, remembered as the number of the work before it. An event for several processes (see
 * event_slots.c) also counts its records where they can see it. An external one, which torch_npu has until 2.6, tells a
 * graph under way that it may go on: a value that streams write and wait for (values.c). */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "capture.h"
#include "runtime.h"

typedef struct {
    atomic_int references;
    uint32_t flags, id;
    npusim_slot *slot;    /* shared between processes, else NULL */
    pthread_mutex_t lock; /* over what follows */
    bool recorded;
    npusim_stream *stream; /* NULL where the stream had nothing to do when it was recorded */
    uint64_t number;
    uint64_t record; /* counts its records */
    int64_t time_ns; /* 0 until the stream has come to it */
    npusim_captured_place captured;
    uint64_t told; /* of an external event: 1 once it is recorded */
} event_record;

static atomic_uint next_id;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000l + now.tv_nsec;
}

static bool is_external(aclrtEvent event) {
    return ((event_record *)event)->flags & ACL_EVENT_EXTERNAL;
}

static void release(event_record *event) {
    if (atomic_fetch_sub(&event->references, 1) > 1 || is_external(event)) { /* graphs keep the place of its value */
        return;
    }
    if (event->stream) {
        npusim_stream_release(event->stream);
    }
    if (event->captured.stream) {
        npusim_stream_release(event->captured.stream);
    }
    if (event->slot) {
        npusim_give_slot(event->slot);
    }
    pthread_mutex_destroy(&event->lock);
    free(event);
}

static int create(aclrtEvent *handle, uint32_t flags, npusim_slot *slot) {
    event_record *event = calloc(1, sizeof *event);
    REQUIRE(handle && event, "aclrtCreateEvent");
    atomic_init(&event->references, 1);
    pthread_mutex_init(&event->lock, NULL);
    event->flags = flags;
    event->slot = slot;
    event->id = atomic_fetch_add(&next_id, 1);
    *handle = event;
    return ACL_SUCCESS;
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag) {
    npusim_slot *slot = flag & ACL_EVENT_IPC ? npusim_take_slot() : NULL;
    if ((flag & ACL_EVENT_IPC) && !slot) {
        return npusim_error(ACL_ERROR_RT_NO_EVENT_RESOURCE, "There are no more events to share with other processes.");
    }
    return create(event, flag, slot);
}

aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag) {
    return aclrtCreateEventExWithFlag(event, flag);
}

aclError aclrtCreateEvent(aclrtEvent *event) {
    return aclrtCreateEventExWithFlag(event, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE | ACL_EVENT_CAPTURE_STREAM_PROGRESS);
}

npusim_slot *npusim_event_slot(aclrtEvent event) {
    return ((event_record *)event)->slot;
}

int npusim_event_at_slot(npusim_slot *slot, aclrtEvent *event) {
    return create(event, ACL_EVENT_IPC, slot);
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

/* Called with the lock held, when the stream has come to a record of the event. */
static void pass(event_record *event, uint64_t record) {
    if (record == event->record) { /* else it was recorded again in the meantime */
        event->time_ns = now_ns();
    }
    if (event->slot && !npusim_slot_passed(event->slot, record)) {
        atomic_store(&event->slot->passed, record);
    }
}

typedef struct {
    event_record *event;
    uint64_t record;
} coming_record;

static int come_to_record(void *argument) {
    coming_record coming = *(coming_record *)argument;
    free(argument);
    pthread_mutex_lock(&coming.event->lock);
    pass(coming.event, coming.record);
    pthread_mutex_unlock(&coming.event->lock);
    release(coming.event);
    return ACL_SUCCESS;
}

/* Remembers where in a capture the event now is, or that it is in none. */
static bool record_in_capture(event_record *event, npusim_stream *stream) {
    npusim_captured_place place = npusim_place_in_capture(stream);
    pthread_mutex_lock(&event->lock);
    npusim_stream *before = event->captured.stream;
    event->captured = place;
    pthread_mutex_unlock(&event->lock);
    if (before) {
        npusim_stream_release(before);
    }
    return place.stream != NULL;
}

static npusim_captured_place captured_place(event_record *event) {
    pthread_mutex_lock(&event->lock);
    npusim_captured_place place = event->captured;
    if (place.stream) {
        npusim_stream_hold(place.stream);
    }
    pthread_mutex_unlock(&event->lock);
    return place;
}

static int check_uncaptured(event_record *event, const char *function) {
    npusim_captured_place place = captured_place(event);
    bool open = place.stream && npusim_place_is_open(&place);
    if (place.stream) {
        npusim_stream_release(place.stream);
    }
    return open ? npusim_error(ACL_ERROR_RT_EVENT_CAPTURED, "%s: event %u is being captured.", function, event->id)
                : ACL_SUCCESS;
}

aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
    REQUIRE(handle, "aclrtRecordEvent");
    if (is_external(handle)) {
        return aclrtValueWrite(&((event_record *)handle)->told, 1, 0, stream_handle);
    }
    npusim_stream *stream = npusim_stream_of(stream_handle);
    if (!stream) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    event_record *event = handle;
    if (record_in_capture(event, stream)) {
        return ACL_SUCCESS;
    }
    uint64_t last = npusim_stream_last(stream);
    bool idle = npusim_stream_reached(stream, last) && !npusim_stream_error_at(stream, last);
    coming_record *coming = idle ? NULL : malloc(sizeof *coming);
    REQUIRE(idle || coming, "aclrtRecordEvent");
    pthread_mutex_lock(&event->lock);
    npusim_stream *before = event->stream;
    event->recorded = true;
    event->time_ns = 0;
    event->stream = NULL;
    event->record++;
    if (event->slot) {
        atomic_store(&event->slot->recorder, getpid());
        event->record = atomic_fetch_add(&event->slot->asked, 1) + 1;
    }
    if (idle) {
        pass(event, event->record);
    } else {
        atomic_fetch_add(&event->references, 1);
        npusim_stream_hold(stream);
        event->stream = stream;
        *coming = (coming_record){event, event->record};
        event->number = npusim_stream_put(stream, come_to_record, coming, ALWAYS);
    }
    pthread_mutex_unlock(&event->lock);
    if (before) {
        npusim_stream_release(before);
    }
    return ACL_SUCCESS;
}

/* What an event stands for now: a place in a stream of ours, a record made by another process, or nothing. */
typedef struct {
    npusim_stream *stream; /* held */
    uint64_t number;
    event_record *foreign; /* held */
} place;

static place place_of(event_record *event) {
    place found = {NULL, 0, NULL};
    pthread_mutex_lock(&event->lock);
    uint64_t asked = event->slot ? atomic_load(&event->slot->asked) : event->record;
    if (asked != event->record) {
        found = (place){NULL, asked, event};
        atomic_fetch_add(&event->references, 1);
    } else if (event->stream) {
        found = (place){event->stream, event->number, NULL};
        npusim_stream_hold(event->stream);
    }
    pthread_mutex_unlock(&event->lock);
    return found;
}

static void leave(const place *left) {
    if (left->stream) {
        npusim_stream_release(left->stream);
    }
    if (left->foreign) {
        release(left->foreign);
    }
}

static bool passed(const place *asked) {
    return asked->stream    ? npusim_stream_reached(asked->stream, asked->number)
           : asked->foreign ? npusim_slot_passed(asked->foreign->slot, asked->number)
                            : true;
}

static int error_before(const place *asked) {
    npusim_stream *stream = asked->stream;
    return stream ? npusim_explain(stream, npusim_stream_error_at(stream, asked->number)) : ACL_SUCCESS;
}

static int wait_for_place(void *argument) {
    place other = *(place *)argument;
    free(argument);
    int error = ACL_SUCCESS;
    if (other.stream) {
        error = npusim_explain(other.stream, npusim_stream_follow(other.stream, other.number));
    } else {
        npusim_slot_wait(other.foreign->slot, other.number, -1);
    }
    leave(&other);
    return error;
}

aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent event) {
    REQUIRE(event, "aclrtStreamWaitEvent");
    if (is_external(event)) {
        return aclrtValueWait(&((event_record *)event)->told, 1, ACL_STREAM_WAIT_VALUE_EQ, stream_handle);
    }
    npusim_stream *stream = npusim_stream_of(stream_handle);
    if (!stream) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    npusim_captured_place captured = captured_place(event);
    bool is_captured;
    int error = npusim_join_capture(stream, &captured, &is_captured);
    if (captured.stream) {
        npusim_stream_release(captured.stream);
    }
    if (error || is_captured) {
        return error;
    }
    place other = place_of(event);
    bool in_order = (other.stream && other.stream == stream) || (passed(&other) && !error_before(&other));
    place *awaited = in_order ? NULL : malloc(sizeof *awaited);
    if (!awaited) {
        leave(&other);
        return ACL_SUCCESS;
    }
    *awaited = other;
    npusim_stream_put(stream, wait_for_place, awaited, MAY_BLOCK | ALWAYS);
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout) {
    REQUIRE(event, "aclrtSynchronizeEvent");
    int captured = check_uncaptured(event, "aclrtSynchronizeEvent");
    if (captured) {
        return captured;
    }
    place asked = place_of(event);
    if (asked.stream) {
        npusim_stream_wait(asked.stream, asked.number, timeout);
    } else if (asked.foreign) {
        npusim_slot_wait(asked.foreign->slot, asked.number, timeout);
    }
    bool in_time = passed(&asked) || timeout < 0;
    int error = error_before(&asked);
    leave(&asked);
    return in_time ? error : npusim_error(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "No event came within %d ms.", timeout);
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
    return aclrtSynchronizeEventWithTimeout(event, -1);
}

static int query(aclrtEvent event, bool *has_passed) {
    *has_passed = false;
    int captured = check_uncaptured(event, "aclrtQueryEventStatus");
    if (captured) {
        return captured;
    }
    place asked = place_of(event);
    *has_passed = passed(&asked);
    int error = *has_passed ? error_before(&asked) : ACL_SUCCESS;
    leave(&asked);
    return error;
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status) {
    REQUIRE(event && status, "aclrtQueryEventStatus");
    bool has_passed;
    int error = query(event, &has_passed);
    *status = has_passed ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return error;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus *status) {
    REQUIRE(event && status, "aclrtQueryEventWaitStatus");
    bool has_passed;
    int error = query(event, &has_passed);
    *status = has_passed ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
    return error;
}

/* Forgets the record once the stream has come so far. */
aclError aclrtResetEvent(aclrtEvent handle, aclrtStream stream) {
    REQUIRE(handle, "aclrtResetEvent");
    if (is_external(handle)) {
        return aclrtValueWrite(&((event_record *)handle)->told, 0, 0, stream);
    }
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
        return npusim_error(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "Event %u was made without timing or never recorded.",
                            event->id);
    }
    return *time_ns ? ACL_SUCCESS
                    : npusim_error(ACL_ERROR_RT_EVENT_NOT_COMPLETE, "Event %u is yet to come.", event->id);
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
