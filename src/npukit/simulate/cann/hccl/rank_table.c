/* Rank tables (RANK_TABLE_FILE): all ranks know from a file who there is, and meet at the server of rank 0. */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../npusim.h"
#include "meeting.h"

enum { BASE_PORT = 60000, BACKLOG = 256, RETRY_MS = 50, WORD = 64, TABLE_BYTES = 1 << 20, SERVER = 2, DEVICE = 3 };

typedef struct {
    uint32_t ranks, servers;
    bool seen[MAX_RANKS];
    char root[WORD]; /* the address of the server with rank 0 */
} rank_table;

static int wrong(const char *file, const char *reason) {
    return npusim_error(HCCL_E_PARA, "EI0004: The ranktable or rank is invalid, Reason: [%s]. The file is %s.", reason,
                        file);
}

/* The next string or number, or a single sign; false at the end. */
static bool next_word(const char **text, char word[WORD], bool *quoted) {
    const char *at = *text + strspn(*text, " \t\r\n,");
    *quoted = *at == '"';
    at += *quoted;
    size_t length = *quoted ? strcspn(at, "\"") : isalnum((unsigned char)*at) ? strspn(at, "0123456789.") : 1;
    length = length ? length : 1;
    snprintf(word, WORD, "%.*s", (int)length, at);
    *text = at + length + (*quoted && at[length]);
    return *at || *quoted;
}

static const char *note(rank_table *table, int depth, const char *key, const char *value, char server[WORD],
                        bool *root) {
    if (depth == SERVER && (strcmp(key, "host_ip") == 0 || (strcmp(key, "server_id") == 0 && !*server))) {
        strcpy(server, value);
    } else if (depth == DEVICE && strcmp(key, "rank_id") == 0) {
        char *end;
        unsigned long rank = strtoul(value, &end, 10);
        if (!*value || *end || rank >= MAX_RANKS || table->seen[rank]) {
            return "a rank_id is not a number, too large, or there twice";
        }
        table->seen[rank] = true;
        table->ranks++;
        *root = *root || rank == 0;
    }
    return NULL;
}

/* Returns what is wrong, or NULL. */
static const char *understand(const char *text, rank_table *table) {
    char word[WORD], key[WORD] = "", server[WORD] = "";
    bool quoted, root = false, value_follows = false;
    int depth = 0;
    while (next_word(&text, word, &quoted)) {
        if (!quoted && (*word == '{' || *word == '[')) {
            depth += *word == '{';
            value_follows = false;
        } else if (!quoted && *word == '}') {
            if (depth-- == SERVER) {
                table->servers++;
                strcpy(root ? table->root : word, server);
                server[0] = 0;
                root = false;
            }
        } else if (!quoted && *word == ':') {
            value_follows = true;
        } else if (value_follows) {
            const char *reason = note(table, depth, key, word, server, &root);
            if (reason) {
                return reason;
            }
            value_follows = false;
        } else if (quoted) {
            strcpy(key, word);
        }
    }
    for (uint32_t rank = 0; rank < table->ranks; rank++) {
        if (!table->seen[rank]) {
            return "the rank_ids are not the numbers from 0 on";
        }
    }
    return depth == 0 && table->ranks ? NULL : "it is not JSON with server_list, device and rank_id";
}

static int read_table(const char *file, rank_table *table) {
    FILE *in = fopen(file, "r");
    char *text = in ? calloc(1, TABLE_BYTES) : NULL;
    size_t bytes = text ? fread(text, 1, TABLE_BYTES - 1, in) : 0;
    const char *reason = bytes ? understand(text, table) : "the file cannot be read";
    if (in) {
        fclose(in);
    }
    free(text);
    return reason ? wrong(file, reason) : HCCL_SUCCESS;
}

/* Rank 0: say to all others where to meet. */
static int receive_ranks(const struct sockaddr_in *at, const rank_table *table, meeting_point *where,
                         int64_t deadline) {
    int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1, result = HCCL_SUCCESS;
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(door, (const struct sockaddr *)at, sizeof *at) != 0 || listen(door, BACKLOG) != 0) {
        result = npusim_error(HCCL_E_TCP_CONNECT,
                              "EI0019: Rank 0 cannot listen at %s:%u, where the rank table puts it: "
                              "%s. HCCL_IF_BASE_PORT chooses another port.",
                              inet_ntoa(at->sin_addr), ntohs(at->sin_port), strerror(errno));
    }
    result = result ? result : make_meeting_point(where, table->servers > 1); /* it takes the next port */
    for (uint32_t come = 1; !result && come < table->ranks; come++) {
        int one = accept_at(door, deadline);
        if (one < 0 || !send_whole(one, where, sizeof *where, deadline)) {
            result = npusim_error(HCCL_E_TIMEOUT,
                                  "EI0015: Only %u of the %u ranks in the rank table have come. Check that "
                                  "every rank runs, or give them longer with HCCL_CONNECT_TIMEOUT.",
                                  come, table->ranks);
        }
        close(one);
    }
    close(door);
    return result;
}

static int ask_root(const struct sockaddr_in *at, meeting_point *where, int64_t deadline) {
    const endpoint root = {at->sin_addr.s_addr, at->sin_port, 0};
    for (; now_ms() < deadline; usleep(RETRY_MS * 1000)) {
        int one = connect_to(&root, deadline); /* refused until rank 0 is there */
        bool told = one >= 0 && receive_whole(one, where, sizeof *where, deadline);
        if (one >= 0) {
            close(one);
        }
        if (told) {
            return HCCL_SUCCESS;
        }
    }
    return npusim_error(HCCL_E_TCP_CONNECT, "EI0006: Rank 0 did not answer at %s, where the rank table puts it.",
                        endpoint_text(&root));
}

HcclResult HcclCommInitClusterInfoConfig(const char *file, uint32_t rank, HcclCommConfig *config, void **comm) {
    if (!file || !comm) {
        return HCCL_E_PTR;
    }
    rank_table table = {0};
    int result = read_table(file, &table);
    if (!result && rank >= table.ranks) {
        result = wrong(file, "it does not list this rank");
    }
    const char *base = getenv("HCCL_IF_BASE_PORT");
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)(base && *base ? atoi(base) : BASE_PORT))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!result && table.servers > 1 && inet_pton(AF_INET, table.root, &at.sin_addr) != 1) {
        result = wrong(file, "server_id or host_ip of the server of rank 0 is not an IPv4 address");
    }
    meeting_point where;
    int64_t deadline = now_ms() + seconds_from("HCCL_CONNECT_TIMEOUT", CONNECT_TIMEOUT) * 1000LL;
    result = result      ? result
             : rank == 0 ? receive_ranks(&at, &table, &where, deadline)
                         : ask_root(&at, &where, deadline);
    return (HcclResult)(result ? result : join(&where, table.ranks, rank, config, comm));
}

HcclResult HcclCommInitClusterInfo(const char *file, uint32_t rank, void **comm) {
    return HcclCommInitClusterInfoConfig(file, rank, NULL, comm);
}
