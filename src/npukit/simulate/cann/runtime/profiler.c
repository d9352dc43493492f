/* The profiler: work on streams and calls of the host, one line of JSON each, in the folder that torch_npu names. What
 * CANN's tools make of such a recording, npukit.simulate.profiler makes of this one, when torch_npu runs `msprof`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "acl/acl_prof.h"
#include "stream.h"
#include "work.h"

enum { PATH_SIZE = 4096 };

struct aclprofConfig {
    uint32_t count;
    uint32_t devices[MAX_DEVICES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_SIZE]; /* where the next recording belongs; empty before aclprofInit */
static int file = -1;
static atomic_int recorder; /* the process that records, 0 for none: not the children it forks */
static _Atomic(npusim_work_listener) listener;

void npusim_listen_to_work(npusim_work_listener to) {
    atomic_store(&listener, to);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

npusim_moment npusim_moment_now(void) {
    int pid = atomic_load_explicit(&recorder, memory_order_relaxed);
    if ((!pid || pid != getpid()) && !atomic_load_explicit(&listener, memory_order_relaxed)) {
        return (npusim_moment){0, 0};
    }
    return (npusim_moment){clock_ns(CLOCK_MONOTONIC_RAW), (int)syscall(SYS_gettid)};
}

/* A line is written at once, so that a process that dies leaves whole lines. */
__attribute__((format(printf, 1, 2))) static void write_line(const char *format, ...) {
    char *line;
    va_list arguments;
    va_start(arguments, format);
    int bytes = vasprintf(&line, format, arguments);
    va_end(arguments);
    if (bytes < 0) {
        return;
    }
    pthread_mutex_lock(&lock);
    if (file >= 0 && write(file, line, (size_t)bytes) != bytes) {
        close(file); /* the disk is full: what is there can be read */
        file = -1;
    }
    pthread_mutex_unlock(&lock);
    free(line);
}

void npusim_profile_work(void *handle, const char *kind, const char *name, npusim_moment issued, npusim_moment started,
                         const char *more) {
    npusim_moment ended = npusim_moment_now();
    npusim_stream *stream = issued.time && started.time && ended.time ? npusim_stream_of(handle) : NULL;
    if (!stream) {
        return;
    }
    int device = npusim_physical_device(stream->device);
    npusim_work_listener listens = atomic_load(&listener);
    if (listens) {
        listens(kind, name, device, stream->id, ended.time - started.time);
    }
    if (atomic_load(&recorder)) {
        write_line("{\"kind\": \"%s\", \"name\": \"%s\", \"device\": %d, \"stream\": %d, \"thread\": %d, "
                   "\"issued\": %lu, \"start\": %lu, \"end\": %lu%s%s}\n",
                   kind, name, device, stream->id, issued.thread, issued.time, started.time, ended.time,
                   more && *more ? ", " : "", more ? more : "");
    }
}

void npusim_profile_call(const char *name, npusim_moment started) {
    npusim_moment ended = npusim_moment_now();
    if (started.time && ended.time) {
        write_line("{\"kind\": \"call\", \"name\": \"%s\", \"thread\": %d, \"start\": %lu, \"end\": %lu}\n", name,
                   ended.thread, started.time, ended.time);
    }
}

static bool write_text(const char *path, const char *text) {
    FILE *out = fopen(path, "w");
    bool written = out && fputs(text, out) >= 0;
    return out && fclose(out) == 0 && written;
}

static bool make_folder(const char *path) {
    return mkdir(path, 0750) == 0 || errno == EEXIST;
}

/* PROF_{number}_{time}_{letters}, with a folder for the host and for each device, as torch_npu looks for them. */
static bool open_recording(const aclprofConfig *config) {
    static int number;
    char prof[PATH_SIZE + 64], path[PATH_SIZE + 128], stamp[32], text[128];
    time_t now = time(NULL);
    strftime(stamp, sizeof stamp, "%Y%m%d%H%M%S", localtime(&now));
    snprintf(prof, sizeof prof, "%s/PROF_%06d_%s%03d_SIMULATED%d", folder, ++number, stamp, 0, getpid());
    bool made = make_folder(folder) && make_folder(prof);
    for (uint32_t i = 0; made && i < config->count; i++) {
        snprintf(path, sizeof path, "%s/device_%d", prof, npusim_physical_device((int)config->devices[i]));
        made = make_folder(path);
    }
    snprintf(path, sizeof path, "%s/host", prof);
    made = made && make_folder(path);
    snprintf(path, sizeof path, "%s/host/start_info", prof);
    snprintf(text, sizeof text, "{\"collectionTimeBegin\": \"%lu\", \"clockMonotonicRaw\": \"%lu\"}\n",
             clock_ns(CLOCK_REALTIME) / 1000, clock_ns(CLOCK_MONOTONIC_RAW));
    made = made && write_text(path, text);
    snprintf(path, sizeof path, "%s/host/simulated.jsonl", prof);
    file = made ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640) : -1;
    return file >= 0;
}

