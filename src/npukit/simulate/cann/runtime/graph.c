/* Graphs: work that was captured, done again at every execution, in the order in which it was captured, on one stream.
 * That keeps every dependency between the streams of the capture. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "stream.h"

/* Work can be replaced while an execution does what was there before: whoever does it holds it. */
typedef struct {
    atomic_int references;
    const npusim_keeping *how;
    void *kept;
    char *name;
} content;

typedef struct {
    content *now; /* under the graph's lock */
    bool runs;    /* else it is launched */
    int stream_id;
} node;

struct npusim_graph {
    atomic_int references;
    uint32_t id;
    npusim_group *groups;
    pthread_mutex_t lock;
    node *nodes; /* only added to while it is captured */
    size_t count, room;
};

static atomic_uint next_id = 1;

static content *make_content(const npusim_keeping *how, void *kept, const char *name) {
    content *made = malloc(sizeof *made);
    char *copy = strdup(name);
    if (!made || !copy) {
        free(made);
        free(copy);
        how->drop(kept);
        npusim_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "There is no memory for another task of a graph.");
        return NULL;
    }
    *made = (content){.how = how, .kept = kept, .name = copy};
    atomic_init(&made->references, 1);
    return made;
}

static void release_content(content *held) {
    if (atomic_fetch_sub(&held->references, 1) == 1) {
        held->how->drop(held->kept);
        free(held->name);
        free(held);
    }
}

static content *hold_content(npusim_graph *graph, size_t which) {
    pthread_mutex_lock(&graph->lock);
    content *held = graph->nodes[which].now;
    atomic_fetch_add(&held->references, 1);
    pthread_mutex_unlock(&graph->lock);
    return held;
}

npusim_graph *npusim_graph_create(void) {
    npusim_graph *graph = calloc(1, sizeof *graph);
    if (graph) {
        atomic_init(&graph->references, 1);
        pthread_mutex_init(&graph->lock, NULL);
        graph->id = atomic_fetch_add(&next_id, 1);
    }
    return graph;
}

void npusim_graph_hold(npusim_graph *graph) {
    atomic_fetch_add(&graph->references, 1);
}

static void free_groups(npusim_group *first) {
    while (first) {
        npusim_group *next = first->next;
        free(first->members);
        free(first);
        first = next;
    }
}

void npusim_graph_release(npusim_graph *graph) {
    if (atomic_fetch_sub(&graph->references, 1) > 1) {
        return;
    }
    for (size_t i = 0; i < graph->count; i++) {
        release_content(graph->nodes[i].now);
    }
    free_groups(graph->groups);
    pthread_mutex_destroy(&graph->lock);
    free(graph->nodes);
    free(graph);
}

uint32_t npusim_graph_id(const npusim_graph *graph) {
    return graph->id;
}

size_t npusim_graph_size(npusim_graph *graph) {
    return graph->count;
}

npusim_group **npusim_graph_groups(npusim_graph *graph) {
    return &graph->groups;
}

int npusim_graph_add(npusim_graph *graph, const npusim_keeping *how, void *kept, const char *name, int stream_id) {
    content *added = make_content(how, kept, name);
    if (added && graph->count == graph->room) {
        size_t room = graph->room ? 2 * graph->room : 64;
        node *nodes = realloc(graph->nodes, room * sizeof *nodes);
        if (!nodes) {
            release_content(added);
            return npusim_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "There is no memory for another task of a graph.");
        }
        graph->nodes = nodes;
        graph->room = room;
    }
    if (!added) {
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    }
    graph->nodes[graph->count++] = (node){added, how->run != NULL, stream_id};
    return ACL_SUCCESS;
}

typedef struct {
    npusim_graph *graph; /* held */
    size_t which;
    content *by;
} replacement;

static int replace(void *argument) {
    replacement job = *(replacement *)argument;
    free(argument);
    pthread_mutex_lock(&job.graph->lock);
    content *before = job.graph->nodes[job.which].now;
    job.graph->nodes[job.which].now = job.by;
    pthread_mutex_unlock(&job.graph->lock);
    release_content(before);
    npusim_graph_release(job.graph);
    return ACL_SUCCESS;
}

