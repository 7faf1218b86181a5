/*
 * An engine of one's own, without a model: it has a cache of blocks with LRU eviction, publishes what it stores and
 * removes, and answers completions of token ids with the number of cached tokens. It serves one request at a time.
 *
 *     make -C publish/c bin/engine        # in the repository's root
 *     publish/c/bin/engine 8000 tcp://127.0.0.1:5557 tcp://127.0.0.1:5657
 *     go run ./cmd/warmpath serve --worker http://127.0.0.1:8000,events=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5657
 *
 * With the library installed: cc -o engine engine.c $(pkg-config --cflags --libs warmpath_kv)
 *
 * Arguments after these: blocks in the cache, messages kept for replay, messages in the queue, hwm.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <warmpath_kv.h>

#define SIZE 16 /* tokens in a block */
#define MAX_BODY (8 << 20)
#define MAX_BLOCKS 4096 /* blocks of one prompt that are cached */
#define SLOTS (1 << 16)

/* A cached block. Blocks are in a hash table, and in a list by their last use. */
struct block {
    uint8_t hash[WARMPATH_KV_HASH_SIZE];
    struct block *chain;          /* next block of the same slot */
    struct block *older, *newer;
};

static struct block *slots[SLOTS], *oldest, *newest;
static size_t cached, capacity = 4096;
static warmpath_kv_publisher *publisher;
static uint8_t hashes[MAX_BLOCKS][WARMPATH_KV_HASH_SIZE], removed[2 * MAX_BLOCKS][WARMPATH_KV_HASH_SIZE];

static struct block **find(const uint8_t *hash) {
    struct block **at = &slots[warmpath_kv_hash_number(hash) % SLOTS];
    while (*at != NULL && memcmp((*at)->hash, hash, sizeof (*at)->hash) != 0) {
        at = &(*at)->chain;
    }
    return at;
}

static void unlink_block(struct block *b) {
    *(b->older != NULL ? &b->older->newer : &oldest) = b->newer;
    *(b->newer != NULL ? &b->newer->older : &newest) = b->older;
}

/* Makes a block the most recently used one, and caches it if it is not cached. */
static void use(const uint8_t *hash) {
    struct block **at = find(hash), *b = *at;
    if (b != NULL) {
        unlink_block(b);
    } else {
        b = *at = calloc(1, sizeof *b);
        if (b == NULL) {
            abort();
        }
        memcpy(b->hash, hash, sizeof b->hash);
        cached++;
    }
    b->older = newest;
    b->newer = NULL;
    *(newest != NULL ? &newest->newer : &oldest) = b;
    newest = b;
}

static void evict(uint8_t *hash) {
    struct block *b = oldest, **at = find(b->hash);
    memcpy(hash, b->hash, sizeof b->hash);
    *at = b->chain;
    unlink_block(b);
    free(b);
    cached--;
}

/* Takes a prompt through the cache, publishes what changes, and returns the number of cached tokens. */
static size_t run(const uint32_t *prompt, size_t n) {
    static warmpath_kv_bytes stored_hashes[MAX_BLOCKS], removed_hashes[2 * MAX_BLOCKS];
    size_t blocks = n / SIZE, hit = 0, gone = 0, events = 0;
    blocks = blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS;
    blocks = blocks < capacity ? blocks : capacity;
    if (warmpath_kv_hash_blocks(prompt, blocks * SIZE, SIZE, NULL, NULL, NULL, hashes) != WARMPATH_KV_OK) {
        fprintf(stderr, "%s\n", warmpath_kv_last_error());
        return 0;
    }
    while (hit < blocks && *find(hashes[hit]) != NULL) {
        hit++;
    }
    /* The beginning of a prompt is used last, so that a block is never evicted before the blocks after it. */
    for (size_t i = blocks; i > 0; i--) {
        use(hashes[i - 1]);
        stored_hashes[i - 1] = (warmpath_kv_bytes){hashes[i - 1], WARMPATH_KV_HASH_SIZE};
    }
    while (cached > capacity) {
        evict(removed[gone]);
        removed_hashes[gone] = (warmpath_kv_bytes){removed[gone], WARMPATH_KV_HASH_SIZE};
        gone++;
    }
    warmpath_kv_removed r = {.block_digests = removed_hashes, .num_blocks = gone};
    warmpath_kv_stored s = {.token_ids = prompt + hit * SIZE, .num_tokens = (blocks - hit) * SIZE,
                            .block_digests = stored_hashes + hit, .num_blocks = blocks - hit,
                            .parent_digest = hit > 0 ? &stored_hashes[hit - 1] : NULL};
    warmpath_kv_event batch[2] = {{0}};
    if (gone > 0) {
        batch[events++].removed = &r;
    }
    if (hit < blocks) {
        batch[events++].stored = &s;
    }
    if (events > 0 && warmpath_kv_event_publish_batch(publisher, batch, events, NULL) != WARMPATH_KV_OK) {
        fprintf(stderr, "%s\n", warmpath_kv_last_error());
    }
    /* An engine always computes the last token, so a block that has it does not count as cached: vLLM reports 48 of
     * 64 tokens. */
    size_t most = n > 0 ? (n - 1) / SIZE : 0;
    return (hit < most ? hit : most) * SIZE;
}

static void flood(long prompts) {
    uint32_t prompt[8 * SIZE];
    for (; prompts > 0; prompts--) {
        for (size_t i = 0; i < sizeof prompt / sizeof prompt[0]; i++) {
            prompt[i] = (uint32_t)(rand() % 50000);
        }
        run(prompt, sizeof prompt / sizeof prompt[0]);
    }
}

