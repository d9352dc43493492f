/* All streams of the process: a list of those that live, and what is done with many of them at once. */
#include <stdlib.h>

#include "stream.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static npusim_stream *live, *unused;
static atomic_int next_id;

static void initialise_locks(npusim_stream *stream) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->work, &monotonic);
    pthread_cond_init(&stream->progress, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

npusim_stream *npusim_stream_create(int device, uint32_t priority, uint32_t flags) {
    pthread_mutex_lock(&list_lock);
    npusim_stream *stream = unused;
    if (stream) {
        unused = stream->next;
    } else if ((stream = calloc(1, sizeof *stream))) {
        initialise_locks(stream);
    } else {
        pthread_mutex_unlock(&list_lock);
        return NULL;
    }
    stream->device = device;
    stream->priority = priority;
    stream->flags = flags;
    stream->message[0] = 0;
    stream->overflow_switch = 0;
    stream->failure_mode = ACL_CONTINUE_ON_FAILURE;
    stream->limits[0] = stream->limits[1] = 0;
    stream->capture = (npusim_capture){.graph = NULL};
    atomic_store(&stream->failed_at, UINT64_MAX);
    stream->id = atomic_fetch_add(&next_id, 1);
    stream->alive = true;
    atomic_store(&stream->error, 0);
    atomic_store(&stream->references, 1);
    stream->next = live;
    live = stream;
    pthread_mutex_unlock(&list_lock);
    return stream;
}

void npusim_stream_hold(npusim_stream *stream) {
    atomic_fetch_add(&stream->references, 1);
}

/* The last reference goes under the list's lock, as others take theirs from the list. The structure is kept for the
 * next stream: a handle used after its stream was destroyed must be recognised as dead, not read from freed memory. */
void npusim_stream_release(npusim_stream *stream) {
    int references = atomic_load(&stream->references);
    while (references > 1) {
        if (atomic_compare_exchange_weak(&stream->references, &references, references - 1)) {
            return;
        }
    }
    pthread_mutex_lock(&list_lock);
    if (atomic_fetch_sub(&stream->references, 1) == 1) {
        npusim_stream **link = &live;
        while (*link != stream) {
            link = &(*link)->next;
        }
        *link = stream->next;
        stream->next = unused;
        unused = stream;
    }
    pthread_mutex_unlock(&list_lock);
}

/* The next stream of a device after `previous` in the list, held; releases `previous`. */
static npusim_stream *next_of_device(npusim_stream *previous, int device) {
    pthread_mutex_lock(&list_lock);
    npusim_stream *stream = previous ? previous->next : live;
    while (stream && stream->device != device) {
        stream = stream->next;
    }
    if (stream) {
        npusim_stream_hold(stream);
    }
    pthread_mutex_unlock(&list_lock);
    if (previous) {
        npusim_stream_release(previous);
    }
    return stream;
}

int npusim_wait_for_device(int device, int timeout_ms) {
    int64_t deadline = timeout_ms < 0 ? 0 : npusim_now_ms() + timeout_ms;
    int first_error = ACL_SUCCESS;
    for (npusim_stream *stream = NULL; (stream = next_of_device(stream, device));) {
        int64_t left = timeout_ms < 0 ? -1 : deadline - npusim_now_ms();
        left = timeout_ms >= 0 && left < 0 ? 0 : left;
        int error = npusim_stream_wait(stream, npusim_stream_last(stream), (int)left);
        first_error = first_error ? first_error : npusim_explain(stream, error);
    }
    return first_error;
}

void npusim_abort_device(int device, int code) {
    for (npusim_stream *stream = NULL; (stream = next_of_device(stream, device));) {
        uint64_t last = npusim_stream_last(stream);
        if (!npusim_stream_reached(stream, last)) {
            npusim_stream_fail(stream, code);
            npusim_stream_wait(stream, last, 1000);
        }
        pthread_mutex_lock(&stream->lock);
        atomic_store(&stream->failed_at, UINT64_MAX);
        atomic_store(&stream->error, 0);
        pthread_mutex_unlock(&stream->lock);
    }
}

bool npusim_anything_pending(void) {
    pthread_mutex_lock(&list_lock);
    npusim_stream *stream = live;
    while (stream && npusim_stream_reached(stream, npusim_stream_last(stream))) {
        stream = stream->next;
    }
    pthread_mutex_unlock(&list_lock);
    return stream != NULL;
}

static void before_fork(void) {
    pthread_mutex_lock(&list_lock);
    npusim_memory_fork(-1);
}

static void in_parent(void) {
    npusim_memory_fork(0);
    pthread_mutex_unlock(&list_lock);
}

/* The child has none of the threads that served the streams: their queues are emptied, as the parent does the work. */
static void in_child(void) {
    npusim_memory_fork(1);
    pthread_mutex_init(&list_lock, NULL);
    for (npusim_stream *stream = live; stream; stream = stream->next) {
        initialise_locks(stream);
        stream->first = NULL;
        stream->running = stream->served = stream->asleep = false;
        stream->waiters = 0;
        atomic_store(&stream->done, npusim_stream_last(stream));
    }
}

__attribute__((constructor)) static void prepare(void) {
    pthread_atfork(before_fork, in_parent, in_child);
}
