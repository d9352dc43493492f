/* libmspti.so: what torch.profiler asks on an NPU. Kernels and collectives that end while it records are kept, with the
 * operator that was running on their thread, and handed over in torch_npu's own buffers when it flushes. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "work.h"

enum { SUCCESS = 0, INVALID_PARAMETER = 1, MAX_LIMIT_REACHED = 3, QUEUE_EMPTY = 5 };
enum { KERNEL = 2, EXTERNAL_CORRELATION = 8, COMMUNICATION = 9, KINDS = 13, DEPTH = 256 };

/* The records, as MSPTI lays them out. */
#define RECORD __attribute__((packed, aligned(8)))
typedef struct RECORD {
    int kind;
    uint64_t start, end;
    uint32_t device, stream;
    uint64_t correlation;
    const char *type, *name;
} kernel_record;

typedef struct RECORD {
    int kind, data_type;
    uint64_t count;
    uint32_t device, stream;
    uint64_t start, end;
    const char *algorithm, *name, *communicator;
    uint64_t correlation;
} communication_record;

typedef struct RECORD {
    int kind, external_kind;
    uint64_t external, correlation;
} external_record;

typedef struct work {
    struct work *next;
    bool collective;
    int device, stream;
    uint64_t start, end, external;
    char name[];
} work;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool enabled[KINDS];
static work *first, **last = &first;
static void (*request_buffer)(uint8_t **buffer, size_t *size, size_t *most_records);
static void (*complete_buffer)(uint8_t *buffer, size_t size, size_t used);
static _Thread_local uint64_t running[DEPTH]; /* the operators around what this thread does */
static _Thread_local unsigned depth;

static void keep(const char *kind, const char *name, int device, int stream, uint64_t nanoseconds) {
    bool collective = strcmp(kind, "collective") == 0;
    work *one = collective || strcmp(kind, "kernel") == 0 ? malloc(sizeof *one + strlen(name) + 1) : NULL;
    if (!one) {
        return;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t end = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    *one = (work){
        NULL, collective, device, stream, end - nanoseconds, end, depth && depth <= DEPTH ? running[depth - 1] : 0};
    strcpy(one->name, name);
    pthread_mutex_lock(&lock);
    *last = one;
    last = &one->next;
    pthread_mutex_unlock(&lock);
}

static size_t size_of(int kind) {
    return kind == KERNEL          ? sizeof(kernel_record)
           : kind == COMMUNICATION ? sizeof(communication_record)
                                   : sizeof(external_record);
}

/* Writes its records, if there is room for them, and returns where they end. */
static size_t write_records(const work *one, uint8_t *buffer, size_t used, size_t size) {
    static uint64_t correlation;
    if (used + sizeof(communication_record) + sizeof(external_record) > size) {
        return used;
    }
    correlation++;
    uint32_t device = (uint32_t)one->device, stream = (uint32_t)one->stream;
    if (one->collective) {
        *(communication_record *)(buffer + used) = (communication_record){
            COMMUNICATION, 0, 0, device, stream, one->start, one->end, "", one->name, "", correlation};
        return used + sizeof(communication_record);
    }
    *(kernel_record *)(buffer + used) =
        (kernel_record){KERNEL, one->start, one->end, device, stream, correlation, "simulated", one->name};
    used += sizeof(kernel_record);
    if (one->external) {
        *(external_record *)(buffer + used) = (external_record){EXTERNAL_CORRELATION, 2, one->external, correlation};
        used += sizeof(external_record);
    }
    return used;
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int msptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    pthread_mutex_lock(&lock);
    work *left = first;
    first = NULL;
    last = &first;
    pthread_mutex_unlock(&lock);
    while (left && request_buffer && complete_buffer) {
        uint8_t *buffer = NULL;
        size_t size = 0, most_records = 0, used = 0;
        request_buffer(&buffer, &size, &most_records);
        work *begin = left;
        for (size_t end = 0; buffer && left && (end = write_records(left, buffer, used, size)) > used; used = end) {
            left = left->next;
        }
        if (!buffer || !used) {
            break;
        }
        complete_buffer(buffer, size, used); /* which reads the names */
        while (begin != left) {
            work *done = begin;
            begin = begin->next;
            free(done);
        }
    }
    while (left) {
        work *dropped = left;
        left = left->next;
        free(dropped);
    }
    return SUCCESS;
}

int msptiActivityGetNextRecord(uint8_t *buffer, size_t used, uint8_t **record) {
    if (!buffer || !record) {
        return INVALID_PARAMETER;
    }
    uint8_t *next = *record ? *record + size_of(*(const int *)*record) : buffer;
    if (next >= buffer + used) {
        return MAX_LIMIT_REACHED;
    }
    *record = next;
    return SUCCESS;
}

static int set(int kind, bool on) {
    if (kind <= 0 || kind >= KINDS) {
        return INVALID_PARAMETER;
    }
    pthread_mutex_lock(&lock);
    enabled[kind] = on;
    npusim_listen_to_work(enabled[KERNEL] || enabled[COMMUNICATION] ? keep : NULL);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int msptiActivityEnable(int kind) {
    return set(kind, true);
}

int msptiActivityDisable(int kind) {
    return set(kind, false);
}

bool msptiActivityIsEnabled(int kind) {
    return kind > 0 && kind < KINDS && enabled[kind];
}

int msptiActivityRegisterCallbacks(void (*request)(uint8_t **, size_t *, size_t *),
                                   void (*complete)(uint8_t *, size_t, size_t)) {
    request_buffer = request;
    complete_buffer = complete;
    return SUCCESS;
}

int msptiActivityPushExternalCorrelationId(int kind, uint64_t id) {
    (void)kind;
    if (depth < DEPTH) {
        running[depth] = id;
    }
    depth++;
    return SUCCESS;
}

int msptiActivityPopExternalCorrelationId(int kind, uint64_t *id) {
    (void)kind;
    if (!depth) {
        return QUEUE_EMPTY;
    }
    depth--;
    if (id) {
        *id = depth < DEPTH ? running[depth] : 0;
    }
    return SUCCESS;
}

int msptiSubscribe(void **subscriber, void *callback, void *data) {
    (void)callback, (void)data;
    *subscriber = &enabled;
    return SUCCESS;
}

int msptiUnsubscribe(void *subscriber) {
    (void)subscriber;
    return SUCCESS;
}