/* Reads the token ids after "prompt":[ and returns their number, or -1 if there are none. */
static long token_ids(const char *body, uint32_t *out, size_t most) {
    const char *at = strstr(body, "\"prompt\"");
    size_t n = 0;
    at = at == NULL ? NULL : at + strlen("\"prompt\"");
    while (at != NULL && (isspace((unsigned char)*at) || *at == ':')) {
        at++;
    }
    if (at == NULL || *at != '[') {
        return -1;
    }
    for (at++; n < most && *at != '\0' && *at != ']'; at++) {
        if (isdigit((unsigned char)*at)) {
            char *end;
            out[n++] = (uint32_t)strtoul(at, &end, 10);
            at = end - 1;
        }
    }
    return (long)n;
}

static void answer(int conn, int status, const char *body) {
    char head[200];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                     status, status == 200 ? "OK" : "Error", strlen(body));
    if (write(conn, head, (size_t)n) < 0 || write(conn, body, strlen(body)) < 0) {
        return; /* the client is gone */
    }
}

static void complete(int conn, const char *body) {
    static uint32_t prompt[1 << 20];
    char text[400];
    long n = token_ids(body, prompt, sizeof prompt / sizeof prompt[0]);
    if (n < 0) {
        answer(conn, 400, "{\"error\":\"this engine takes prompts of token ids\"}");
        return;
    }
    size_t hit = run(prompt, (size_t)n);
    snprintf(text, sizeof text,
             "{\"object\":\"text_completion\",\"model\":\"toy\",\"choices\":[{\"index\":0,\"text\":\"ok\",\"finish_reason\":\"stop\"}],"
             "\"usage\":{\"prompt_tokens\":%ld,\"completion_tokens\":1,\"total_tokens\":%ld,\"prompt_tokens_details\":{\"cached_tokens\":%zu}}}",
             n, n + 1, hit);
    answer(conn, 200, text);
}

/* Reads a request into buffer, and returns its body; NULL if it cannot be read. */
static char *receive(int conn, char *buffer) {
    size_t n = 0, want = 0;
    char *body = NULL;
    while (n < MAX_BODY && (body == NULL || n < want)) {
        ssize_t got = read(conn, buffer + n, MAX_BODY - n);
        if (got <= 0) {
            return NULL;
        }
        n += (size_t)got;
        buffer[n] = '\0';
        if (body == NULL && (body = strstr(buffer, "\r\n\r\n")) != NULL) {
            body += 4;
            want = (size_t)(body - buffer);
            for (char *line = strchr(buffer, '\n'); line != NULL && line < body; line = strchr(line + 1, '\n')) {
                static const char name[] = "content-length:";
                size_t i = 0;
                while (name[i] != '\0' && tolower((unsigned char)line[1 + i]) == name[i]) {
                    i++;
                }
                want += name[i] == '\0' ? strtoul(line + 1 + i, NULL, 10) : 0;
            }
        }
    }
    return body;
}

static void serve(int conn) {
    static char buffer[MAX_BODY + 1];
    char *body = receive(conn, buffer), text[100];
    long prompts;
    if (body == NULL) {
        return;
    }
    if (strncmp(buffer, "GET /health ", 12) == 0) {
        answer(conn, 200, "{}");
    } else if (strncmp(buffer, "GET /v1/models ", 15) == 0) {
        answer(conn, 200, "{\"object\":\"list\",\"data\":[{\"id\":\"toy\",\"object\":\"model\",\"owned_by\":\"me\"}]}");
    } else if (strncmp(buffer, "POST /v1/completions ", 21) == 0) {
        complete(conn, body);
    } else if (sscanf(buffer, "POST /flood?prompts=%ld ", &prompts) == 1) { /* for tests: many prompts at once */
        flood(prompts);
        answer(conn, 200, "{}");
    } else if (strncmp(buffer, "GET /published ", 15) == 0) { /* for tests */
        warmpath_kv_stats stats;
        warmpath_kv_get_stats(publisher, &stats);
        snprintf(text, sizeof text, "{\"published\":%" PRIu64 ",\"dropped\":%" PRIu64 "}", stats.published, stats.dropped);
        answer(conn, 200, text);
    } else {
        answer(conn, 404, "{\"error\":\"not found\"}");
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: engine PORT EVENTS REPLAY [BLOCKS [BUFFER_STEPS [QUEUE [HWM]]]]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    warmpath_kv_config config = WARMPATH_KV_CONFIG_INIT;
    config.endpoint = argv[2];
    config.replay_endpoint = argv[3];
    config.kv_block_size = SIZE;
    capacity = argc > 4 ? strtoul(argv[4], NULL, 10) : capacity;
    config.buffer_steps = argc > 5 ? strtoul(argv[5], NULL, 10) : 0;
    config.max_queue_size = argc > 6 ? strtoul(argv[6], NULL, 10) : 0;
    config.hwm = argc > 7 ? atoi(argv[7]) : 0;
    if (warmpath_kv_init(&config, &publisher) != WARMPATH_KV_OK) {
        fprintf(stderr, "%s\n", warmpath_kv_last_error());
        return 1;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 64) != 0) {
        perror("listen");
        return 1;
    }
    for (;;) {
        int conn = accept(listener, NULL, NULL);
        if (conn >= 0) {
            struct timeval patience = {5, 0};
            setsockopt(conn, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
            serve(conn);
            close(conn);
        }
    }
}
