/* Devices: how many there are, and waiting for, resetting and aborting all that one does. */
#include <stdlib.h>
#include <unistd.h>

#include "stream.h"

int npusim_wait_for_device(int device, int timeout_ms) {
    int64_t deadline = timeout_ms < 0 ? 0 : npusim_now_ms() + timeout_ms;
    int first_error = ACL_SUCCESS;
    for (npusim_stream *stream = NULL; (stream = npusim_next_stream(stream, device));) {
        int64_t left = timeout_ms < 0 ? -1 : deadline - npusim_now_ms();
        left = timeout_ms >= 0 && left < 0 ? 0 : left;
        int error = npusim_stream_wait(stream, npusim_stream_last(stream), (int)left);
        first_error = first_error ? first_error : npusim_explain(stream, error);
    }
    return first_error;
}

void npusim_abort_device(int device, int code) {
    for (npusim_stream *stream = NULL; (stream = npusim_next_stream(stream, device));) {
        uint64_t last = npusim_stream_last(stream);
        if (!npusim_stream_reached(stream, last)) {
            npusim_stream_fail(stream, code);
            npusim_stream_wait(stream, last, 1000);
        }
        pthread_mutex_lock(&stream->lock);
        atomic_store(&stream->failed_at, UINT64_MAX);
        atomic_store(&stream->error, 0);
        pthread_mutex_unlock(&stream->lock);
    }
}

aclError aclrtGetDeviceCount(uint32_t *count) {
    REQUIRE(count, "aclrtGetDeviceCount");
    *count = (uint32_t)npusim_device_count();
    return *count ? ACL_SUCCESS
                  : npusim_error(ACL_ERROR_RT_NO_DEVICE,
                                 "This process sees no device: look at ASCEND_RT_VISIBLE_DEVICES.");
}

/* Ends the device's work and clears its errors; memory stays with its owners. Short work is finished, but what waits
 * for another process is not waited for: programs reset their devices when they exit. */
aclError aclrtResetDevice(int32_t device) {
    int error = npusim_check_device(device);
    if (error) {
        return error;
    }
    npusim_wait_for_device(device, 1000);
    npusim_abort_device(device, ACL_ERROR_RT_DEVICE_TASK_ABORT);
    npusim_forget_device(device);
    return ACL_SUCCESS;
}

aclError aclrtResetDeviceForce(int32_t device) {
    return aclrtResetDevice(device);
}

aclError aclrtDeviceTaskAbort(int32_t device, uint32_t timeout) {
    (void)timeout;
    int error = npusim_check_device(device);
    if (!error) {
        npusim_abort_device(device, ACL_ERROR_RT_DEVICE_TASK_ABORT);
    }
    return error;
}

aclError aclrtDestroyContext(aclrtContext handle) {
    REQUIRE(handle, "aclrtDestroyContext");
    npusim_context *context = handle;
    if (!npusim_leave_context(context)) {
        return npusim_error(ACL_ERROR_INVALID_PARAM,
                            "The context that aclrtSetDevice made ends with aclrtResetDevice.");
    }
    npusim_stream *stream = context->default_stream;
    npusim_stream_wait(stream, npusim_stream_last(stream), -1);
    npusim_stream_close(stream);
    free(context);
    return ACL_SUCCESS;
}

aclError aclrtGetRunMode(aclrtRunMode *mode) {
    REQUIRE(mode, "aclrtGetRunMode");
    *mode = ACL_HOST;
    return ACL_SUCCESS;
}

aclError aclrtDeviceCanAccessPeer(int32_t *possible, int32_t device, int32_t peer) {
    REQUIRE(possible, "aclrtDeviceCanAccessPeer");
    int error = npusim_check_device(device);
    error = error ? error : npusim_check_device(peer);
    *possible = !error && device != peer;
    return error;
}

aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
    (void)flags;
    return npusim_check_device(peer);
}

aclError aclrtDeviceDisablePeerAccess(int32_t peer) {
    return npusim_check_device(peer);
}

aclError aclrtDeviceGetBareTgid(int32_t *pid) {
    REQUIRE(pid, "aclrtDeviceGetBareTgid");
    *pid = getpid();
    return ACL_SUCCESS;
}
