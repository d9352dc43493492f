#define _GNU_SOURCE
#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../npusim.h"
#include "communicator.h"

enum { BASE_PORT = 60000, PORTS = 32, BACKLOG = 256, RETRY_MS = 100 };
/* A link that carries nothing is tried, and given up like one that does not deliver. */
enum { IDLE_SECONDS = 10, PROBE_SECONDS = 5, PROBES = 4, UNDELIVERED_MS = 30000 };

static uint64_t mixed(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    }
    return hash;
}

uint64_t this_host(void) {
    uint64_t hash = 14695981039346656037u;
    char boot[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        hash = mixed(hash, boot, fread(boot, 1, sizeof boot, file));
        fclose(file);
    }
    static const char *const namespaces[] = {"/proc/self/ns/net", "/proc/self/ns/pid"};
    for (size_t i = 0; i < 2; i++) {
        struct stat found;
        if (stat(namespaces[i], &found) == 0) {
            hash = mixed(hash, &found.st_ino, sizeof found.st_ino);
        }
    }
    return hash;
}

/* ---- which address ---- */

/* "eth,enp": names that begin so; "=eth0": that name; a "^" before it: all others. */
static bool named(const char *interface, const char *wanted) {
    bool others = *wanted == '^';
    wanted += others;
    bool whole = *wanted == '=';
    wanted += whole;
    bool listed = false;
    while (*wanted && !listed) {
        size_t length = strcspn(wanted, ",");
        listed = length && strncmp(interface, wanted, length) == 0 && (!whole || strlen(interface) == length);
        wanted += length + (wanted[length] == ',');
    }
    return listed != others;
}

static int order(const char *interface, unsigned flags) {
    return flags & IFF_LOOPBACK ? 2 : strncmp(interface, "docker", 6) == 0;
}

static bool find_address(uint32_t *address) {
    const char *ip = getenv("HCCL_IF_IP"), *names = getenv("HCCL_SOCKET_IFNAME");
    struct in_addr wanted = {0};
    bool by_ip = ip && *ip;
    struct ifaddrs *all, *best = NULL;
    if ((by_ip && inet_pton(AF_INET, ip, &wanted) != 1) || getifaddrs(&all) != 0) {
        return false;
    }
    for (struct ifaddrs *each = all; each; each = each->ifa_next) {
        if (!each->ifa_addr || each->ifa_addr->sa_family != AF_INET || !(each->ifa_flags & IFF_UP)) {
            continue;
        }
        uint32_t found = ((struct sockaddr_in *)each->ifa_addr)->sin_addr.s_addr;
        bool fits = by_ip ? found == wanted.s_addr : !names || !*names || named(each->ifa_name, names);
        int difference = best ? order(each->ifa_name, each->ifa_flags) - order(best->ifa_name, best->ifa_flags) : -1;
        if (fits && (difference < 0 || (!difference && strcmp(each->ifa_name, best->ifa_name) < 0))) {
            best = each;
            *address = found;
        }
    }
    freeifaddrs(all);
    return best;
}

int open_door(endpoint *where) {
    *where = (endpoint){0};
    const char *ip = getenv("HCCL_IF_IP"), *names = getenv("HCCL_SOCKET_IFNAME"), *base = getenv("HCCL_IF_BASE_PORT");
    struct sockaddr_in at = {.sin_family = AF_INET};
    if (!find_address(&at.sin_addr.s_addr)) {
        return npusim_error(-1,
                            "EI0001: This machine has no network interface for HCCL (HCCL_IF_IP=%s, "
                            "HCCL_SOCKET_IFNAME=%s): name one that `ip addr` lists.",
                            ip ? ip : "", names ? names : "");
    }
    int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    int first = base && *base ? atoi(base) : BASE_PORT;
    for (int port = first; door >= 0 && port < first + PORTS; port++) {
        at.sin_port = htons((uint16_t)port);
        if (bind(door, (struct sockaddr *)&at, sizeof at) == 0 && listen(door, BACKLOG) == 0) {
            *where = (endpoint){at.sin_addr.s_addr, at.sin_port, 0};
            return door;
        }
    }
    if (door >= 0) {
        close(door);
    }
    return npusim_error(-1, "EI0001: HCCL's ports %d to %d are all taken at %s: set HCCL_IF_BASE_PORT.", first,
                        first + PORTS - 1, inet_ntoa(at.sin_addr));
}

/* ---- sockets with a time limit ---- */

static bool wait_for(int socket, short what, int64_t deadline) {
    int64_t left = deadline - now_ms();
    struct pollfd one = {.fd = socket, .events = what};
    int ready = left > 0 ? poll(&one, 1, (int)(left < INT32_MAX ? left : INT32_MAX)) : 0;
    errno = ready == 0 ? ETIMEDOUT : errno;
    return ready > 0;
}

static void prepare(int socket) {
    const struct {
        int level, option, value;
    } settings[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, IDLE_SECONDS},
        {IPPROTO_TCP, TCP_KEEPINTVL, PROBE_SECONDS},
        {IPPROTO_TCP, TCP_KEEPCNT, PROBES},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, UNDELIVERED_MS},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        setsockopt(socket, settings[i].level, settings[i].option, &settings[i].value, sizeof settings[i].value);
    }
}

static int try_to_connect(const endpoint *where, int64_t deadline) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = where->port, .sin_addr = {where->address}};
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = one < 0 || connect(one, (struct sockaddr *)&to, sizeof to) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        socklen_t size = sizeof error;
        error = wait_for(one, POLLOUT, deadline) ? 0 : ETIMEDOUT;
        if (!error) {
            getsockopt(one, SOL_SOCKET, SO_ERROR, &error, &size);
        }
    }
    if (error) {
        close(one);
        errno = error;
        return -1;
    }
    return one;
}

int connect_to(const endpoint *where, int64_t deadline) {
    for (;;) {
        int one = try_to_connect(where, deadline);
        if (one >= 0) {
            prepare(one);
            return one;
        }
        int error = errno;
        /* Whoever names a door has opened it before: refused means that nobody is there any more. */
        if (error == ECONNREFUSED || now_ms() + RETRY_MS >= deadline) {
            errno = error;
            return -1;
        }
        usleep(RETRY_MS * 1000);
    }
}

int accept_at(int door, int64_t deadline) {
    int one = wait_for(door, POLLIN, deadline) ? accept4(door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
    if (one >= 0) {
        prepare(one);
    }
    return one;
}

bool send_whole(int socket, const void *data, size_t bytes, int64_t deadline) {
    for (size_t done = 0; done < bytes;) {
        ssize_t sent = send(socket, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
        if (sent > 0) {
            done += (size_t)sent;
        } else if ((errno != EAGAIN && errno != EINTR) || !wait_for(socket, POLLOUT, deadline)) {
            return false;
        }
    }
    return true;
}

bool receive_whole(int socket, void *data, size_t bytes, int64_t deadline) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = recv(socket, (char *)data + done, bytes - done, 0);
        if (got > 0) {
            done += (size_t)got;
        } else if (got == 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(socket, POLLIN, deadline)) {
            return false;
        }
    }
    return true;
}

const char *endpoint_text(const endpoint *where) {
    static _Thread_local char text[32];
    struct in_addr address = {where->address};
    snprintf(text, sizeof text, "%s:%u", inet_ntoa(address), ntohs(where->port));
    return text;
}
