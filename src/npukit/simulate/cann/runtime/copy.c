/* Copies and fills, at once or on a stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "runtime.h"

enum { AT_ONCE_LIMIT = 1 << 15 };

/* Without computation only small host values (indices, scalars) are brought to the device; what comes back from
 * untouched memory is zero and costs no pages. */
static void move(void *to, const void *from, size_t bytes, aclrtMemcpyKind kind) {
    bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEFAULT;
    bool between = kind == ACL_MEMCPY_DEVICE_TO_DEVICE || kind == ACL_MEMCPY_INNER_DEVICE_TO_DEVICE ||
                   kind == ACL_MEMCPY_INTER_DEVICE_TO_DEVICE;
    if ((to_device || between) && bytes > NPUSIM_STEERING_BYTES && npusim_shapes_only()) {
        return;
    }
    memmove(to, from, bytes);
}

static int check(const void *to, size_t room, const void *from, size_t bytes) {
    if (bytes > room || (bytes && (!to || !from))) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID,
                            "A copy of %zu bytes from %p does not fit into %zu bytes at %p.", bytes, from, room, to);
    }
    return ACL_SUCCESS;
}

static void profile(npusim_stream *stream, size_t bytes, aclrtMemcpyKind kind, npusim_moment issued,
                    npusim_moment started) {
    if (issued.time) {
        char more[64];
        snprintf(more, sizeof more, "\"bytes\": %zu, \"direction\": %d", bytes, (int)kind);
        npusim_profile_work(stream, "copy", "MEMCPY_ASYNC", issued, started, more);
    }
}

aclError aclrtMemcpy(void *to, size_t room, const void *from, size_t bytes, aclrtMemcpyKind kind) {
    npusim_moment started = npusim_moment_now();
    int error = npusim_check_unsafe("aclrtMemcpy");
    error = error ? error : check(to, room, from, bytes);
    if (!error) {
        move(to, from, bytes, kind);
        profile(NULL, bytes, kind, started, started);
        npusim_profile_call("aclrtMemcpy", started);
    }
    return error;
}

typedef struct {
    void *to;
    const void *from;
    size_t bytes;
    aclrtMemcpyKind kind;
    npusim_stream *stream;
    npusim_moment issued;
} copy_job;

static int run_copy(void *argument) {
    copy_job job = *(copy_job *)argument;
    free(argument);
    if (npusim_stream_works(job.stream)) {
        npusim_moment started = npusim_moment_now();
        move(job.to, job.from, job.bytes, job.kind);
        profile(job.stream, job.bytes, job.kind, job.issued, started);
    }
    return ACL_SUCCESS;
}

static int do_copy(void *argument) {
    const copy_job *job = argument;
    npusim_moment started = npusim_moment_now();
    move(job->to, job->from, job->bytes, job->kind);
    profile(job->stream, job->bytes, job->kind, started, started);
    return ACL_SUCCESS;
}

static const npusim_keeping keep_copy = {.run = do_copy, .drop = free};

static bool pageable(const void *address) {
    npusim_block block;
    return !npusim_find_block(address, &block);
}

static bool touches_pageable(const void *to, const void *from, aclrtMemcpyKind kind) {
    switch (kind) {
    case ACL_MEMCPY_HOST_TO_DEVICE:
        return pageable(from);
    case ACL_MEMCPY_DEVICE_TO_HOST:
        return pageable(to);
    case ACL_MEMCPY_HOST_TO_HOST:
    case ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE:
        return true; /* the source may change once the call has returned */
    case ACL_MEMCPY_DEFAULT:
        return pageable(from) || pageable(to);
    default:
        return false;
    }
}

static int keep(npusim_stream *stream, copy_job copy) {
    copy_job *job = malloc(sizeof *job);
    REQUIRE(job, "aclrtMemcpyAsync");
    *job = copy;
    return npusim_keep(stream, &keep_copy, job, "MEMCPY_ASYNC");
}

/* Between pageable host memory and the device the call returns when the copy is done, as on hardware. A short copy on
 * the device itself can be done at once where the stream is idle: nobody could tell. */
