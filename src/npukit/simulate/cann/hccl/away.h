/* Ranks on other hosts than the root: how they join a communicator. The root's host shares one mapping; a rank that is
 * away has one of its own, and links to everybody. */
#ifndef NPUSIM_AWAY_H
#define NPUSIM_AWAY_H

#include "communicator.h"

#pragma GCC visibility push(hidden)

/* Whether a job may have ranks on other hosts: torchrun and its like tell. */
bool may_have_ranks_away(void);

/* The root, while it waits: let in who is at the door; and then, tell them who there is, or nothing where `result` is
 * an error, and close the door. */
void admit_visitors(communicator *comm);
void dismiss_visitors(communicator *comm, int result, int64_t deadline);

/* A rank on the root's host, once all have joined: links to those who are away. */
int link_to_those_away(communicator *comm, int64_t deadline);

/* A rank that is away: from the door of the root to links with everybody. */
int join_from_away(communicator *comm, const meeting_point *where, int64_t deadline);

#pragma GCC visibility pop

#endif