int npusim_graph_replace(npusim_graph *graph, size_t which, npusim_stream *stream, const npusim_keeping *how,
                         void *kept, const char *name) {
    content *by = make_content(how, kept, name);
    replacement *job = by ? malloc(sizeof *job) : NULL;
    if (!job) {
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    }
    npusim_graph_hold(graph);
    *job = (replacement){graph, which, by};
    npusim_stream_put(stream, replace, job, PROMPT | ALWAYS);
    return ACL_SUCCESS;
}

/* Part of an execution: tasks that are run, one after the other. */
typedef struct {
    npusim_graph *graph; /* held */
    size_t from, to;
} stretch;

static int run_stretch(void *argument) {
    stretch job = *(stretch *)argument;
    free(argument);
    int error = ACL_SUCCESS;
    for (size_t i = job.from; i < job.to && !error; i++) {
        content *work = hold_content(job.graph, i);
        error = work->how->run(work->kept);
        release_content(work);
    }
    npusim_graph_release(job.graph);
    return error;
}

static int put_stretch(npusim_graph *graph, size_t from, size_t to, npusim_stream *stream) {
    stretch *job = malloc(sizeof *job);
    REQUIRE(job, "aclmdlRIExecuteAsync");
    npusim_graph_hold(graph);
    *job = (stretch){graph, from, to};
    npusim_stream_put(stream, run_stretch, job, PROMPT | MAY_BLOCK);
    return ACL_SUCCESS;
}

aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream handle) {
    REQUIRE(model, "aclmdlRIExecuteAsync");
    npusim_graph *graph = model;
    npusim_stream *stream = npusim_stream_of(handle);
    int error =
        stream ? npusim_check_uncaptured(stream, "aclmdlRIExecuteAsync") : aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL);
    error = error ? error : npusim_explain(stream, npusim_stream_error_at(stream, npusim_stream_last(stream)));
    for (size_t from = 0; from < graph->count && !error;) {
        size_t to = from;
        while (to < graph->count && graph->nodes[to].runs) {
            to++;
        }
        if (to > from) {
            error = put_stretch(graph, from, to, stream);
            from = to;
        } else {
            content *work = hold_content(graph, from++);
            error = work->how->launch(work->kept, stream);
            release_content(work);
        }
    }
    return error;
}

aclError aclmdlRIDestroy(aclmdlRI model) {
    REQUIRE(model, "aclmdlRIDestroy");
    npusim_graph_release(model);
    return ACL_SUCCESS;
}

aclError aclmdlRIGetId(aclmdlRI model, uint32_t *id) {
    REQUIRE(model && id, "aclmdlRIGetId");
    *id = npusim_graph_id(model);
    return ACL_SUCCESS;
}

/* As a trace for Chrome's viewer, a row a stream, as CANN writes it; times only show the order. */
aclError aclmdlRIDebugJsonPrint(aclmdlRI model, const char *path, uint32_t flags) {
    (void)flags;
    REQUIRE(model && path, "aclmdlRIDebugJsonPrint");
    FILE *file = fopen(path, "w");
    if (!file) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID, "aclmdlRIDebugJsonPrint cannot write to %s.", path);
    }
    npusim_graph *graph = model;
    fputs("[\n", file);
    for (size_t i = 0; i < graph->count; i++) {
        content *work = hold_content(graph, i);
        fprintf(
            file,
            "{\"name\": \"%s\", \"ph\": \"X\", \"pid\": \"aclGraph\", \"tid\": \"stream%d\", \"ts\": %zu, \"dur\": 1, "
            "\"args\": {\"Model Id\": %u, \"Stream Id\": %d, \"Task Id\": %zu, \"Task Type\": \"%s\"}}%s\n",
            work->name, graph->nodes[i].stream_id, i, graph->id, graph->nodes[i].stream_id, i, work->name,
            i + 1 < graph->count ? "," : "");
        release_content(work);
    }
    fputs("]\n", file);
    return fclose(file) ? npusim_error(ACL_ERROR_RT_PARAM_INVALID, "%s could not be written.", path) : ACL_SUCCESS;
}

aclError aclmdlRIDebugPrint(aclmdlRI model) {
    REQUIRE(model, "aclmdlRIDebugPrint");
    return ACL_SUCCESS;
}
