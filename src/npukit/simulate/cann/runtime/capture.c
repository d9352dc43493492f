/* Captures: between aclmdlRICaptureBegin and aclmdlRICaptureEnd a graph takes what is put on a stream, and on every
 * stream that waits for an event of it. Nothing is executed meanwhile. */
#include <stdlib.h>

#include "capture.h"
#include "stream.h"

/* One capture under way. */
typedef struct capture {
    struct capture *next;
    npusim_graph *graph;
    npusim_stream *origin, **joined; /* held */
    size_t joined_count;
    aclmdlRICaptureMode mode;
    pthread_t thread;
} capture;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static capture *captures;
static atomic_int underway; /* so that nothing is locked where nothing is captured */
static _Thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

bool npusim_stream_keeps(void *handle) {
    npusim_stream *stream = npusim_stream_of(handle);
    return stream && (atomic_load(&stream->capture.graph) || atomic_load(&stream->capture.update));
}

static capture *capture_of(const npusim_graph *graph) {
    capture *found = captures;
    while (found && found->graph != graph) {
        found = found->next;
    }
    return found;
}

int npusim_keep(void *handle, const npusim_keeping *how, void *kept, const char *name) {
    npusim_stream *stream = npusim_stream_of(handle);
    if (!stream) {
        how->drop(kept);
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    if (atomic_load(&stream->capture.update)) {
        return npusim_update_group(stream, how, kept, name);
    }
    pthread_mutex_lock(&lock);
    npusim_graph *graph = atomic_load(&stream->capture.graph);
    int error = graph ? npusim_graph_add(graph, how, kept, name, stream->id)
                      : npusim_error(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "Stream %d is not captured.", stream->id);
    if (!graph) {
        how->drop(kept);
    } else if (!error) {
        stream->capture.work++;
        stream->capture.joined = false;
        if (stream->capture.group) {
            error = npusim_group_add(stream->capture.group, npusim_graph_size(graph) - 1);
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* The modes as CANN documents them: relaxed allows everything, thread-local binds the thread that captures, global binds
 * all; a thread frees itself by exchanging its own mode. */
static bool forbids(const capture *each) {
    if (each->mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED || thread_mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED) {
        return false;
    }
    bool own = pthread_equal(each->thread, pthread_self());
    return own || (each->mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL && thread_mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL);
}

int npusim_check_unsafe(const char *function) {
    if (!atomic_load(&underway)) {
        return ACL_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    const capture *each = captures;
    while (each && !forbids(each)) {
        each = each->next;
    }
    pthread_mutex_unlock(&lock);
    return each ? npusim_error(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT,
                               "%s is not allowed while a graph is captured, in capture mode %d.", function,
                               (int)each->mode)
                : ACL_SUCCESS;
}

int npusim_check_device_uncaptured(int device, const char *function) {
    if (!atomic_load(&underway)) {
        return ACL_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    const capture *each = captures;
    while (each && each->origin->device != device) {
        each = each->next;
    }
    pthread_mutex_unlock(&lock);
    return each ? npusim_error(ACL_ERROR_RT_STREAM_CAPTURED, "%s: a stream of device %d is being captured.", function,
                               device)
                : ACL_SUCCESS;
}

npusim_captured_place npusim_place_in_capture(npusim_stream *stream) {
    npusim_captured_place place = {NULL, 0, 0};
    pthread_mutex_lock(&lock);
    npusim_graph *graph = atomic_load(&stream->capture.graph);
    if (graph) {
        npusim_stream_hold(stream);
        place = (npusim_captured_place){stream, npusim_graph_id(graph), stream->capture.work};
    }
    pthread_mutex_unlock(&lock);
    return place;
}

static bool is_open(const npusim_captured_place *place) {
    npusim_graph *graph = place->stream ? atomic_load(&place->stream->capture.graph) : NULL;
    return graph && npusim_graph_id(graph) == place->graph;
}

bool npusim_place_is_open(const npusim_captured_place *place) {
    pthread_mutex_lock(&lock);
    bool open = is_open(place);
    pthread_mutex_unlock(&lock);
    return open;
}

static int join(capture *into, npusim_stream *stream) {
    npusim_stream **joined = realloc(into->joined, (into->joined_count + 1) * sizeof *joined);
    if (!joined) {
        return npusim_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "There is no memory for another captured stream.");
    }
    npusim_stream_hold(stream);
    into->joined = joined;
    joined[into->joined_count++] = stream;
    atomic_store(&stream->capture.graph, into->graph);
    return ACL_SUCCESS;
}

/* The stream waits for an event. Where that, or the stream itself, belongs to a capture there is nothing else to do,
 * as a graph does its work in the order in which it took it. */
int npusim_join_capture(npusim_stream *stream, const npusim_captured_place *place, bool *is_captured) {
    int error = ACL_SUCCESS;
    pthread_mutex_lock(&lock);
    npusim_graph *graph = atomic_load(&stream->capture.graph);
    bool open = is_open(place);
    *is_captured = graph || open;
    if (graph && !open) {
        error =
            npusim_error(ACL_ERROR_RT_CAPTURE_DEPENDENCY,
                         "Stream %d is being captured and waits for an event that was recorded outside.", stream->id);
    } else if (open && graph && graph != atomic_load(&place->stream->capture.graph)) {
        error = npusim_error(ACL_ERROR_STREAM_CAPTURE_CONFLICT, "Stream %d waits for an event of another graph.",
                             stream->id);
    } else if (open && stream != place->stream) {
        error = graph ? ACL_SUCCESS : join(capture_of(atomic_load(&place->stream->capture.graph)), stream);
        if (!error) {
            stream->capture.work++;
            stream->capture.joined = false;
            place->stream->capture.joined |= place->stream->capture.work == place->work;
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}

aclError aclmdlRICaptureBegin(aclrtStream handle, aclmdlRICaptureMode mode) {
    npusim_stream *stream = npusim_stream_of(handle);
    npusim_context *context = npusim_current_context();
    if (!stream || !context) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    if (stream == context->default_stream) {
        return npusim_error(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "The default stream cannot be captured.");
    }
    int error = npusim_check_uncaptured(stream, "aclmdlRICaptureBegin");
    capture *begun = error ? NULL : calloc(1, sizeof *begun);
    npusim_graph *graph = begun ? npusim_graph_create() : NULL;
    if (!graph) {
        free(begun);
        return error ? error : npusim_error(ACL_ERROR_RT_NO_MODEL_RESOURCE, "No more graphs can be made.");
    }
    npusim_stream_hold(stream);
    *begun = (capture){.graph = graph, .origin = stream, .mode = mode, .thread = pthread_self()};
    pthread_mutex_lock(&lock);
    begun->next = captures;
    captures = begun;
    stream->capture.work = 0;
    atomic_store(&stream->capture.graph, graph);
    atomic_fetch_add(&underway, 1);
    pthread_mutex_unlock(&lock);
    return ACL_SUCCESS;
}

static int check_end(const capture *ending, const npusim_stream *stream) {
    if (!ending) {
        return npusim_error(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "Stream %d is not being captured.", stream->id);
    }
    if (ending->origin != stream) {
        return npusim_error(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "The capture did not begin on stream %d.",
                            stream->id);
    }
    if (ending->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED && !pthread_equal(ending->thread, pthread_self())) {
        return npusim_error(ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD, "The capture began in another thread.");
    }
    return ACL_SUCCESS;
}

static void leave_capture(npusim_stream *stream) {
    atomic_store(&stream->capture.graph, NULL);
    stream->capture.group = NULL;
    npusim_stream_release(stream);
}

static int end(capture *ended) {
    int error = ACL_SUCCESS;
    for (size_t i = 0; i < ended->joined_count; i++) {
        if (!ended->joined[i]->capture.joined) {
            error = npusim_error(ACL_ERROR_RT_STREAM_UNJOINED,
                                 "Stream %d was captured, too, and nobody waits for the last of its work.",
                                 ended->joined[i]->id);
        }
        leave_capture(ended->joined[i]);
    }
    if (ended->origin->capture.group) {
        error = npusim_error(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "A task group was not ended.");
    }
    leave_capture(ended->origin);
    return error;
}

aclError aclmdlRICaptureEnd(aclrtStream handle, aclmdlRI *model) {
    REQUIRE(model, "aclmdlRICaptureEnd");
    *model = NULL;
    npusim_stream *stream = npusim_stream_of(handle);
    if (!stream) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    pthread_mutex_lock(&lock);
    npusim_graph *graph = atomic_load(&stream->capture.graph);
    capture *ended = graph ? capture_of(graph) : NULL;
    int error = check_end(ended, stream);
    if (error) {
        pthread_mutex_unlock(&lock);
        return error;
    }
    capture **link = &captures;
    while (*link != ended) {
        link = &(*link)->next;
    }
    *link = ended->next;
    atomic_fetch_sub(&underway, 1);
    error = end(ended);
    pthread_mutex_unlock(&lock);
    free(ended->joined);
    free(ended);
    if (error) {
        npusim_graph_release(graph);
    } else {
        *model = graph;
    }
    return error;
}

aclError aclmdlRICaptureGetInfo(aclrtStream handle, aclmdlRICaptureStatus *status, aclmdlRI *model) {
    REQUIRE(status, "aclmdlRICaptureGetInfo");
    npusim_stream *stream = npusim_stream_of(handle);
    npusim_graph *graph = stream ? atomic_load(&stream->capture.graph) : NULL;
    *status = graph ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
    if (model) {
        *model = graph;
    }
    return stream ? ACL_SUCCESS : aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode *mode) {
    REQUIRE(mode, "aclmdlRICaptureThreadExchangeMode");
    aclmdlRICaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return ACL_SUCCESS;
}
