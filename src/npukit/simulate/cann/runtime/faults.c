/* Faults on request, from NPUKIT_SIM_FAULTS: items separated by semicolons, each optionally followed by ",rank=R"
 * (then only the process whose RANK is R has it):
 *   oom@N              the N-th device allocation, and retries of it, fail with 207001
 *   acl=CODE@N         the N-th kernel fails with that ACL error code
 *   acl=CODE@NAME:N    the N-th kernel of that name fails (aten::matmul)
 *   timeout@N          the N-th collective times out
 *   kill@N             the process kills itself (SIGKILL) at the N-th kernel
 *   bitflip@NAME:N     one bit of the output of the N-th kernel of that name is flipped
 *   slow-stream=MS     asynchronous work starts MS milliseconds late unless somebody synchronises on it
 *   slow-kernel=MS     every kernel takes MS milliseconds longer, as on a card that throttles
 *   slow-link=MBS      every collective takes as long as its bytes take at MBS megabytes a second, at least
 *   lost=CARD          the card has dropped out: nothing can use it, and npu-smi calls it Critical
 *   ecc=CARD           the card's memory has had ECC errors: npu-smi calls it Alarm (it is npu-smi's business alone)
 * N counts from 1 over the life of the process.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime.h"

enum { MAX_FAULTS = 32 };

typedef struct {
    npusim_event event;
    npusim_fault fault;
    char name[96];   /* empty: any kernel */
    char asked[160]; /* as it was written */
    unsigned long due;
    atomic_ulong seen;
} planned_fault;

static planned_fault faults[MAX_FAULTS];
static int fault_count;
static atomic_bool any_event; /* a process that used no device has nothing to tell */
int npusim_slow_stream_ms;
static int slow_kernel_ms, slow_link;
static bool lost[MAX_DEVICES];

static void malformed(const char *item) {
    fprintf(stderr,
            "npukit: NPUKIT_SIM_FAULTS: \"%s\" is not one of oom@N, acl=CODE@N, acl=CODE@NAME:N, timeout@N, "
            "kill@N, bitflip@NAME:N, slow-stream=MS, slow-kernel=MS, slow-link=MBS, lost=CARD, ecc=CARD, each with an "
            "optional ,rank=R.\n",
            item);
    exit(2);
}

static unsigned long positive(const char *text, const char *item) {
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || value == 0) {
        malformed(item);
    }
    return value;
}

/* "N" or "NAME:N"; a name may hold colons itself (aten::matmul). */
static void read_place(planned_fault *fault, const char *place, bool name_allowed, const char *item) {
    const char *colon = strrchr(place, ':');
    if (colon) {
        if (!name_allowed || colon == place || (size_t)(colon - place) >= sizeof fault->name) {
            malformed(item);
        }
        memcpy(fault->name, place, (size_t)(colon - place));
        place = colon + 1;
    }
    fault->due = positive(place, item);
}

static bool for_this_rank(char *item, const char *original) {
    char *rank = strstr(item, ",rank=");
    if (!rank) {
        return true;
    }
    *rank = 0;
    char *end;
    long wanted = strtol(rank + 6, &end, 10);
    if (end == rank + 6 || *end) {
        malformed(original);
    }
    const char *mine = getenv("RANK");
    return mine && atol(mine) == wanted;
}

static bool read_kind(planned_fault *fault, const char *kind, const char *item) {
    static const struct {
        const char *word;
        npusim_fault_kind kind;
        npusim_event event;
    } kinds[] = {{"oom", NPUSIM_OUT_OF_MEMORY, NPUSIM_ON_ALLOCATION},
                 {"timeout", NPUSIM_TIMEOUT, NPUSIM_ON_COLLECTIVE},
                 {"kill", NPUSIM_KILL, NPUSIM_ON_KERNEL},
                 {"bitflip", NPUSIM_BITFLIP, NPUSIM_ON_KERNEL}};
    if (strncmp(kind, "acl=", 4) == 0) {
        fault->event = NPUSIM_ON_KERNEL;
        fault->fault = (npusim_fault){NPUSIM_ACL_ERROR, (int)positive(kind + 4, item)};
        return true;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kind, kinds[i].word) == 0) {
            fault->event = kinds[i].event;
            fault->fault.kind = kinds[i].kind;
            return true;
        }
    }
    return false;
}

static bool read_slowness(const char *item, bool mine, const char *original) {
    const struct {
        const char *word;
        int *value;
    } kinds[] = {
        {"slow-stream=", &npusim_slow_stream_ms}, {"slow-kernel=", &slow_kernel_ms}, {"slow-link=", &slow_link}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i].word);
        if (strncmp(item, kinds[i].word, length) == 0) {
            int value = (int)positive(item + length, original);
            *kinds[i].value = mine ? value : *kinds[i].value;
            return true;
        }
    }
    return false;
}

