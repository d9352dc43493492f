/* What the simulated NPU's own parts know of each other.
 *
 * Everything torch_npu calls is declared in CANN's public headers, which the
 * torch_npu wheel carries; the libraries are compiled against those. This file
 * is the small rest: what the collectives (hccl/) and the operators (../aten/)
 * need from the runtime (runtime/).
 *
 * Settings come from the environment, so that child processes see the same machine:
 *   NPUKIT_SIM_DEVICES     how many cards there are
 *   NPUKIT_SIM_SOC         what aclrtGetSocName says, e.g. Ascend910B3
 *   NPUKIT_SIM_MEMORY_MIB  memory of one card
 *   NPUKIT_SIM_CORES       AI cores of one card, "cube,vector"
 *   NPUKIT_SIM_CANN_VERSION  what CANN says it is
 *   NPUKIT_SIM_BF16        0 where operators refuse bfloat16
 *   NPUKIT_SIM_REFUSALS    "on": operators refuse types and dimensions that CANN does not document
 *   NPUKIT_SIM_COMPUTE     "full" (default) or "shapes": nothing is computed or moved
 *   NPUKIT_SIM_FAULTS      faults on request, see faults.c
 *   NPUKIT_SIM_BESIDE_CUDA the library that is loaded before torch_npu beside a CUDA build of torch
 *   NPUKIT_SIM_OPERATORS   the library that replaces torch_npu's kernels, loaded by aclInit
 */
#ifndef NPUSIM_H
#define NPUSIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A piece of work on a stream. Returns 0 or an ACL error code, and may leave a message with npusim_error; it frees its
 * argument. Work on a stream that failed before its turn, or was destroyed by force, is dropped with its argument. */
typedef int (*npusim_task)(void *argument);

/* Put work on a stream: it runs after all that was put there before, on the stream's own thread or on that of whoever
 * waits for it. Where the stream has failed already, returns its error and takes nothing. A stream that is NULL, here
 * and below, is the default stream of the calling thread's device. */
int npusim_stream_enqueue(void *stream, npusim_task task, void *argument);

/* Wait until a stream has done its work; the caller helps where it can. Returns the stream's error, if any.
 * Operators run on the calling thread, so they call this first: that is what makes them happen "on the stream". */
int npusim_stream_drain(void *stream);

/* How many streams were destroyed so far: while it stays the same, a handle that was known still means its stream. */
uint64_t npusim_streams_destroyed(void);

/* Work that a graph keeps, to do it again at every execution. One of two is set: `run` does it, on the stream when its
 * turn has come; `launch` puts it on the stream when the execution is asked for. `drop` frees it. */
typedef struct {
    int (*run)(void *kept);
    int (*launch)(void *kept, void *stream);
    void (*drop)(void *kept);
} npusim_keeping;

/* True where a graph takes what is put on the stream, as it captures the stream or is being updated there. */
bool npusim_stream_keeps(void *stream);

/* Give work to the graph that takes what is put on the stream; `name` is for people to read. Takes `kept` over, and
 * drops it where it returns an error. */
int npusim_keep(void *stream, const npusim_keeping *how, void *kept, const char *name);

/* What a thread does before it waits for other threads, and after: `before` returns what `after` is given. For threads
 * that hold a lock which the others' work may need, such as the interpreter's. */
void npusim_around_waiting(void *(*before)(void), void (*after)(void *token));

/* Set a stream's sticky error, as a kernel that failed does. The next synchronisation returns it. */
void npusim_stream_fail(void *stream, int code);

/* Leave a message in CANN's manner ("EI0002: [PID: 7] ...") for aclGetRecentErrMsg, and return the code. */
int npusim_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* True where nothing is computed and nothing is moved (NPUKIT_SIM_COMPUTE=shapes) but what may steer the program: it is
 * not larger than this. */
enum { NPUSIM_STEERING_BYTES = 1 << 16 };
bool npusim_shapes_only(void);

/* True where an address is in the memory of a device. */
bool npusim_on_device(const void *address);

/* Make device memory zero without touching pages where that is possible. */
void npusim_zero(void *device_memory, size_t bytes);

/* The fault that is due now for this kind of event, counting from 1 over the life of the process. A kill is carried
 * out at once and never returned. */
typedef enum { NPUSIM_ON_ALLOCATION, NPUSIM_ON_KERNEL, NPUSIM_ON_COLLECTIVE } npusim_event;
typedef enum {
    NPUSIM_NO_FAULT,
    NPUSIM_OUT_OF_MEMORY,
    NPUSIM_ACL_ERROR,
    NPUSIM_TIMEOUT,
    NPUSIM_KILL,
    NPUSIM_BITFLIP
} npusim_fault_kind;
typedef struct {
    npusim_fault_kind kind;
    int code; /* for NPUSIM_ACL_ERROR */
} npusim_fault;

/* `name` is the operator's or collective's name ("aten::mm", "HcclAllReduce"), or NULL. */
npusim_fault npusim_next_fault(npusim_event event, const char *name);

/* How long so many bytes take over a link that is slow on request, else 0. */
uint64_t npusim_slow_link_ns(uint64_t bytes);

/* When and on which thread something happened, for the profiler; the time is 0 while nothing is recorded, and what
 * began at such a moment is not recorded either. */
typedef struct {
    uint64_t time; /* nanoseconds of CLOCK_MONOTONIC_RAW */
    int thread;
} npusim_moment;

npusim_moment npusim_moment_now(void);

/* Record work that just ended on a stream, of kind "kernel", "copy" or "collective"; `more` is JSON fields or NULL. */
void npusim_profile_work(void *stream, const char *kind, const char *name, npusim_moment issued, npusim_moment started,
                         const char *more);

/* Record a call of the host to CANN that is about to return. */
void npusim_profile_call(const char *name, npusim_moment started);

/* Read NPUKIT_SIM_FAULTS, as happens when the library is loaded; for a process that has forked, before it uses a device. */
void npusim_read_faults(void);

#ifdef __cplusplus
}
#endif
#endif
