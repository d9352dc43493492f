/* What a stream and an event know of the graph that captures them. All of it is guarded by capture.c's lock. */
#ifndef NPUSIM_CAPTURE_H
#define NPUSIM_CAPTURE_H

#include "runtime.h"

typedef struct npusim_graph npusim_graph;
typedef struct npusim_group npusim_group;

typedef struct {
    _Atomic(npusim_graph *) graph; /* takes what is put on the stream, NULL: nobody; read without the lock */
    uint64_t work;                 /* counts what it took, and what the stream waited for */
    bool joined;                   /* another captured stream waits for all of that */
    npusim_group *group;           /* open: what is taken belongs to it */
    _Atomic(npusim_group *)
        update; /* what is put on the stream replaces the members of this group, from `updated` on */
    size_t updated;
} npusim_capture;

/* The place of an event in a capture: after so much work of a stream, in the graph of that number. */
typedef struct {
    npusim_stream *stream; /* held; NULL: the event was not recorded in a capture */
    uint32_t graph;
    uint64_t work;
} npusim_captured_place;

/* capture.c */
int npusim_check_unsafe(const char *function); /* 0, or 107030 where a capture forbids it */
int npusim_check_device_uncaptured(int device, const char *function);
npusim_captured_place npusim_place_in_capture(npusim_stream *stream); /* holds the stream */
bool npusim_place_is_open(const npusim_captured_place *place);        /* its capture goes on */
int npusim_join_capture(npusim_stream *stream, const npusim_captured_place *place, bool *is_captured);

/* graph.c: a graph belongs to who made it and to its executions under way. */
npusim_graph *npusim_graph_create(void);
void npusim_graph_hold(npusim_graph *graph);
void npusim_graph_release(npusim_graph *graph);
uint32_t npusim_graph_id(const npusim_graph *graph);
size_t npusim_graph_size(npusim_graph *graph);
int npusim_graph_add(npusim_graph *graph, const npusim_keeping *how, void *kept, const char *name, int stream_id);
int npusim_graph_replace(npusim_graph *graph, size_t which, npusim_stream *stream, const npusim_keeping *how,
                         void *kept, const char *name); /* on the stream */

/* task_group.c: the nodes of a graph that are updated together. They are freed with their graph. */
struct npusim_group {
    npusim_group *next;
    npusim_graph *graph;
    size_t *members, count, room;
};

int npusim_group_add(npusim_group *group, size_t member);
npusim_group **npusim_graph_groups(npusim_graph *graph);
int npusim_update_group(npusim_stream *stream, const npusim_keeping *how, void *kept, const char *name);

#endif
