/*
 * Plays an engine for the tests: reads commands from its input, one a line, and prints one line for each. Events are
 * collected until the next encode or publish. Texts and byte strings are in hexadecimal.
 *
 *     stored|removed NAME=VALUE…, cleared           see event
 *     encode TS RANK SIZE, publish                  the payload in hexadecimal; the message's number
 *     hash SIZE PARENT|- LORA|- SALT|- TOKENS       the hashes
 *     open ENDPOINT REPLAY|- TOPIC|- SIZE RANK STEPS QUEUE CONNECT    the endpoints
 *     many N, stats, shutdown MS, misuse
 *     stress THREADS N FORKS                        threads publish N messages each, while the process forks
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "warmpath_kv.h"

#define MAX_EVENTS 2048

static warmpath_kv_publisher *publisher;
static warmpath_kv_event events[MAX_EVENTS];
static size_t num_events;

/* Memory of the collected events, freed together. */
static void **blocks;
static size_t num_blocks;

static void *keep(size_t n, size_t size) {
    void *p = calloc(n + 1, size);
    blocks = realloc(blocks, (num_blocks + 1) * sizeof(void *));
    if (p == NULL || blocks == NULL) {
        abort();
    }
    blocks[num_blocks++] = p;
    return p;
}

static void forget(void) {
    for (size_t i = 0; i < num_blocks; i++) {
        free(blocks[i]);
    }
    free(blocks);
    blocks = NULL;
    num_blocks = num_events = 0;
}

static uint8_t *unhex(const char *text, size_t *size) {
    size_t n = strlen(text) / 2;
    uint8_t *out = keep(n, 1);
    for (size_t i = 0; i < n; i++) {
        unsigned v = 0;
        sscanf(text + 2 * i, "%2x", &v);
        out[i] = (uint8_t)v;
    }
    if (size != NULL) {
        *size = n;
    }
    return out;
}

static const char *text(const char *hex) { return strcmp(hex, "-") == 0 ? NULL : (const char *)unhex(hex, NULL); }

static size_t count(const char *list) {
    size_t n = *list != '\0';
    for (; *list != '\0'; list++) {
        n += *list == ',';
    }
    return n;
}

static uint64_t *numbers(char *list, size_t *n) {
    *n = count(list);
    uint64_t *out = keep(*n, sizeof *out);
    size_t i = 0;
    for (char *at = strtok(list, ","); at != NULL; at = strtok(NULL, ",")) {
        out[i++] = strtoull(at, NULL, 10);
    }
    return out;
}

static uint32_t *tokens(char *list, size_t *n) {
    uint64_t *wide = numbers(list, n);
    uint32_t *out = keep(*n, sizeof *out);
    for (size_t i = 0; i < *n; i++) {
        out[i] = (uint32_t)wide[i];
    }
    return out;
}

static warmpath_kv_bytes *digests(char *list, size_t *n) {
    *n = count(list);
    warmpath_kv_bytes *out = keep(*n, sizeof *out);
    size_t i = 0;
    for (char *at = strtok(list, ","); at != NULL; at = strtok(NULL, ",")) {
        out[i].data = unhex(at, &out[i].size);
        i++;
    }
    return out;
}

static int32_t *small(const char *value) {
    int32_t *out = keep(1, sizeof *out);
    *out = (int32_t)strtol(value, NULL, 10);
    return out;
}

