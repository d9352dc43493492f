/* The places where events that other processes see are counted: records asked for and records passed.
 * One file in memory (memfd) holds all of a process; a place is known by the process, the file and its index.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

enum { SLOTS = 1 << 15 };

typedef struct {
    int fd; /* -1 where the file is another process's */
    unsigned long id;
    npusim_slot *slots;
} slot_file;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slot_file own = {-1, 0, NULL};
static bool taken[SLOTS];
static slot_file opened[MAX_DEVICES]; /* as many processes as there are cards share events */

static npusim_slot *map_slots(int fd) {
    void *slots = mmap(NULL, SLOTS * sizeof(npusim_slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return slots == MAP_FAILED ? NULL : slots;
}

npusim_slot *npusim_take_slot(void) {
    npusim_slot *slot = NULL;
    pthread_mutex_lock(&lock);
    if (!own.slots && (own.fd = npusim_shared_file(SLOTS * sizeof(npusim_slot))) >= 0) {
        own.slots = map_slots(own.fd);
        own.id = npusim_file_id(own.fd);
    }
    for (int i = 0; own.slots && !slot && i < SLOTS; i++) {
        if (!taken[i]) {
            taken[i] = true;
            slot = &own.slots[i];
        }
    }
    pthread_mutex_unlock(&lock);
    return slot;
}

/* The counters go on from where they are, so that whoever still looks at them sees the past, not a new event. */
void npusim_give_slot(npusim_slot *slot) {
    pthread_mutex_lock(&lock);
    if (own.slots && slot >= own.slots && slot < own.slots + SLOTS) {
        atomic_store(&slot->passed, atomic_load(&slot->asked));
        taken[slot - own.slots] = false;
    }
    pthread_mutex_unlock(&lock);
}

bool npusim_slot_passed(const npusim_slot *slot, uint64_t number) {
    return atomic_load(&slot->passed) >= number;
}

/* A process that died leaves nothing to wait for. */
bool npusim_slot_wait(const npusim_slot *slot, uint64_t number, int timeout_ms) {
    for (int64_t tenths = 0; !npusim_slot_passed(slot, number); tenths++) {
        if ((timeout_ms >= 0 && tenths >= 10l * timeout_ms) || kill(atomic_load(&slot->recorder), 0) != 0) {
            return npusim_slot_passed(slot, number);
        }
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return true;
}

static npusim_slot *slots_of(int pid, int fd, unsigned long id) {
    if (id == own.id) {
        return own.slots;
    }
    slot_file *file = opened;
    while (file < opened + MAX_DEVICES - 1 && file->slots && file->id != id) {
        file++;
    }
    if (file->id != id) {
        int shared = npusim_open_shared(pid, fd);
        npusim_slot *slots = shared >= 0 && npusim_file_id(shared) == id ? map_slots(shared) : NULL;
        if (shared >= 0) {
            close(shared);
        }
        *file = (slot_file){-1, slots ? id : 0, slots};
    }
    return file->slots;
}

bool npusim_place_of_slot(const npusim_slot *slot, npusim_slot_place *place) {
    bool is_own = slot && slot >= own.slots && slot < own.slots + SLOTS;
    *place = (npusim_slot_place){getpid(), own.fd, own.id, is_own ? slot - own.slots : 0};
    return is_own;
}

npusim_slot *npusim_slot_at(const npusim_slot_place *place) {
    if (place->index < 0 || place->index >= SLOTS) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    npusim_slot *slots = slots_of(place->pid, place->fd, place->id);
    pthread_mutex_unlock(&lock);
    return slots ? slots + place->index : NULL;
}
