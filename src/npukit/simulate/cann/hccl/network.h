/* TCP between hosts: which address a rank is reached at, and sockets with a time limit. */
#ifndef NPUSIM_NETWORK_H
#define NPUSIM_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Where somebody listens; all zero where nobody does. In the network's byte order. */
typedef struct {
    uint32_t address;
    uint16_t port, unused;
} endpoint;

/* Tells hosts apart: machines, and on one machine what sees neither the same processes nor the same network. */
uint64_t this_host(void);

/* Listen at the address that HCCL_IF_IP or HCCL_SOCKET_IFNAME names, else at the first one that is not of loopback or
 * docker, on one of the 32 ports from HCCL_IF_BASE_PORT on. Returns a socket, or -1 with a message left. */
int open_door(endpoint *where);

/* -1, with errno set, where it did not succeed until `deadline`, in milliseconds of now_ms. Sockets do not block. */
int connect_to(const endpoint *where, int64_t deadline);
int accept_at(int door, int64_t deadline);

bool send_whole(int socket, const void *data, size_t bytes, int64_t deadline);
bool receive_whole(int socket, void *data, size_t bytes, int64_t deadline);

/* "10.0.0.1:60000", in memory of the calling thread. */
const char *endpoint_text(const endpoint *where);

#pragma GCC visibility pop

#endif
