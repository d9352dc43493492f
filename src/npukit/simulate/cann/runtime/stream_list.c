/* All streams of the process: a list of those that live, and those that died and wait to be used again. */
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

npusim_stream *npusim_next_stream(npusim_stream *previous, int device) {
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

bool npusim_anything_pending(void) {
    pthread_mutex_lock(&list_lock);
    npusim_stream *stream = live;
    while (stream && atomic_load(&stream->done) >= atomic_load(&stream->put)) {
        stream = stream->next;
    }
    pthread_mutex_unlock(&list_lock);
    return stream != NULL;
}

/* The child has none of the threads that served the streams: their queues are emptied, as the parent does the work. */
static void empty_queues(void) {
    pthread_mutex_init(&list_lock, NULL);
    for (npusim_stream *stream = live; stream; stream = stream->next) {
        initialise_locks(stream);
        stream->first = NULL;
        stream->running = stream->served = stream->asleep = false;
        stream->waiters = 0;
        atomic_store(&stream->done, atomic_load(&stream->put));
    }
}

void npusim_streams_fork(int stage) {
    if (stage < 0) {
        pthread_mutex_lock(&list_lock);
    } else if (stage == 0) {
        pthread_mutex_unlock(&list_lock);
    } else {
        empty_queues();
    }
}
