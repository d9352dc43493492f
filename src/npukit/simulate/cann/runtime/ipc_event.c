/* Handles by which another process opens an event. */
#include <stdio.h>
#include <string.h>

#include "runtime.h"

aclError aclrtIpcGetEventHandle(aclrtEvent event, aclrtIpcEventHandle *handle) {
    REQUIRE(event && handle, "aclrtIpcGetEventHandle");
    npusim_slot_place place;
    if (!npusim_place_of_slot(npusim_event_slot(event), &place)) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID,
                            "The event was not made for other processes, or by another one.");
    }
    memset(handle, 0, sizeof *handle);
    snprintf(handle->reserved, sizeof handle->reserved, "%d:%d:%lu:%ld", place.pid, place.fd, place.id, place.index);
    return ACL_SUCCESS;
}

aclError aclrtIpcOpenEventHandle(aclrtIpcEventHandle handle, aclrtEvent *event) {
    REQUIRE(event, "aclrtIpcOpenEventHandle");
    npusim_slot_place place;
    handle.reserved[sizeof handle.reserved - 1] = 0;
    if (sscanf(handle.reserved, "%d:%d:%lu:%ld", &place.pid, &place.fd, &place.id, &place.index) != 4) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID, "This is no handle of an event.");
    }
    npusim_slot *slot = npusim_slot_at(&place);
    if (!slot) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID, "Events of process %d cannot be reached; has it ended?",
                            place.pid);
    }
    return npusim_event_at_slot(slot, event);
}
