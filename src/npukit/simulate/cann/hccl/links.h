/* Rings between hosts. A rank and its peer on another host have a ring each, of the same name, in memory of their own;
 * a thread in each process carries what is put into one to the other, over one TCP connection for each pair of ranks.
 * For the engine (transport.c) there is no difference. */
#ifndef NPUSIM_LINKS_H
#define NPUSIM_LINKS_H

#include "communicator.h"

#pragma GCC visibility push(hidden)

/* Carry bytes from now on; sockets[peer] is -1 for a peer on this host. Takes the sockets over. False: no memory. */
bool links_begin(communicator *comm, const int *sockets);

/* Deliver what is still in the rings, for a while, then close. */
void links_end(communicator *comm);

bool is_linked(const communicator *comm, uint32_t peer);
bool link_is_there(const communicator *comm, uint32_t peer);

/* There is something in a ring to a linked peer, or room in one from it. */
void links_wake(const communicator *comm);

/* Wait, for a while, until linked peers have been sent everything. */
void links_flush(const communicator *comm);

/* Tell linked peers of a disagreement; tell one where a sub-communicator meets. */
void links_tell_disagreement(const communicator *comm);
void link_tell_group(const communicator *comm, uint32_t peer, const pending_group *group);

#pragma GCC visibility pop

#endif
