#include "communicator.h"

pending_group *find_group(shared_state *shared, uint64_t key) {
    for (int i = 0; i < PENDING_GROUPS; i++) {
        if (atomic_load(&shared->pending[i].key) == key) {
            return &shared->pending[i];
        }
    }
    return NULL;
}

int announce_group(shared_state *shared, const pending_group *group) {
    for (int i = 0; i < PENDING_GROUPS; i++) {
        uint64_t expected = FREE_SLOT;
        if (atomic_compare_exchange_strong(&shared->pending[i].key, &expected, BUSY_SLOT)) {
            shared->pending[i].where = group->where;
            atomic_store(&shared->pending[i].key, group->key);
            return HCCL_SUCCESS;
        }
    }
    return HCCL_E_UNAVAIL;
}
