/* The clock, and sleeping until somebody of the same mapping wakes us. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "communicator.h"

int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

void futex_wait_shared(_Atomic uint32_t *word, uint32_t seen, int milliseconds) {
    struct timespec timeout = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

void futex_wake_shared(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void ring_bell(member *member) {
    atomic_fetch_add(&member->rung, 1);
    if (atomic_load(&member->asleep)) {
        futex_wake_shared(&member->rung);
    }
}
