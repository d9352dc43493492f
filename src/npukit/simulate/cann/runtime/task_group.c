/* Task groups: tasks of a graph that can be given other arguments after the capture. An update is work on a stream, so
 * that it can be ordered against executions. */
#include <stdlib.h>

#include "capture.h"
#include "stream.h"

int npusim_group_add(npusim_group *group, size_t member) {
    if (group->count == group->room) {
        size_t room = group->room ? 2 * group->room : 4;
        size_t *members = realloc(group->members, room * sizeof *members);
        if (!members) {
            return npusim_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "There is no memory for another task of a group.");
        }
        group->members = members;
        group->room = room;
    }
    group->members[group->count++] = member;
    return ACL_SUCCESS;
}

static int wrong_state(const npusim_stream *stream, const char *what) {
    return npusim_error(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "Stream %d: %s", stream->id, what);
}

int npusim_update_group(npusim_stream *stream, const npusim_keeping *how, void *kept, const char *name) {
    npusim_group *group = atomic_load(&stream->capture.update);
    size_t which = stream->capture.updated++;
    if (which < group->count) {
        return npusim_graph_replace(group->graph, group->members[which], stream, how, kept, name);
    }
    how->drop(kept);
    return wrong_state(stream, "more tasks were given than the group has.");
}

aclError aclmdlRICaptureTaskGrpBegin(aclrtStream handle) {
    npusim_stream *stream = npusim_stream_of(handle);
    npusim_graph *graph = stream ? atomic_load(&stream->capture.graph) : NULL;
    if (!graph) {
        return stream ? npusim_error(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "Stream %d is not being captured.", stream->id)
                      : aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    if (stream->capture.group) {
        return wrong_state(stream, "the task group before was not ended.");
    }
    npusim_group *group = calloc(1, sizeof *group);
    REQUIRE(group, "aclmdlRICaptureTaskGrpBegin");
    npusim_group **all = npusim_graph_groups(graph);
    *group = (npusim_group){.next = *all, .graph = graph};
    *all = stream->capture.group = group;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskGrpEnd(aclrtStream handle, aclrtTaskGrp *group) {
    REQUIRE(group, "aclmdlRICaptureTaskGrpEnd");
    npusim_stream *stream = npusim_stream_of(handle);
    if (!stream) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    if (!stream->capture.group) {
        return wrong_state(stream, "no task group was begun.");
    }
    *group = stream->capture.group;
    stream->capture.group = NULL;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream handle, aclrtTaskGrp group) {
    REQUIRE(group, "aclmdlRICaptureTaskUpdateBegin");
    npusim_stream *stream = npusim_stream_of(handle);
    int error = stream ? npusim_check_uncaptured(stream, "aclmdlRICaptureTaskUpdateBegin")
                       : aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    if (error) {
        return error;
    }
    if (atomic_load(&stream->capture.update)) {
        return wrong_state(stream, "the update before was not ended.");
    }
    stream->capture.updated = 0;
    atomic_store(&stream->capture.update, group);
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream handle) {
    npusim_stream *stream = npusim_stream_of(handle);
    if (!stream) {
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    npusim_group *group = atomic_exchange(&stream->capture.update, NULL);
    if (!group) {
        return wrong_state(stream, "no update was begun.");
    }
    return stream->capture.updated == group->count
               ? ACL_SUCCESS
               : wrong_state(stream, "the update has not as many tasks as the group.");
}
