/* The stream functions of ACL. */
#include <stdlib.h>

#include "stream.h"

#define STREAM(name, handle) \
    npusim_stream *name = npusim_stream_of(handle); \
    if (!name) { \
        return aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL); \
    }

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag) {
    REQUIRE(stream, "aclrtCreateStreamWithConfig");
    npusim_context *context = npusim_current_context();
    if (!context) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    *stream = npusim_stream_create(context->device, priority, flag);
    return *stream ? ACL_SUCCESS : npusim_error(ACL_ERROR_RT_NO_STREAM_RESOURCE, "No more streams can be made.");
}

aclError aclrtCreateStream(aclrtStream *stream) {
    return aclrtCreateStreamWithConfig(stream, 0, 0);
}

aclError aclrtDestroyStream(aclrtStream handle) {
    REQUIRE(handle, "aclrtDestroyStream");
    STREAM(stream, handle);
    npusim_stream_wait(stream, npusim_stream_last(stream), -1);
    npusim_stream_close(stream);
    return ACL_SUCCESS;
}

/* What has not begun is dropped; what runs goes on by itself. */
aclError aclrtDestroyStreamForce(aclrtStream handle) {
    REQUIRE(handle, "aclrtDestroyStreamForce");
    STREAM(stream, handle);
    npusim_stream_close(stream);
    return ACL_SUCCESS;
}

aclError aclrtStreamAbort(aclrtStream handle) {
    STREAM(stream, handle);
    if (!npusim_stream_reached(stream, npusim_stream_last(stream))) {
        npusim_stream_fail(stream, ACL_ERROR_RT_STREAM_ABORT);
    }
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t timeout) {
    STREAM(stream, handle);
    npusim_moment started = npusim_moment_now();
    int error = npusim_check_uncaptured(stream, "aclrtSynchronizeStream");
    error = error ? error : npusim_explain(stream, npusim_stream_wait(stream, npusim_stream_last(stream), timeout));
    npusim_profile_call("aclrtSynchronizeStreamWithTimeout", started);
    return error;
}

aclError aclrtSynchronizeStream(aclrtStream handle) {
    return aclrtSynchronizeStreamWithTimeout(handle, -1);
}

aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus *status) {
    REQUIRE(status, "aclrtStreamQuery");
    STREAM(stream, handle);
    int error = npusim_check_uncaptured(stream, "aclrtStreamQuery");
    if (error) {
        return error;
    }
    uint64_t last = npusim_stream_last(stream);
    *status = npusim_stream_reached(stream, last) ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return npusim_explain(stream, npusim_stream_error_at(stream, last));
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
    npusim_context *context = npusim_current_context();
    if (!context) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    npusim_moment started = npusim_moment_now();
    int error = npusim_check_device_uncaptured(context->device, "aclrtSynchronizeDevice");
    error = error ? error : npusim_wait_for_device(context->device, timeout);
    npusim_profile_call("aclrtSynchronizeDeviceWithTimeout", started);
    return error;
}

aclError aclrtSynchronizeDevice(void) {
    return aclrtSynchronizeDeviceWithTimeout(-1);
}

aclError aclrtStreamGetId(aclrtStream handle, int32_t *id) {
    REQUIRE(id, "aclrtStreamGetId");
    STREAM(stream, handle);
    *id = stream->id;
    return ACL_SUCCESS;
}

aclError aclrtStreamGetPriority(aclrtStream handle, uint32_t *priority) {
    REQUIRE(priority, "aclrtStreamGetPriority");
    STREAM(stream, handle);
    *priority = stream->priority;
    return ACL_SUCCESS;
}

aclError aclrtStreamGetFlags(aclrtStream handle, uint32_t *flags) {
    REQUIRE(flags, "aclrtStreamGetFlags");
    STREAM(stream, handle);
    *flags = stream->flags;
    return ACL_SUCCESS;
}

aclError aclrtSetStreamFailureMode(aclrtStream handle, uint64_t mode) {
    REQUIRE(handle, "aclrtSetStreamFailureMode");
    STREAM(stream, handle);
    stream->failure_mode = mode;
    return ACL_SUCCESS;
}

aclError aclrtSetStreamOverflowSwitch(aclrtStream handle, uint32_t flag) {
    STREAM(stream, handle);
    stream->overflow_switch = flag;
    return ACL_SUCCESS;
}

aclError aclrtGetStreamOverflowSwitch(aclrtStream handle, uint32_t *flag) {
    REQUIRE(flag, "aclrtGetStreamOverflowSwitch");
    STREAM(stream, handle);
    *flag = stream->overflow_switch;
    return ACL_SUCCESS;
}

aclError aclrtSetStreamAttribute(aclrtStream handle, aclrtStreamAttr attribute, aclrtStreamAttrValue *value) {
    REQUIRE(value, "aclrtSetStreamAttribute");
    STREAM(stream, handle);
    switch (attribute) {
    case ACL_STREAM_ATTR_FAILURE_MODE:
        stream->failure_mode = value->failureMode;
        return ACL_SUCCESS;
    case ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK:
        stream->overflow_switch = value->overflowSwitch;
        return ACL_SUCCESS;
    case ACL_STREAM_ATTR_PRIORITY:
        stream->priority = value->streamPriority;
        return ACL_SUCCESS;
    case ACL_STREAM_ATTR_USER_CUSTOM_TAG:
    case ACL_STREAM_ATTR_CACHE_OP_INFO:
        return ACL_SUCCESS; /* only tell the profiler */
    }
    return npusim_error(ACL_ERROR_INVALID_PARAM, "aclrtSetStreamAttribute does not know attribute %d.", (int)attribute);
}

/* Host functions run in the stream's order, on the stream's thread or on that of whoever waits for it. */
typedef struct {
    void (*function)(void *);
    void *argument;
} host_call;

static int make_host_call(void *argument) {
    const host_call *call = argument;
    call->function(call->argument);
    return ACL_SUCCESS;
}

static int make_host_call_once(void *argument) {
    int error = make_host_call(argument);
    free(argument);
    return error;
}

static const npusim_keeping keep_host_call = {.run = make_host_call, .drop = free};

aclError aclrtLaunchHostFunc(aclrtStream handle, aclrtHostFunc function, void *argument) {
    REQUIRE(function, "aclrtLaunchHostFunc");
    STREAM(stream, handle);
    host_call *call = malloc(sizeof *call);
    REQUIRE(call, "aclrtLaunchHostFunc");
    *call = (host_call){function, argument};
    if (npusim_stream_keeps(stream)) {
        return npusim_keep(stream, &keep_host_call, call, "HOST_FUNC");
    }
    npusim_stream_put(stream, make_host_call_once, call, PROMPT | MAY_BLOCK);
    return ACL_SUCCESS;
}

/* The real runtime runs these on a thread the program subscribed and that calls aclrtProcessReport. Here the
 * stream runs them itself, so there is nothing to subscribe to and that thread finds nothing to do. */
aclError aclrtLaunchCallback(aclrtCallback function, void *argument, aclrtCallbackBlockType block, aclrtStream stream) {
    (void)block;
    return aclrtLaunchHostFunc(stream, function, argument);
}

aclError aclrtSubscribeReport(uint64_t thread, aclrtStream handle) {
    (void)thread;
    STREAM(stream, handle);
    return ACL_SUCCESS;
}

aclError aclrtUnSubscribeReport(uint64_t thread, aclrtStream handle) {
    return aclrtSubscribeReport(thread, handle);
}