/* Sets a field of the stored event. */
static void field(warmpath_kv_stored *s, char *name, char *value) {
    static warmpath_kv_extra_key *keys;
    if (s->num_extra_keys == 0) {
        keys = NULL;
    }
    if (strcmp(name, "tokens") == 0) {
        s->token_ids = tokens(value, &s->num_tokens);
    } else if (strcmp(name, "below") == 0) {
        s->num_tokens = strtoul(value, NULL, 10);
        uint32_t *ids = keep(s->num_tokens, sizeof *ids);
        for (size_t i = 0; i < s->num_tokens; i++) {
            ids[i] = (uint32_t)i;
        }
        s->token_ids = ids;
    } else if (strcmp(name, "hashes") == 0) {
        s->block_hashes = numbers(value, &s->num_blocks);
    } else if (strcmp(name, "hashes_below") == 0) {
        s->num_blocks = strtoul(value, NULL, 10);
        uint64_t *hashes = keep(s->num_blocks, sizeof *hashes);
        for (size_t i = 0; i < s->num_blocks; i++) {
            hashes[i] = i;
        }
        s->block_hashes = hashes;
    } else if (strcmp(name, "digests") == 0) {
        s->block_digests = digests(value, &s->num_blocks);
    } else if (strcmp(name, "parent") == 0) {
        size_t n;
        s->parent_hash = numbers(value, &n);
    } else if (strcmp(name, "parent_digest") == 0) {
        size_t n;
        s->parent_digest = digests(value, &n);
    } else if (strcmp(name, "size") == 0) {
        s->block_size = (uint32_t)strtoul(value, NULL, 10);
    } else if (strcmp(name, "lora") == 0) {
        s->lora_name = text(value);
    } else if (strcmp(name, "lora_id") == 0) {
        int64_t *id = keep(1, sizeof *id);
        *id = strtoll(value, NULL, 10);
        s->lora_id = id;
    } else if (strcmp(name, "salt") == 0) {
        s->cache_salt = text(value);
    } else if (strcmp(name, "medium") == 0) {
        s->medium = text(value);
    } else if (strcmp(name, "group") == 0) {
        s->group_idx = small(value);
    } else if (strcmp(name, "kind") == 0) {
        s->kv_cache_spec_kind = text(value);
    } else if (strcmp(name, "window") == 0) {
        s->kv_cache_spec_sliding_window = *small(value);
    } else if (strcmp(name, "item") == 0 || strcmp(name, "embedding") == 0) {
        char *block = value, *second = strchr(value, ':'), *third;
        *second++ = '\0';
        if (keys == NULL) {
            keys = keep(64, sizeof *keys);
        }
        warmpath_kv_extra_key *k = &keys[s->num_extra_keys++];
        k->block = strtoul(block, NULL, 10);
        if (name[0] == 'e') {
            k->digest.data = unhex(second, &k->digest.size);
        } else {
            third = strchr(second, ':');
            *third++ = '\0';
            k->identifier = text(second);
            k->offset = strtoll(third, NULL, 10);
        }
        s->extra_keys = keys;
    }
}

static void event(char *line) {
    warmpath_kv_stored *s = keep(1, sizeof *s);
    char *outer = NULL, *word = strtok_r(line, " ", &outer);
    warmpath_kv_event *e = &events[num_events++];
    memset(e, 0, sizeof *e);
    int removed = strcmp(word, "removed") == 0;
    if (strcmp(word, "cleared") == 0) {
        e->cleared = 1;
        return;
    }
    while ((word = strtok_r(NULL, " ", &outer)) != NULL) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        field(s, word, value);
    }
    if (removed) {
        warmpath_kv_removed *r = keep(1, sizeof *r);
        r->block_hashes = s->block_hashes;
        r->block_digests = s->block_digests;
        r->num_blocks = s->num_blocks;
        r->medium = s->medium;
        r->group_idx = s->group_idx;
        e->removed = r;
    } else {
        e->stored = s;
    }
}

static void fail(int status) { printf("error %d %s: %s\n", status, warmpath_kv_strerror(status), warmpath_kv_last_error()); }

static void print_hex(const uint8_t *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        printf("%02x", data[i]);
    }
}

static void encode(double ts, unsigned rank, unsigned size) {
    uint8_t *payload;
    size_t n;
    int status = warmpath_kv_encode(events, num_events, ts, rank, size, &payload, &n);
    if (status != WARMPATH_KV_OK) {
        fail(status);
        return;
    }
    print_hex(payload, n);
    printf("\n");
    warmpath_kv_free(payload);
}

static void hash(char *line) {
    char *outer = NULL;
    strtok_r(line, " ", &outer);
    uint32_t size = (uint32_t)strtoul(strtok_r(NULL, " ", &outer), NULL, 10);
    char *parent = strtok_r(NULL, " ", &outer), *lora = strtok_r(NULL, " ", &outer), *salt = strtok_r(NULL, " ", &outer);
    size_t n;
    uint32_t *ids = tokens(strtok_r(NULL, " ", &outer), &n);
    uint8_t(*hashes)[WARMPATH_KV_HASH_SIZE] = keep(n / size, WARMPATH_KV_HASH_SIZE);
    int status = warmpath_kv_hash_blocks(ids, n, size, (const uint8_t *)text(parent), text(lora), text(salt), hashes);
    if (status != WARMPATH_KV_OK) {
        fail(status);
        return;
    }
    for (size_t i = 0; i < n / size; i++) {
        printf(i == 0 ? "" : ",");
        print_hex(hashes[i], WARMPATH_KV_HASH_SIZE);
    }
    printf("\n");
}

