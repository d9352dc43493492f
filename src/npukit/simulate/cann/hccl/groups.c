/* Sub-communicators: their first rank says in the parent's mapping where to meet, and to ranks on other hosts through
 * the parent's links. */
#include <unistd.h>

#include "../npusim.h"
#include "links.h"
#include "meeting.h"

static int open_group(communicator *parent, uint64_t key, const uint32_t *ranks, uint32_t count, meeting_point *where) {
    int result = make_meeting_point(where, parent->links);
    pending_group group = {.key = key, .where = *where};
    for (uint32_t i = 1; !result && i < count; i++) {
        link_tell_group(parent, ranks[i], &group);
    }
    return result ? result : announce_group(parent->shared, &group);
}

static int find_group_meeting(communicator *parent, uint64_t key, uint32_t first, meeting_point *where) {
    int64_t deadline = now_ms() + seconds_from("HCCL_CONNECT_TIMEOUT", CONNECT_TIMEOUT) * 1000LL;
    for (pending_group *slot;; usleep(1000)) {
        if ((slot = find_group(parent->shared, key))) {
            *where = slot->where;
            return HCCL_SUCCESS;
        }
        if (now_ms() >= deadline || !peer_is_there(parent, first)) {
            return npusim_error(HCCL_E_TIMEOUT,
                                "EI0015: The first rank of a sub-communicator (rank %u of %s) did not "
                                "come.",
                                first, parent->name);
        }
    }
}

HcclResult HcclCreateSubCommConfig(void **parent, uint32_t count, uint32_t *ranks, uint64_t id, uint32_t rank,
                                   HcclCommConfig *config, void **comm) {
    if (!parent || !*parent || !comm) {
        return HCCL_E_PTR;
    }
    if (!ranks || count == 0) {
        *comm = NULL; /* this rank is not a member */
        return HCCL_SUCCESS;
    }
    communicator *above = *parent;
    uint64_t key = id;
    for (uint32_t i = 0; i < count; i++) {
        key = (key ^ ranks[i]) * 0x100000001b3u + 1;
    }
    key |= FIRST_KEY;
    meeting_point where;
    int result = ranks[0] >= above->ranks ? HCCL_E_PARA
                 : rank == 0              ? open_group(above, key, ranks, count, &where)
                                          : find_group_meeting(above, key, ranks[0], &where);
    result = result ? result : join(&where, count, rank, config, comm);
    /* Whoever heard of it through a link has a slot of his own. */
    pending_group *slot = rank == 0 || is_linked(above, ranks[0]) ? find_group(above->shared, key) : NULL;
    if (slot) {
        atomic_store(&slot->key, FREE_SLOT);
    }
    return (HcclResult)result;
}
