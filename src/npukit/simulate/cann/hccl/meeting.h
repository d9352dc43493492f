/* How ranks find each other. */
#ifndef NPUSIM_MEETING_H
#define NPUSIM_MEETING_H

#include "communicator.h"

#pragma GCC visibility push(hidden)

enum { CONNECT_TIMEOUT = 120 };

int seconds_from(const char *variable, int fallback);

/* A mapping of this process, with a door where ranks may come from other hosts: a process without a network does
 * without, unless one was named. */
int make_meeting_point(meeting_point *where, bool with_door);

/* Become a rank of the communicator that meets there; returns when all have. */
int join(const meeting_point *where, uint32_t ranks, uint32_t rank, const HcclCommConfig *config, void **out);

#pragma GCC visibility pop

#endif
