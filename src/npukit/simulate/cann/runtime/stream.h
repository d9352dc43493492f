/* The inside of a stream, for the files that deal with streams. */
#ifndef NPUSIM_STREAM_H
#define NPUSIM_STREAM_H

#include "capture.h"
#include "runtime.h"

typedef struct npusim_work {
    struct npusim_work *next;
    npusim_task task;
    void *argument;
    uint64_t number;
    int64_t not_before_ms; /* only where streams are slow on request */
    int flags;
} npusim_work;

struct npusim_stream {
    atomic_uint_fast64_t put, done; /* numbers of the last work put here and done */
    atomic_int error;               /* sticky */
    atomic_uint_fast64_t failed_at; /* first work that failed */
    atomic_int references;
    atomic_bool alive; /* not yet destroyed */
    int device, id;
    uint32_t priority, flags, overflow_switch;
    uint64_t failure_mode;
    uint32_t limits[2]; /* AI cores asked for, 0: the device's */
    struct npusim_stream *next;
    npusim_capture capture;

    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t work, progress;
    npusim_work *first, *end;
    uint64_t hurried; /* last work somebody waits for */
    int waiters;
    char message[MESSAGE_SIZE];   /* of the work that failed */
    bool running, served, asleep; /* somebody does the first work; there is a thread; it wants a signal */
};

int npusim_check_uncaptured(npusim_stream *stream, const char *function); /* 0 or 107027 */
void npusim_stream_close(npusim_stream *stream);
npusim_stream *npusim_next_stream(npusim_stream *previous, int device); /* of the list, held; releases `previous` */
int64_t npusim_now_ms(void);

#endif
