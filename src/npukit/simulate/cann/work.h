/* Who hears of work that ended on a stream, beside the profiler's own files: libmspti.so, while torch's profiler records. */
#ifndef NPUSIM_WORK_H
#define NPUSIM_WORK_H

#include <stdint.h>

/* Called on the thread that issued a kernel, or on the stream's for what ran later; `kind` is as in npusim_profile_work. */
typedef void (*npusim_work_listener)(const char *kind, const char *name, int device, int stream, uint64_t nanoseconds);

/* There is one listener; NULL for none. */
void npusim_listen_to_work(npusim_work_listener listener);

#endif
