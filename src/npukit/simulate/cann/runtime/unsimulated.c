/* What torch_npu links or looks up and this runtime does not do: it says so, with ACL's code for that. */
#include <time.h>

#include "acl/acl_op_compiler.h"
#include "acl/acl_prof.h"
#include "runtime.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define UNSIMULATED(function, ...) \
    aclError function(__VA_ARGS__) { \
        return NOT_SIMULATED(#function); \
    }

/* kernels in CANN's binary form */
UNSIMULATED(aclrtBinaryGetFunction, const aclrtBinHandle binary, const char *name, aclrtFuncHandle *function)
UNSIMULATED(aclrtBinaryLoadFromData, const void *data, size_t size, const aclrtBinaryLoadOptions *options,
            aclrtBinHandle *binary)
UNSIMULATED(aclrtGetFunctionAddr, aclrtFuncHandle function, void **cube, void **vector)
UNSIMULATED(rtDevBinaryRegister, const void *binary, void **handle)
UNSIMULATED(rtFunctionRegister, void *binary, const void *stub, const char *name, const void *function, uint32_t mode)
UNSIMULATED(rtGetC2cCtrlAddr, uint64_t *address, uint32_t *size)
UNSIMULATED(rtKernelLaunch, const void *stub, uint32_t blocks, void *arguments, uint32_t size, void *descriptor,
            void *stream)

/* a hint to caches that are not there */
aclError aclrtCmoAsync(void *memory, size_t size, aclrtCmoType type, aclrtStream stream) {
    return ACL_SUCCESS;
}

/* No simulated memory cell is ever worn out. */
aclError aclrtGetMemUceInfo(int32_t device, aclrtMemUceInfo *cells, size_t room, size_t *count) {
    REQUIRE(count, "aclrtGetMemUceInfo");
    *count = 0;
    return npusim_check_device(device);
}

/* dumps of operators */
UNSIMULATED(aclmdlInitDump, void)
UNSIMULATED(aclmdlSetDump, const char *config)
UNSIMULATED(aclmdlFinalizeDump, void)

/* the profiler; what reports to it when it is off is taken and forgotten */
int32_t MsprofRegisterCallback(uint32_t module, void *handle) {
    return 0;
}

int32_t MsprofReportApi(uint32_t temporary, const void *api) {
    return 0;
}

int32_t MsprofReportCompactInfo(uint32_t temporary, const void *data, uint32_t size) {
    return 0;
}

int32_t MsprofReportAdditionalInfo(uint32_t temporary, const void *data, uint32_t size) {
    return 0;
}

uint64_t MsprofGetHashId(const char *text, size_t size) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    }
    return hash;
}

uint64_t MsprofSysCycleTime(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Callbacks run on the stream (see aclrtLaunchCallback), so a thread that asks for them finds none. */
aclError aclrtProcessReport(int32_t timeout_ms) {
    nanosleep(&(struct timespec){timeout_ms / 1000, timeout_ms % 1000 * 1000000l}, NULL);
    return ACL_ERROR_RT_REPORT_TIMEOUT;
}