aclError aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t bytes, aclrtMemcpyKind kind,
                          aclrtStream handle) {
    int error = check(to, room, from, bytes);
    npusim_stream *stream = error ? NULL : npusim_stream_of(handle);
    if (!stream) {
        return error ? error : aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    bool waits = touches_pageable(to, from, kind);
    error = waits ? npusim_check_unsafe("aclrtMemcpyAsync with pageable memory") : ACL_SUCCESS;
    if (error) {
        return error;
    }
    if (npusim_stream_keeps(stream)) {
        return waits ? npusim_error(ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC,
                                    "A copy from or to pageable memory cannot be captured.")
                     : keep(stream, (copy_job){to, from, bytes, kind, stream, {0, 0}});
    }
    uint64_t last = npusim_stream_last(stream);
    bool on_device = kind == ACL_MEMCPY_DEVICE_TO_DEVICE && bytes <= AT_ONCE_LIMIT && !npusim_slow_stream_ms;
    bool at_once = on_device ? npusim_stream_reached(stream, last) : waits;
    npusim_moment issued = npusim_moment_now();
    if (at_once) {
        error = npusim_explain(stream, npusim_stream_wait(stream, last, -1));
        if (!error) {
            npusim_moment started = npusim_moment_now();
            move(to, from, bytes, kind);
            profile(stream, bytes, kind, issued, started);
        }
        npusim_profile_call("aclrtMemcpyAsync", issued);
        return error;
    }
    copy_job *job = malloc(sizeof *job);
    REQUIRE(job, "aclrtMemcpyAsync");
    *job = (copy_job){to, from, bytes, kind, stream, issued};
    npusim_stream_put(stream, run_copy, job, ALWAYS);
    npusim_profile_call("aclrtMemcpyAsync", issued);
    return npusim_explain(stream, npusim_stream_error_at(stream, UINT64_MAX));
}

aclError aclrtMemcpyAsyncWithCondition(void *to, size_t room, const void *from, size_t bytes, aclrtMemcpyKind kind,
                                       aclrtStream stream) {
    return aclrtMemcpyAsync(to, room, from, bytes, kind, stream);
}

aclError aclrtMemcpyBatchAsync(void **to, size_t *room, void **from, size_t *sizes, size_t count,
                               aclrtMemcpyBatchAttr *attributes, size_t *attribute_index, size_t attribute_count,
                               size_t *failed, aclrtStream stream) {
    (void)attributes, (void)attribute_index, (void)attribute_count;
    REQUIRE(to && room && from && sizes, "aclrtMemcpyBatchAsync");
    for (size_t i = 0; i < count; i++) {
        int error = aclrtMemcpyAsync(to[i], room[i], from[i], sizes[i], ACL_MEMCPY_DEFAULT, stream);
        if (error) {
            if (failed) {
                *failed = i;
            }
            return error;
        }
    }
    return ACL_SUCCESS;
}

aclError aclrtMemcpyBatch(void **to, size_t *room, void **from, size_t *sizes, size_t count,
                          aclrtMemcpyBatchAttr *attributes, size_t *attribute_index, size_t attribute_count,
                          size_t *failed) {
    (void)attributes, (void)attribute_index, (void)attribute_count;
    REQUIRE(to && room && from && sizes, "aclrtMemcpyBatch");
    for (size_t i = 0; i < count; i++) {
        int error = aclrtMemcpy(to[i], room[i], from[i], sizes[i], ACL_MEMCPY_DEFAULT);
        if (error) {
            if (failed) {
                *failed = i;
            }
            return error;
        }
    }
    return ACL_SUCCESS;
}

static void fill(void *memory, int32_t value, size_t bytes) {
    if (value) {
        if (!npusim_shapes_only()) {
            memset(memory, value, bytes);
        }
    } else {
        npusim_zero(memory, bytes);
    }
}

aclError aclrtMemset(void *memory, size_t room, int32_t value, size_t bytes) {
    int error = npusim_check_unsafe("aclrtMemset");
    error = error ? error : check(memory, room, memory, bytes);
    if (!error) {
        fill(memory, value, bytes);
    }
    return error;
}

typedef struct {
    void *memory;
    size_t bytes;
    int32_t value;
} fill_job;

static int do_fill(void *argument) {
    const fill_job *job = argument;
    fill(job->memory, job->value, job->bytes);
    return ACL_SUCCESS;
}

static int fill_once(void *argument) {
    int error = do_fill(argument);
    free(argument);
    return error;
}

static const npusim_keeping keep_fill = {.run = do_fill, .drop = free};

aclError aclrtMemsetAsync(void *memory, size_t room, int32_t value, size_t bytes, aclrtStream handle) {
    int error = check(memory, room, memory, bytes);
    npusim_stream *stream = error ? NULL : npusim_stream_of(handle);
    if (!stream) {
        return error ? error : aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    }
    fill_job *job = malloc(sizeof *job);
    REQUIRE(job, "aclrtMemsetAsync");
    *job = (fill_job){memory, bytes, value};
    if (npusim_stream_keeps(stream)) {
        return npusim_keep(stream, &keep_fill, job, "MEMSET_ASYNC");
    }
    npusim_stream_put(stream, fill_once, job, 0);
    return npusim_explain(stream, npusim_stream_error_at(stream, UINT64_MAX));
}