static void open_publisher(char *line) {
    char *outer = NULL, *word[9] = {0};
    strtok_r(line, " ", &outer);
    for (int i = 0; i < 8; i++) {
        word[i] = strtok_r(NULL, " ", &outer);
    }
    warmpath_kv_config config = WARMPATH_KV_CONFIG_INIT;
    config.endpoint = word[0];
    config.replay_endpoint = strcmp(word[1], "-") == 0 ? NULL : word[1];
    config.topic = strcmp(word[2], "-") == 0 ? NULL : word[2];
    config.kv_block_size = (uint32_t)strtoul(word[3], NULL, 10);
    config.dp_rank = (uint32_t)strtoul(word[4], NULL, 10);
    config.buffer_steps = strtoul(word[5], NULL, 10);
    config.max_queue_size = strtoul(word[6], NULL, 10);
    config.connect = atoi(word[7]);
    int status = warmpath_kv_init(&config, &publisher);
    if (status != WARMPATH_KV_OK) {
        fail(status);
        return;
    }
    const char *replay = warmpath_kv_replay_endpoint(publisher);
    printf("%s %s\n", warmpath_kv_endpoint(publisher), replay == NULL ? "-" : replay);
}

static void many(long n) {
    uint64_t h = 1, seq = 0;
    warmpath_kv_removed r = {.block_hashes = &h, .num_blocks = 1};
    for (long i = 0; i < n; i++) {
        int status = warmpath_kv_event_publish_removed(publisher, &r, &seq);
        if (status != WARMPATH_KV_OK) {
            fail(status);
            return;
        }
    }
    printf("%" PRIu64 "\n", seq);
}

static void print_stats(void) {
    warmpath_kv_stats s;
    int status = warmpath_kv_get_stats(publisher, &s);
    if (status != WARMPATH_KV_OK) {
        fail(status);
        return;
    }
    printf("published=%" PRIu64 " dropped=%" PRIu64 " queued=%" PRIu64 " kept=%" PRIu64 " replays=%" PRIu64 " replayed=%" PRIu64
           " malformed=%" PRIu64 " refused=%" PRIu64 "\n",
           s.published, s.dropped, s.queued, s.kept, s.replays, s.replayed, s.malformed, s.refused);
}

static void *publish_thread(void *n) {
    uint32_t ids[32] = {0};
    uint64_t hashes[2] = {1, 2};
    warmpath_kv_stored s = {.token_ids = ids, .num_tokens = 32, .block_size = 16, .block_hashes = hashes, .num_blocks = 2};
    for (long i = 0; i < *(long *)n; i++) {
        if (warmpath_kv_event_publish_stored(publisher, &s, NULL) != WARMPATH_KV_OK) {
            abort();
        }
    }
    return NULL;
}

/* In a fork: returns 0 if the publisher refuses to work, and a publisher of the child's own works. */
static int child(void) {
    warmpath_kv_stats s;
    uint64_t seq;
    if (warmpath_kv_event_publish_cleared(publisher, NULL) != WARMPATH_KV_FORKED ||
        warmpath_kv_get_stats(publisher, &s) != WARMPATH_KV_FORKED || warmpath_kv_shutdown(publisher, 1000) != WARMPATH_KV_FORKED) {
        return 1;
    }
    warmpath_kv_publisher *own;
    warmpath_kv_config config = WARMPATH_KV_CONFIG_INIT;
    config.endpoint = "tcp://127.0.0.1:*";
    if (warmpath_kv_init(&config, &own) != WARMPATH_KV_OK || warmpath_kv_event_publish_cleared(own, &seq) != WARMPATH_KV_OK ||
        seq != 0 || warmpath_kv_shutdown(own, 0) != WARMPATH_KV_OK) {
        return 2;
    }
    return 0;
}

static void stress(int threads, long n, int forks) {
    pthread_t ids[16];
    fflush(stdout);
    for (int i = 0; i < threads; i++) {
        if (pthread_create(&ids[i], NULL, publish_thread, &n) != 0) {
            abort();
        }
    }
    int bad = 0;
    for (int i = 0; i < forks; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(30); /* ends a fork that hangs */
            _exit(child());
        }
        int status = 0;
        waitpid(pid, &status, 0);
        bad += status != 0;
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
    }
    printf("%d forks went wrong\n", bad);
}

