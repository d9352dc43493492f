/* Error messages in CANN's manner, and the last error of a thread. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

static _Thread_local char message[MESSAGE_SIZE]; /* not yet asked for; empty: none */
static _Thread_local aclError last_error;

/* The code a message opens with, as CANN's error manager would choose it. */
static const char *family(int code) {
    switch (code) {
    case ACL_ERROR_RT_MEMORY_ALLOCATION:
        return "EL0004";
    case ACL_ERROR_RT_FEATURE_NOT_SUPPORT:
        return "EE1006";
    case ACL_ERROR_RT_STREAM_SYNC_TIMEOUT:
    case ACL_ERROR_RT_EVENT_SYNC_TIMEOUT:
        return "EE1002";
    case ACL_ERROR_RT_INVALID_DEVICEID:
    case ACL_ERROR_RT_CONTEXT_NULL:
    case ACL_ERROR_RT_PARAM_INVALID:
        return "EE1001";
    default:
        return code == ACL_ERROR_INVALID_PARAM ? "EE1001" : "EE9999";
    }
}

int npusim_error(int code, const char *format, ...) {
    char text[MESSAGE_SIZE - 256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%d-%H:%M:%S", &local);
    bool named = text[0] == 'E' && strchr(text, ':') == text + 6; /* the caller chose the family: "EI0002: ..." */
    snprintf(message, sizeof message, "%.6s: [PID: %d] %s.%03ld.%03ld %s (simulated NPU, error code %d)\n",
             named ? text : family(code), (int)getpid(), stamp, now.tv_nsec / 1000000, now.tv_nsec / 1000 % 1000,
             named ? text + 8 : text, code);
    last_error = code;
    return code;
}

void npusim_take_message(char taken[MESSAGE_SIZE]) {
    memcpy(taken, message, MESSAGE_SIZE);
    message[0] = 0;
}

int npusim_repeat_error(int code, const char earlier[MESSAGE_SIZE]) {
    memcpy(message, earlier, MESSAGE_SIZE);
    last_error = code;
    return code;
}

const char *aclGetRecentErrMsg(void) {
    static _Thread_local char shown[MESSAGE_SIZE];
    npusim_take_message(shown);
    return shown[0] ? shown : NULL;
}

aclError aclrtPeekAtLastError(aclrtLastErrLevel level) {
    (void)level;
    return last_error;
}

aclError aclrtGetLastError(aclrtLastErrLevel level) {
    aclError error = aclrtPeekAtLastError(level);
    last_error = ACL_SUCCESS;
    return error;
}