/* What befalls a card, whoever uses it. */
static bool read_card(const char *item, const char *original) {
    bool is_lost = strncmp(item, "lost=", 5) == 0;
    if (!is_lost && strncmp(item, "ecc=", 4) != 0) {
        return false;
    }
    const char *number = strchr(item, '=') + 1;
    unsigned long card = strcmp(number, "0") == 0 ? 0 : positive(number, original);
    if (card >= MAX_DEVICES) {
        malformed(original);
    }
    lost[card] = lost[card] || is_lost;
    return true;
}

static void read_fault(const char *original) {
    char item[160];
    if (strlen(original) >= sizeof item) {
        malformed(original);
    }
    strcpy(item, original);
    bool mine = for_this_rank(item, original);
    if (read_slowness(item, mine, original) || read_card(item, original)) {
        return;
    }
    planned_fault *fault = &faults[fault_count];
    char *at = strchr(item, '@');
    if (!at || fault_count == MAX_FAULTS - 1) {
        malformed(original);
    }
    *at = 0;
    memset(fault, 0, sizeof *fault);
    strcpy(fault->asked, original);
    if (!read_kind(fault, item, original)) {
        malformed(original);
    }
    bool flip = fault->fault.kind == NPUSIM_BITFLIP;
    read_place(fault, at + 1, flip || fault->fault.kind == NPUSIM_ACL_ERROR, original);
    if (flip && !fault->name[0]) {
        malformed(original);
    }
    fault_count += mine;
}

__attribute__((constructor)) void npusim_read_faults(void) {
    const char *list = getenv("NPUKIT_SIM_FAULTS");
    fault_count = npusim_slow_stream_ms = slow_kernel_ms = slow_link = 0;
    memset(lost, 0, sizeof lost);
    if (!list || !*list) {
        return;
    }
    char *copy = strdup(list), *rest = copy;
    for (char *item; (item = strsep(&rest, ";"));) {
        item += strspn(item, " ");
        if (*item) {
            read_fault(item);
        }
    }
    free(copy);
}

bool npusim_card_is_lost(int physical_device) {
    return lost[physical_device];
}

uint64_t npusim_slow_link_ns(uint64_t bytes) {
    return slow_link ? bytes * 1000 / (uint64_t)slow_link : 0;
}

npusim_fault npusim_next_fault(npusim_event event, const char *name) {
    npusim_fault due = {NPUSIM_NO_FAULT, 0};
    if (__builtin_expect(slow_kernel_ms && event == NPUSIM_ON_KERNEL, 0)) {
        nanosleep(&(struct timespec){slow_kernel_ms / 1000, slow_kernel_ms % 1000 * 1000000l}, NULL);
    }
    if (__builtin_expect(fault_count == 0, 1)) {
        return due;
    }
    atomic_store_explicit(&any_event, true, memory_order_relaxed);
    for (int i = 0; i < fault_count; i++) {
        planned_fault *fault = &faults[i];
        if (fault->event != event || (fault->name[0] && (!name || strcmp(name, fault->name) != 0))) {
            continue;
        }
        if (atomic_fetch_add(&fault->seen, 1) + 1 == fault->due && due.kind == NPUSIM_NO_FAULT) {
            due = fault->fault;
        }
    }
    if (due.kind == NPUSIM_KILL) {
        raise(SIGKILL);
    }
    if (due.kind == NPUSIM_ACL_ERROR) {
        npusim_error(due.code, "EZ9999: The kernel %s failed, as NPUKIT_SIM_FAULTS asks.", name ? name : "");
    }
    return due;
}

/* A fault that was asked for and never came would make a test pass that has tested nothing. */
__attribute__((destructor)) static void tell_unfired(void) {
    static const char *const happened[] = {
        [NPUSIM_ON_ALLOCATION] = "allocations", [NPUSIM_ON_KERNEL] = "kernels", [NPUSIM_ON_COLLECTIVE] = "collectives"};
    for (int i = 0; i < fault_count && any_event; i++) {
        unsigned long seen = atomic_load(&faults[i].seen);
        if (seen < faults[i].due) {
            fprintf(stderr, "npukit: the fault %s did not happen: %lu of %lu %s%s%s.\n", faults[i].asked, seen,
                    faults[i].due, happened[faults[i].event], faults[i].name[0] ? " of " : "", faults[i].name);
        }
    }
}
