/* Streams: queues of numbered work. Each has a thread of its own, started when something is first put there; whoever
 * waits for a stream takes work from the queue himself, so that a short copy and its synchronisation need no other
 * thread. Order is the queue's in either case.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime.h"
#include "stream.h"

enum { NAP_MS = 1, NAPS_BEFORE_SLEEP = 50 };

static atomic_bool exiting;
static atomic_uint_fast64_t destroyed;
static _Thread_local npusim_stream *running_stream; /* whose work this thread is doing */
static _Thread_local uint64_t running_number;
static void *(*before_waiting)(void);
static void (*after_waiting)(void *token);

void npusim_around_waiting(void *(*before)(void), void (*after)(void *token)) {
    before_waiting = before;
    after_waiting = after;
}

int64_t npusim_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t deadline_ms) {
    struct timespec when = {deadline_ms / 1000, deadline_ms % 1000 * 1000000};
    return pthread_cond_timedwait(condition, lock, &when);
}

npusim_stream *npusim_stream_of(aclrtStream handle) {
    npusim_stream *stream = handle;
    if (!stream) {
        npusim_context *context = npusim_current_context();
        return context ? context->default_stream : NULL;
    }
    if (!stream->alive) {
        npusim_error(ACL_ERROR_RT_PARAM_INVALID, "The stream was destroyed.");
        return NULL;
    }
    return stream;
}

uint64_t npusim_stream_last(npusim_stream *stream) {
    return atomic_load_explicit(&stream->put, memory_order_acquire);
}

bool npusim_stream_reached(npusim_stream *stream, uint64_t number) {
    return atomic_load_explicit(&stream->done, memory_order_acquire) >= number;
}

int npusim_stream_error_at(npusim_stream *stream, uint64_t number) {
    int error = atomic_load_explicit(&stream->error, memory_order_acquire);
    return error && number >= atomic_load(&stream->failed_at) ? error : ACL_SUCCESS;
}

bool npusim_stream_works(npusim_stream *stream) {
    return stream->alive && !atomic_load(&stream->error);
}

/* The first failure is what the stream reports from then on. Called with the lock held, by the thread that failed. */
static void fail_at(npusim_stream *stream, int code, uint64_t number) {
    if (code && !atomic_load(&stream->error)) {
        npusim_take_message(stream->message);
        atomic_store(&stream->failed_at, number);
        atomic_store(&stream->error, code);
    }
}

int npusim_explain(npusim_stream *stream, int error) {
    if (!error) {
        return ACL_SUCCESS;
    }
    if (error == ACL_ERROR_RT_STREAM_SYNC_TIMEOUT) {
        return npusim_error(error, "Stream %d was not done within the time limit.", stream->id);
    }
    char message[MESSAGE_SIZE];
    pthread_mutex_lock(&stream->lock);
    memcpy(message, stream->message, sizeof message);
    pthread_mutex_unlock(&stream->lock);
    return message[0] ? npusim_repeat_error(error, message)
                      : npusim_error(error, "Work on stream %d of device %d failed.", stream->id, stream->device);
}

/* Called with the lock held; does the first work of the queue and gives the lock back held. */
static void run_first(npusim_stream *stream) {
    npusim_work *work = stream->first;
    stream->first = work->next;
    stream->running = true;
    pthread_mutex_unlock(&stream->lock);

    npusim_stream *outer_stream = running_stream;
    uint64_t outer_number = running_number;
    running_stream = stream;
    running_number = work->number;
    int code = 0;
    if ((work->flags & ALWAYS) || npusim_stream_works(stream)) {
        code = work->task(work->argument);
    }
    running_stream = outer_stream;
    running_number = outer_number;

    pthread_mutex_lock(&stream->lock);
    fail_at(stream, code, work->number);
    stream->running = false;
    atomic_store_explicit(&stream->done, work->number, memory_order_release);
    if (stream->waiters) {
        pthread_cond_broadcast(&stream->progress);
    }
    if (stream->first && (stream->first->flags & PROMPT)) {
        pthread_cond_signal(&stream->work);
    }
    free(work);
}

static bool due(const npusim_stream *stream, const npusim_work *work) {
    return !npusim_slow_stream_ms || work->number <= stream->hurried || npusim_now_ms() >= work->not_before_ms;
}

static void *serve(void *argument) {
    npusim_stream *stream = argument;
    int naps = 0;
    pthread_mutex_lock(&stream->lock);
    while ((stream->alive || stream->first) && !atomic_load(&exiting)) {
        if (stream->first && !stream->running && due(stream, stream->first)) {
            run_first(stream);
            naps = 0;
        } else if (stream->first || stream->running || naps < NAPS_BEFORE_SLEEP) {
            naps++;
            wait_until(&stream->work, &stream->lock, npusim_now_ms() + NAP_MS);
        } else {
            stream->asleep = true;
            pthread_cond_wait(&stream->work, &stream->lock);
            stream->asleep = false;
            naps = 0;
        }
    }
    stream->served = false;
    pthread_mutex_unlock(&stream->lock);
    npusim_stream_release(stream);
    return NULL;
}

