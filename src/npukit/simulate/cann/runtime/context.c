/* Contexts: which card a thread works on, and its default stream. */
#include <stdlib.h>

#include "runtime.h"

static npusim_context primary[MAX_DEVICES];
static atomic_bool primary_active[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int default_device = -1;
static _Thread_local npusim_context *current;

void npusim_set_default_device(int device) {
    atomic_store(&default_device, device);
}

static npusim_context *activate(int device) {
    npusim_context *context = &primary[device];
    if (!atomic_load(&primary_active[device])) {
        pthread_mutex_lock(&lock);
        context->device = device;
        if (!context->default_stream) {
            context->default_stream = npusim_stream_create(device, 0, 0);
        }
        atomic_store(&primary_active[device], true);
        pthread_mutex_unlock(&lock);
    }
    return context;
}

static aclError no_device_was_set(void) {
    return npusim_error(ACL_ERROR_RT_CONTEXT_NULL, "No device was set in this thread; call aclrtSetDevice first.");
}

npusim_context *npusim_current_context(void) {
    if (__builtin_expect(!current, 0)) {
        int device = atomic_load(&default_device);
        if (device < 0) {
            no_device_was_set();
            return NULL;
        }
        current = activate(device);
    }
    return current;
}

void npusim_forget_device(int device) {
    atomic_store(&primary_active[device], false);
    if (current && current->device == device) {
        current = NULL;
    }
}

bool npusim_leave_context(npusim_context *context) {
    if (context >= primary && context < primary + MAX_DEVICES) {
        return false;
    }
    current = current == context ? NULL : current;
    return true;
}

aclError aclrtSetDevice(int32_t device) {
    int error = npusim_check_device(device);
    if (!error && !(current && current->device == device)) {
        current = activate(device);
    }
    return error;
}

aclError aclrtGetDevice(int32_t *device) {
    REQUIRE(device, "aclrtGetDevice");
    int chosen = current ? current->device : atomic_load(&default_device); /* to ask does not make a context */
    if (chosen < 0) {
        return no_device_was_set();
    }
    *device = chosen;
    return ACL_SUCCESS;
}

aclError aclrtCreateContext(aclrtContext *handle, int32_t device) {
    REQUIRE(handle, "aclrtCreateContext");
    int error = npusim_check_device(device);
    if (error) {
        return error;
    }
    npusim_context *context = calloc(1, sizeof *context);
    REQUIRE(context, "aclrtCreateContext");
    context->device = device;
    context->default_stream = npusim_stream_create(device, 0, 0);
    *handle = current = context;
    return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
    REQUIRE(context, "aclrtSetCurrentContext");
    current = context;
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *context) {
    REQUIRE(context, "aclrtGetCurrentContext");
    *context = npusim_current_context();
    return *context ? ACL_SUCCESS : ACL_ERROR_RT_CONTEXT_NULL;
}

aclError aclrtCtxGetCurrentDefaultStream(aclrtStream *stream) {
    REQUIRE(stream, "aclrtCtxGetCurrentDefaultStream");
    npusim_context *context = npusim_current_context();
    *stream = context ? context->default_stream : NULL;
    return context ? ACL_SUCCESS : ACL_ERROR_RT_CONTEXT_NULL;
}

aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
    int error = npusim_check_device(device);
    if (error) {
        return error;
    }
    if (flags) {
        *flags = 0;
    }
    if (active) {
        *active = atomic_load(&primary_active[device]);
    }
    return ACL_SUCCESS;
}