static void misuse(void) {
    warmpath_kv_config config = WARMPATH_KV_CONFIG_INIT;
    warmpath_kv_publisher *p = NULL;
    uint8_t *payload;
    size_t size;
    int bad = 0;
    bad += warmpath_kv_init(NULL, &p) != WARMPATH_KV_INVALID;
    bad += warmpath_kv_init(&config, NULL) != WARMPATH_KV_INVALID;
    bad += warmpath_kv_init(&config, &p) != WARMPATH_KV_INVALID || p != NULL; /* no endpoint */
    config.size = 0;
    bad += warmpath_kv_init(&config, &p) != WARMPATH_KV_INVALID;
    config.size = sizeof config + 8;
    bad += warmpath_kv_init(&config, &p) != WARMPATH_KV_INVALID;
    bad += warmpath_kv_event_publish_cleared(NULL, NULL) != WARMPATH_KV_INVALID;
    bad += warmpath_kv_get_stats(NULL, NULL) != WARMPATH_KV_INVALID;
    bad += warmpath_kv_shutdown(NULL, 0) != WARMPATH_KV_OK;
    bad += warmpath_kv_endpoint(NULL) != NULL;
    bad += warmpath_kv_encode(NULL, 1, 0, 0, 0, &payload, &size) != WARMPATH_KV_INVALID;
    bad += warmpath_kv_encode(NULL, 0, 0, 0, 0, NULL, NULL) != WARMPATH_KV_INVALID;
    warmpath_kv_event none = {NULL, NULL, 0};
    bad += warmpath_kv_encode(&none, 1, 0, 0, 0, &payload, &size) != WARMPATH_KV_INVALID;
    warmpath_kv_stored s = {.num_tokens = 16, .num_blocks = 1, .block_size = 16};
    warmpath_kv_event e = {&s, NULL, 0};
    bad += warmpath_kv_encode(&e, 1, 0, 0, 0, &payload, &size) != WARMPATH_KV_INVALID; /* NULL arrays */
    uint64_t h = 1;
    s.block_hashes = &h;
    bad += warmpath_kv_encode(&e, 1, 0, 0, 0, &payload, &size) != WARMPATH_KV_INVALID; /* NULL tokens */
    uint32_t ids[16] = {0};
    s.token_ids = ids;
    s.num_extra_keys = 1;
    bad += warmpath_kv_encode(&e, 1, 0, 0, 0, &payload, &size) != WARMPATH_KV_INVALID; /* NULL keys */
    warmpath_kv_extra_key key = {.block = 1, .identifier = "x"};
    s.extra_keys = &key;
    bad += warmpath_kv_encode(&e, 1, 0, 0, 0, &payload, &size) != WARMPATH_KV_INVALID; /* a block that is not there */
    key.block = 0;
    bad += warmpath_kv_encode(&e, 1, 0, 0, 0, &payload, &size) != WARMPATH_KV_OK;
    warmpath_kv_free(payload);
    static const char *const wrong[] = {"\xff", "a\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xf0\x8f\xbf\xbf"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        s.cache_salt = wrong[i];
        bad += warmpath_kv_encode(&e, 1, 0, 0, 0, &payload, &size) != WARMPATH_KV_INVALID;
    }
    uint64_t *large = calloc(8u << 20, sizeof *large);
    for (size_t i = 0; large != NULL && i < 8u << 20; i++) {
        large[i] = UINT64_MAX;
    }
    warmpath_kv_removed r = {.block_hashes = large, .num_blocks = 8u << 20};
    warmpath_kv_event removed = {NULL, &r, 0};
    bad += warmpath_kv_encode(&removed, 1, 0, 0, 0, &payload, &size) != WARMPATH_KV_TOO_LARGE;
    free(large);
    for (int status = 1; status > -20; status--) {
        bad += warmpath_kv_strerror(status) == NULL;
    }
    printf("%d calls went wrong, version %s\n", bad, warmpath_kv_version());
}

static void command(char *line) {
    double ts;
    unsigned rank, size;
    int threads, forks, ms;
    long n;
    uint64_t seq;
    if (strncmp(line, "stored", 6) == 0 || strncmp(line, "removed", 7) == 0 || strncmp(line, "cleared", 7) == 0) {
        event(line);
    } else if (sscanf(line, "encode %lf %u %u", &ts, &rank, &size) == 3) {
        encode(ts, rank, size);
        forget();
    } else if (strcmp(line, "publish") == 0) {
        int status = warmpath_kv_event_publish_batch(publisher, events, num_events, &seq);
        if (status == WARMPATH_KV_OK) {
            printf("%" PRIu64 "\n", seq);
        } else {
            fail(status);
        }
        forget();
    } else if (strncmp(line, "hash ", 5) == 0) {
        hash(line);
        forget();
    } else if (strncmp(line, "open ", 5) == 0) {
        open_publisher(line);
    } else if (sscanf(line, "many %ld", &n) == 1) {
        many(n);
    } else if (sscanf(line, "stress %d %ld %d", &threads, &n, &forks) == 3) {
        stress(threads, n, forks);
    } else if (strcmp(line, "stats") == 0) {
        print_stats();
    } else if (strcmp(line, "misuse") == 0) {
        misuse();
    } else if (sscanf(line, "shutdown %d", &ms) == 1) {
        printf("%d\n", warmpath_kv_shutdown(publisher, ms));
        publisher = NULL;
    } else {
        printf("unknown command %s\n", line);
    }
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        line[n - 1] = '\0';
        command(line);
        fflush(stdout);
    }
    free(line);
    warmpath_kv_shutdown(publisher, 1000);
    return 0;
}