/* Signals belong to the program's own threads. */
static void start_serving(npusim_stream *stream) {
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_t detached;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    npusim_stream_hold(stream);
    stream->served = pthread_create(&thread, &detached, serve, stream) == 0;
    if (!stream->served) {
        npusim_stream_release(stream); /* whoever synchronises will do the work */
    }
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

uint64_t npusim_stream_put(npusim_stream *stream, npusim_task task, void *argument, int flags) {
    npusim_work *work = malloc(sizeof *work);
    if (!work) {
        abort();
    }
    *work = (npusim_work){.task = task, .argument = argument, .flags = flags};
    if (npusim_slow_stream_ms) {
        work->not_before_ms = npusim_now_ms() + npusim_slow_stream_ms;
    }
    pthread_mutex_lock(&stream->lock);
    uint64_t number = work->number = npusim_stream_last(stream) + 1;
    *(stream->first ? &stream->end->next : &stream->first) = work;
    stream->end = work;
    atomic_store_explicit(&stream->put, number, memory_order_release);
    if (!stream->served) {
        start_serving(stream);
    } else if (stream->asleep || (flags & PROMPT)) {
        pthread_cond_signal(&stream->work);
    }
    pthread_mutex_unlock(&stream->lock);
    return number;
}

static int wait_for_work(npusim_stream *stream, uint64_t number, int timeout_ms) {
    int64_t deadline = timeout_ms < 0 ? INT64_MAX : npusim_now_ms() + timeout_ms;
    bool in_time = true;
    pthread_mutex_lock(&stream->lock);
    if (stream->hurried < number) {
        stream->hurried = number;
    }
    stream->waiters++;
    while (in_time && !npusim_stream_reached(stream, number)) {
        if (stream->first && !stream->running && (timeout_ms < 0 || !(stream->first->flags & MAY_BLOCK))) {
            run_first(stream);
            continue;
        }
        pthread_cond_signal(&stream->work);
        if (timeout_ms < 0) {
            pthread_cond_wait(&stream->progress, &stream->lock);
        } else {
            in_time = wait_until(&stream->progress, &stream->lock, deadline) != ETIMEDOUT;
        }
    }
    stream->waiters--;
    in_time = npusim_stream_reached(stream, number);
    pthread_mutex_unlock(&stream->lock);
    return in_time ? npusim_stream_error_at(stream, number) : ACL_ERROR_RT_STREAM_SYNC_TIMEOUT;
}

int npusim_stream_wait(npusim_stream *stream, uint64_t number, int timeout_ms) {
    if (npusim_stream_reached(stream, number)) {
        return npusim_stream_error_at(stream, number);
    }
    void *token = before_waiting ? before_waiting() : NULL;
    int error = wait_for_work(stream, number, timeout_ms);
    if (after_waiting) {
        after_waiting(token);
    }
    return error;
}

/* Hurries the other stream only where this one is waited for itself; that matters where streams are slow on request. */
int npusim_stream_follow(npusim_stream *stream, uint64_t number) {
    npusim_stream *self = running_stream;
    for (bool hurried = !npusim_slow_stream_ms; !hurried && !npusim_stream_reached(stream, number);) {
        nanosleep(&(struct timespec){0, 500000}, NULL);
        pthread_mutex_lock(&self->lock);
        hurried = self->hurried >= running_number || !npusim_stream_works(self);
        pthread_mutex_unlock(&self->lock);
    }
    return npusim_stream_works(self) ? npusim_stream_wait(stream, number, -1) : ACL_SUCCESS;
}

int npusim_stream_enqueue(void *handle, npusim_task task, void *argument) {
    npusim_stream *stream = npusim_stream_of(handle);
    if (!stream) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    int error = atomic_load(&stream->error);
    if (!error) {
        npusim_stream_put(stream, task, argument, PROMPT | MAY_BLOCK);
    }
    return npusim_explain(stream, error);
}

int npusim_check_uncaptured(npusim_stream *stream, const char *function) {
    return atomic_load(&stream->capture.graph)
               ? npusim_error(ACL_ERROR_RT_STREAM_CAPTURED, "%s: stream %d is being captured.", function, stream->id)
               : ACL_SUCCESS;
}

int npusim_stream_drain(void *handle) {
    npusim_stream *stream = npusim_stream_of(handle);
    if (!stream) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    int error = npusim_check_uncaptured(stream, "A synchronisation");
    return error ? error : npusim_explain(stream, npusim_stream_wait(stream, npusim_stream_last(stream), -1));
}

void npusim_stream_fail(void *handle, int code) {
    npusim_stream *stream = npusim_stream_of(handle);
    if (stream) {
        pthread_mutex_lock(&stream->lock);
        fail_at(stream, code, npusim_stream_last(stream));
        pthread_mutex_unlock(&stream->lock);
    }
}

void npusim_stream_close(npusim_stream *stream) {
    atomic_fetch_add(&destroyed, 1);
    pthread_mutex_lock(&stream->lock);
    stream->alive = false;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->lock);
    npusim_stream_release(stream);
}

uint64_t npusim_streams_destroyed(void) {
    return atomic_load(&destroyed);
}

static void at_exit(void) {
    atomic_store(&exiting, true);
}

__attribute__((constructor)) static void prepare(void) {
    atexit(at_exit);
}
