/* aclInit and its end, the versions, and settings of the whole process. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialised, operators_loaded;

/* Beside a CUDA build of torch something has to be done before torch_npu initialises: now, as its library is loaded
 * after this one, which it needs. */
__attribute__((constructor)) static void load_beside_cuda(void) {
    const char *path = getenv("NPUKIT_SIM_BESIDE_CUDA");
    if (path && *path && !dlopen(path, RTLD_NOW)) {
        fprintf(stderr, "npukit: torch_npu may fail beside a CUDA build of torch: %s\n", dlerror());
    }
}

static int load_operators(void) {
    const char *path = getenv("NPUKIT_SIM_OPERATORS");
    if (!path || !*path || operators_loaded) {
        return ACL_SUCCESS;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    int (*install)(void) = library ? (int (*)(void))dlsym(library, "npusim_install") : NULL;
    if (!install) {
        const char *reason = dlerror();
        fprintf(stderr, "npukit: the simulated operators cannot be loaded: %s\n", reason);
        return npusim_error(ACL_ERROR_RT_INTERNAL_ERROR, "The simulated operators cannot be loaded: %s.", reason);
    }
    int error = install();
    if (error) {
        fprintf(stderr, "npukit: the simulated operators in %s refused to install (%d).\n", path, error);
        return npusim_error(ACL_ERROR_RT_INTERNAL_ERROR, "The simulated operators refused to install (%d).", error);
    }
    operators_loaded = true;
    return ACL_SUCCESS;
}

/* {"defaultDevice": {"default_device": "0"}}: threads that set no device work on that one. torch_npu from 2.6 on passes
 * a file that says so for device 0, but looks for it beside torch; kept elsewhere, as it is for simulated runs, it
 * passes none. */
static int default_device_in(const char *config) {
    if (!config) {
        const char *lazy = getenv("NPUKIT_SIM_LAZY_DEVICE");
        return lazy && *lazy ? 0 : -1;
    }
    FILE *file = fopen(config, "r");
    if (!file) {
        return -1;
    }
    char text[4096];
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *value = strstr(text, "\"default_device\"");
    value = value ? strpbrk(value, "0123456789") : NULL;
    return value ? atoi(value) : -1;
}

aclError aclInit(const char *config) {
    pthread_mutex_lock(&lock);
    int error = initialised ? ACL_ERROR_REPEAT_INITIALIZE : load_operators();
    if (!error) {
        initialised = true;
        npusim_set_default_device(npusim_device_count() ? default_device_in(config) : -1);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

aclError aclFinalize(void) {
    pthread_mutex_lock(&lock);
    int error = initialised ? ACL_SUCCESS : ACL_ERROR_UNINITIALIZE;
    initialised = false;
    pthread_mutex_unlock(&lock);
    return error;
}

static const char *version_of(bool driver) {
    return driver ? "25.5.0" : npusim_the_machine()->cann_version;
}

aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion *version) {
    REQUIRE(version && name <= ACL_PKG_NAME_DRIVER, "aclsysGetCANNVersion");
    memset(version, 0, sizeof *version);
    const char *text = version_of(name == ACL_PKG_NAME_DRIVER);
    snprintf(version->version, sizeof version->version, "%s", text);
    sscanf(text, "%63[^.].%63[^.].%63[^.].%63s", version->majorVersion, version->minorVersion, version->releaseVersion,
           version->patchVersion);
    return ACL_SUCCESS;
}

aclError aclsysGetVersionStr(char *package, char *version) {
    REQUIRE(package && version, "aclsysGetVersionStr");
    strcpy(version, version_of(strcmp(package, "driver") == 0));
    return ACL_SUCCESS;
}

aclError aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch) {
    REQUIRE(major && minor && patch, "aclrtGetVersion");
    *major = ACL_MAJOR_VERSION;
    *minor = ACL_MINOR_VERSION;
    *patch = ACL_PATCH_VERSION;
    return ACL_SUCCESS;
}

static atomic_int saturation_mode = ACL_RT_OVERFLOW_MODE_INFNAN;

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode) {
    REQUIRE(mode < ACL_RT_OVERFLOW_MODE_UNDEF, "aclrtSetDeviceSatMode");
    atomic_store(&saturation_mode, mode);
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceSatMode(aclrtFloatOverflowMode *mode) {
    REQUIRE(mode, "aclrtGetDeviceSatMode");
    *mode = (aclrtFloatOverflowMode)atomic_load(&saturation_mode);
    return ACL_SUCCESS;
}

/* Operators run to their end here; limits on their time have nothing to end. */
aclError aclrtSetOpWaitTimeout(uint32_t seconds) {
    (void)seconds;
    return ACL_SUCCESS;
}

aclError aclrtSetOpExecuteTimeOut(uint32_t seconds) {
    (void)seconds;
    return ACL_SUCCESS;
}

aclError aclrtSetOpExecuteTimeOutV2(uint64_t microseconds, uint64_t *actual) {
    if (actual) {
        *actual = microseconds;
    }
    return ACL_SUCCESS;
}

void aclAppLog(aclLogLevel level, const char *function, const char *file, uint32_t line, const char *format, ...) {
    (void)level, (void)function, (void)file, (void)line, (void)format;
}

static void before_fork(void) {
    npusim_streams_fork(-1);
    npusim_memory_fork(-1);
}

static void in_parent(void) {
    npusim_memory_fork(0);
    npusim_streams_fork(0);
}

static void in_child(void) {
    npusim_memory_fork(1);
    npusim_streams_fork(1);
}

__attribute__((constructor)) static void prepare(void) {
    pthread_atfork(before_fork, in_parent, in_child);
}
