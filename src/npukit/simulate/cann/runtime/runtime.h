/* What the runtime's own files know of each other: the machine's settings, contexts, memory blocks, streams. */
#ifndef NPUSIM_RUNTIME_H
#define NPUSIM_RUNTIME_H

#include <pthread.h>
#include <stdatomic.h>

#include "acl/acl.h"
#include "../npusim.h"

enum {
    MAX_DEVICES = 64,
    PAGE = 1 << 16, /* whole pages wherever the kernel's are of 4, 16 or 64 KiB */
    MESSAGE_SIZE = 2048
};

/* errors.c: a message belongs to a thread until somebody asks for it; a stream keeps that of the work that failed. */
void npusim_take_message(char taken[MESSAGE_SIZE]); /* empty where there is none */
int npusim_repeat_error(int code, const char earlier[MESSAGE_SIZE]);

/* settings.c: the simulated machine, read once from the environment. */
typedef struct {
    char soc[32];
    char cann_version[32];
    size_t memory; /* bytes of one card */
    int cube_cores, vector_cores;
    bool shapes_only;
} npusim_machine;

const npusim_machine *npusim_the_machine(void);
int npusim_device_count(void);           /* as this process sees it */
int npusim_physical_device(int device);  /* the card's number on the machine */
int npusim_check_device(int64_t device); /* 0, 107001 or, for a card that dropped out, 507033, with a message */

/* context.c */
typedef struct npusim_stream npusim_stream;
typedef struct {
    int device;
    npusim_stream *default_stream;
} npusim_context;

npusim_context *npusim_current_context(void);       /* NULL, with 107002 left as message, where no device was set */
void npusim_set_default_device(int device);         /* what a thread that never chose a device gets, -1 for none */
void npusim_forget_device(int device);              /* its context is inactive until it is set again */
bool npusim_leave_context(npusim_context *context); /* false: it is one that aclrtSetDevice made */

/* memory.c: which range of addresses is what. */
typedef enum { HOST_PINNED, HOST_REGISTERED, DEVICE_MEMORY, DEVICE_MAPPED, DEVICE_IMPORTED } npusim_memory_kind;
typedef struct {
    char *start;
    size_t bytes;
    npusim_memory_kind kind;
    int device; /* of device memory */
    int fd;     /* the memfd it lives in once it is shared, else -1; closed with the block */
} npusim_block;

bool npusim_find_block(const void *address, npusim_block *found);
void npusim_add_block(npusim_block block);
bool npusim_remove_block(const void *start, npusim_memory_kind kind, npusim_block *removed);
/* Moves it into a memfd, at its own address; what a stream writes meanwhile is lost, so that the caller waits first. */
int npusim_share_block(const void *address, npusim_block *shared);
int npusim_shared_file(size_t bytes);
int npusim_take_memory(int device, size_t bytes); /* 0 or 207001 */
void npusim_give_memory(int device, size_t bytes);
int npusim_memory_percent(int device);

/* ipc.c: a file in memory seen from another process; the id tells it from a later one with the same number. */
int npusim_open_shared(int pid, int fd);
unsigned long npusim_file_id(int fd);

/* event_slots.c: an event as other processes see it, as numbers of records. */
typedef struct {
    atomic_uint_fast64_t asked, passed;
    atomic_int recorder; /* the process that recorded last */
} npusim_slot;

npusim_slot *npusim_take_slot(void);
void npusim_give_slot(npusim_slot *slot);
bool npusim_slot_passed(const npusim_slot *slot, uint64_t number);
bool npusim_slot_wait(const npusim_slot *slot, uint64_t number, int timeout_ms); /* false: it did not pass in time */

typedef struct {
    int pid, fd;
    unsigned long id;
    long index;
} npusim_slot_place;

bool npusim_place_of_slot(const npusim_slot *slot, npusim_slot_place *place); /* false: it is another process's */
npusim_slot *npusim_slot_at(const npusim_slot_place *place);                  /* NULL: it cannot be reached */

/* event.c */
npusim_slot *npusim_event_slot(aclrtEvent event);
int npusim_event_at_slot(npusim_slot *slot, aclrtEvent *event);

/* stream_list.c, stream.c: numbered work in a queue; work with a number is done when all up to it is. */
enum {
    PROMPT = 1,    /* others wait for it (a collective): wake the stream's thread at once */
    MAY_BLOCK = 2, /* whoever waits with a time limit must not run it himself */
    ALWAYS = 4     /* run even after the stream failed; for bookkeeping */
};

npusim_stream *npusim_stream_create(int device, uint32_t priority, uint32_t flags);
npusim_stream *npusim_stream_of(aclrtStream handle); /* NULL, with a message, where there is none */
void npusim_stream_hold(npusim_stream *stream);
void npusim_stream_release(npusim_stream *stream);
uint64_t npusim_stream_last(npusim_stream *stream); /* number of the last work put there */
bool npusim_stream_reached(npusim_stream *stream, uint64_t number);
int npusim_stream_error_at(npusim_stream *stream, uint64_t number); /* error of the work up to that number */
bool npusim_stream_works(npusim_stream *stream);                    /* neither failed nor destroyed */
int npusim_explain(npusim_stream *stream, int error);               /* leaves the message of what went wrong */
uint64_t npusim_stream_put(npusim_stream *stream, npusim_task task, void *argument, int flags);
int npusim_stream_wait(npusim_stream *stream, uint64_t number, int timeout_ms); /* 0, 507046 or the stream's error */
int npusim_stream_follow(npusim_stream *stream, uint64_t number); /* wait, from within another stream's work */
bool npusim_anything_pending(void);

/* device.c */
int npusim_wait_for_device(int device, int timeout_ms);
void npusim_abort_device(int device, int code); /* drops what has not begun and forgets errors */

/* faults.c */
extern int npusim_slow_stream_ms; /* 0 unless asked for */
bool npusim_card_is_lost(int physical_device);

/* What fork() in another thread must not cut in two. */
void npusim_memory_fork(int stage); /* -1 before, 0 in the parent, 1 in the child */
void npusim_streams_fork(int stage);

#define NOT_SIMULATED(name) npusim_error(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s is not simulated.", name)
#define REQUIRE(condition, function) \
    do { \
        if (!(condition)) { \
            return npusim_error(ACL_ERROR_INVALID_PARAM, "%s: %s does not hold.", function, #condition); \
        } \
    } while (0)

#endif