aclError aclprofInit(const char *path, size_t length) {
    REQUIRE(path && length < PATH_SIZE, "aclprofInit");
    pthread_mutex_lock(&lock);
    snprintf(folder, sizeof folder, "%.*s", (int)length, path);
    pthread_mutex_unlock(&lock);
    return ACL_SUCCESS;
}

aclError aclprofStart(const aclprofConfig *config) {
    REQUIRE(config, "aclprofStart");
    pthread_mutex_lock(&lock);
    bool fresh = folder[0] && file < 0;
    bool opened = fresh && open_recording(config);
    pthread_mutex_unlock(&lock);
    if (!opened) {
        return npusim_error(fresh ? ACL_ERROR_INTERNAL_ERROR : ACL_ERROR_PROF_ALREADY_RUN,
                            fresh ? "aclprofStart cannot write into %s." : "aclprofStart: %s is not ready.", folder);
    }
    atomic_store(&recorder, getpid());
    return ACL_SUCCESS;
}

aclError aclprofStop(const aclprofConfig *config) {
    REQUIRE(config, "aclprofStop");
    atomic_store(&recorder, 0);
    pthread_mutex_lock(&lock);
    if (file >= 0) {
        close(file);
        file = -1;
    }
    pthread_mutex_unlock(&lock);
    return ACL_SUCCESS;
}

aclError aclprofFinalize(void) {
    pthread_mutex_lock(&lock);
    folder[0] = 0;
    pthread_mutex_unlock(&lock);
    return ACL_SUCCESS;
}

aclprofConfig *aclprofCreateConfig(uint32_t *devices, uint32_t count, aclprofAicoreMetrics metrics,
                                   const aclprofAicoreEvents *events, uint64_t types) {
    (void)metrics, (void)events, (void)types;
    aclprofConfig *config = count <= MAX_DEVICES ? calloc(1, sizeof *config) : NULL;
    if (config) {
        config->count = count;
        memcpy(config->devices, devices, count * sizeof *devices);
    }
    return config;
}

aclError aclprofDestroyConfig(const aclprofConfig *config) {
    free((void *)config);
    return ACL_SUCCESS;
}

/* Which counters are read and how often: there are none. */
aclError aclprofSetConfig(aclprofConfigType type, const char *value, size_t length) {
    (void)type, (void)value, (void)length;
    return ACL_SUCCESS;
}

aclError aclprofWarmup(const aclprofConfig *config);

aclError aclprofWarmup(const aclprofConfig *config) {
    (void)config;
    return ACL_SUCCESS;
}

aclError aclprofMarkEx(const char *text, size_t length, aclrtStream stream) {
    (void)text, (void)length, (void)stream;
    return ACL_SUCCESS;
}

struct aclprofStepInfo {
    int nothing;
};

aclprofStepInfo *aclprofCreateStepInfo(void) {
    return calloc(1, sizeof(aclprofStepInfo));
}

void aclprofDestroyStepInfo(aclprofStepInfo *info) {
    free(info);
}

aclError aclprofGetStepTimestamp(aclprofStepInfo *info, aclprofStepTag tag, aclrtStream stream) {
    (void)info, (void)tag, (void)stream;
    return ACL_SUCCESS;
}
