/* The publisher: numbers, the replay buffer, and the one thread that owns the sockets. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "internal.h"

#define ROUND 256           /* messages that are sent before other work has its turn */
#define MAX_REPLAYS 64      /* replays that are answered at the same time; further requests are refused */
#define REPLAY_PATIENCE 30000 /* milliseconds without progress after which a replay is given up */
#define MAX_IDENTITY 255
#define MAX_ENDPOINT 512

/* A replay that is being answered. Only the thread uses it. */
struct replay {
    uint8_t identity[MAX_IDENTITY];
    size_t identity_size;
    uint64_t next, end; /* end is the first message that is not wanted */
    int64_t moved;      /* when it last made progress, in milliseconds of the monotonic clock */
};

struct warmpath_kv_publisher {
    pid_t pid;
    uint32_t rank, block_size;
    size_t steps, max_bytes, max_queue;
    size_t topic_size;
    char *topic;
    char endpoint[MAX_ENDPOINT], replay_endpoint[MAX_ENDPOINT];
    void *context, *pub, *router; /* the sockets belong to the thread; router is NULL without a replay */
    int wake_read, wake_write;
    pthread_t thread;

    pthread_mutex_t lock; /* guards the fields below */
    struct payload **ring; /* payload of message seq, at index seq % capacity; capacity is a power of two */
    size_t capacity, bytes;
    uint64_t first, next; /* the messages from first to next-1 are kept */
    uint64_t cursor;      /* the next message to send */
    bool awake;           /* the thread was told of messages, and has not looked yet */
    bool closing;
    int64_t deadline; /* when the thread must end, if closing */
    warmpath_kv_stats stats;

    struct replay replays[MAX_REPLAYS]; /* used only by the thread, oldest first */
    size_t num_replays;
};

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static double unix_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)(t.tv_nsec / 1000) / 1e6;
}

/* Before the lock: in a fork, another thread of the parent may have held it. */
static int check_process(const warmpath_kv_publisher *p) {
    if (p == NULL) {
        return wp_fail(WARMPATH_KV_INVALID, "publisher is NULL");
    }
    if (p->pid != getpid()) {
        return wp_fail(WARMPATH_KV_FORKED,
                       "this publisher was made in process %ld, and this is process %ld, a fork of it: make one in the process "
                       "that publishes",
                       (long)p->pid, (long)getpid());
    }
    return WARMPATH_KV_OK;
}

/* The lock is held in the functions down to wake. */

static struct payload **slot(warmpath_kv_publisher *p, uint64_t seq) { return &p->ring[seq & (p->capacity - 1)]; }

static void drop_first(warmpath_kv_publisher *p) {
    struct payload **s = slot(p, p->first);
    p->bytes -= (*s)->size;
    wp_release(*s);
    *s = NULL;
    p->first++;
}

/* Keeps the bounds of the queue and of the buffer. */
static void trim(warmpath_kv_publisher *p) {
    uint64_t unsent = p->next - p->cursor;
    if (unsent > p->max_queue) {
        p->cursor += unsent - p->max_queue;
        p->stats.dropped += unsent - p->max_queue;
    }
    while (p->bytes > p->max_bytes && p->next - p->first > 1) {
        if (p->first == p->cursor) {
            p->cursor++;
            p->stats.dropped++;
        }
        drop_first(p);
    }
    while (p->next - p->first > p->steps && p->first < p->cursor) {
        drop_first(p);
    }
}

static int grow(warmpath_kv_publisher *p) {
    size_t capacity = p->capacity == 0 ? 64 : 2 * p->capacity;
    struct payload **ring = calloc(capacity, sizeof(struct payload *));
    if (ring == NULL) {
        return wp_fail(WARMPATH_KV_NO_MEMORY, "no memory for %zu messages", capacity);
    }
    for (uint64_t seq = p->first; seq < p->next; seq++) {
        ring[seq & (capacity - 1)] = *slot(p, seq);
    }
    free(p->ring);
    p->ring = ring;
    p->capacity = capacity;
    return WARMPATH_KV_OK;
}

static void wake(warmpath_kv_publisher *p) {
    if (!p->awake) {
        p->awake = true;
        ssize_t n;
        do {
            n = write(p->wake_write, "", 1);
        } while (n < 0 && errno == EINTR);
    }
}

int warmpath_kv_event_publish_batch(warmpath_kv_publisher *p, const warmpath_kv_event *events, size_t num_events,
                                    uint64_t *seq) {
    int status = check_process(p);
    if (status != WARMPATH_KV_OK) {
        return status;
    }
    struct payload *payload;
    status = wp_encode(events, num_events, unix_seconds(), p->rank, p->block_size, &payload);
    if (status != WARMPATH_KV_OK) {
        return status;
    }
    pthread_mutex_lock(&p->lock);
    if (p->next - p->first == p->capacity && (status = grow(p)) != WARMPATH_KV_OK) {
        pthread_mutex_unlock(&p->lock);
        wp_release(payload);
        return status;
    }
    if (seq != NULL) {
        *seq = p->next;
    }
    *slot(p, p->next) = payload;
    p->bytes += payload->size;
    p->next++;
    trim(p);
    wake(p);
    pthread_mutex_unlock(&p->lock);
    return WARMPATH_KV_OK;
}

int warmpath_kv_event_publish_stored(warmpath_kv_publisher *p, const warmpath_kv_stored *stored, uint64_t *seq) {
    warmpath_kv_event e = {stored, NULL, 0};
    return warmpath_kv_event_publish_batch(p, &e, 1, seq);
}

int warmpath_kv_event_publish_removed(warmpath_kv_publisher *p, const warmpath_kv_removed *removed, uint64_t *seq) {
    warmpath_kv_event e = {NULL, removed, 0};
    return warmpath_kv_event_publish_batch(p, &e, 1, seq);
}

int warmpath_kv_event_publish_cleared(warmpath_kv_publisher *p, uint64_t *seq) {
    warmpath_kv_event e = {NULL, NULL, 1};
    return warmpath_kv_event_publish_batch(p, &e, 1, seq);
}

int warmpath_kv_get_stats(warmpath_kv_publisher *p, warmpath_kv_stats *stats) {
    int status = check_process(p);
    if (status != WARMPATH_KV_OK) {
        return status;
    }
    if (stats == NULL) {
        return wp_fail(WARMPATH_KV_INVALID, "stats is NULL");
    }
    pthread_mutex_lock(&p->lock);
    *stats = p->stats;
    stats->published = p->next;
    stats->queued = p->next - p->cursor;
    stats->kept = p->next - p->first;
    pthread_mutex_unlock(&p->lock);
    return WARMPATH_KV_OK;
}

const char *warmpath_kv_endpoint(const warmpath_kv_publisher *p) { return p == NULL ? NULL : p->endpoint; }

const char *warmpath_kv_replay_endpoint(const warmpath_kv_publisher *p) {
    return p == NULL || p->replay_endpoint[0] == '\0' ? NULL : p->replay_endpoint;
}

/* The thread. */

static void release_message(void *data, void *payload) {
    (void)data;
    wp_release(payload);
}

/* Sends a frame. The payload's reference passes to the call. */
static int send_payload(void *socket, struct payload *payload) {
    zmq_msg_t m;
    if (zmq_msg_init_data(&m, payload->data, payload->size, release_message, payload) != 0) {
        wp_release(payload);
        return -1;
    }
    int n = zmq_msg_send(&m, socket, ZMQ_DONTWAIT);
    if (n < 0) {
        int error = errno;
        zmq_msg_close(&m);
        errno = error;
    }
    return n;
}

static void big_endian(uint64_t v, uint8_t b[8]) {
    for (int i = 7; i >= 0; i--) {
        b[i] = (uint8_t)v;
        v >>= 8;
    }
}

/* Takes references to payloads of messages from seq up to end, at most ROUND. The lock is held. */
static size_t take(warmpath_kv_publisher *p, uint64_t seq, uint64_t end, struct payload **out) {
    size_t n = 0;
    for (; seq < end && n < ROUND; seq++) {
        out[n] = *slot(p, seq);
        atomic_fetch_add_explicit(&out[n++]->refs, 1, memory_order_relaxed);
    }
    return n;
}

/* Sends some queued messages. Returns whether there are more. */
static bool send_some(warmpath_kv_publisher *p) {
    struct payload *payloads[ROUND];
    pthread_mutex_lock(&p->lock);
    uint64_t seq = p->cursor;
    size_t n = take(p, seq, p->next, payloads);
    p->cursor += n;
    trim(p);
    bool more = p->cursor < p->next;
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < n; i++, seq++) {
        uint8_t number[8];
        big_endian(seq, number);
        /* A PUB socket drops rather than fails; the numbers show a loss in any case. */
        if (zmq_send(p->pub, p->topic, p->topic_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
            wp_release(payloads[i]);
            continue;
        }
        zmq_send(p->pub, number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        send_payload(p->pub, payloads[i]);
    }
    return more;
}

/* Receives one request. Returns -1 if none waits, 1 if it asks for messages from *start on, 0 if it is malformed. */
static int receive_request(void *router, struct replay *r, uint64_t *start) {
    int frames = 0, more = 1;
    bool good = true;
    while (more) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, router, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&m);
            return frames == 0 ? -1 : 0;
        }
        const uint8_t *data = zmq_msg_data(&m);
        size_t size = zmq_msg_size(&m);
        if (frames == 0 && size <= sizeof r->identity) {
            memcpy(r->identity, data, size);
            r->identity_size = size;
        } else if (frames == 2 && size <= 8) {
            *start = 0;
            for (size_t i = 0; i < size; i++) {
                *start = *start << 8 | data[i];
            }
        } else {
            good = good && frames == 1 && size == 0;
        }
        more = zmq_msg_more(&m);
        zmq_msg_close(&m);
        frames++;
    }
    return good && frames == 3 ? 1 : 0;
}

static bool same_reader(const struct replay *a, const struct replay *b) {
    return a->identity_size == b->identity_size && memcmp(a->identity, b->identity, a->identity_size) == 0;
}

/* Returns the replay that waits for the answer to an older one of r's reader; NULL if there is none. */
static struct replay *waiting_replay(warmpath_kv_publisher *p, const struct replay *r) {
    bool answered = false;
    for (size_t i = 0; i < p->num_replays; i++) {
        if (same_reader(&p->replays[i], r)) {
            if (answered) {
                return &p->replays[i];
            }
            answered = true;
        }
    }
    return NULL;
}

static void receive_requests(warmpath_kv_publisher *p) {
    for (int i = 0; i < MAX_REPLAYS; i++) {
        struct replay r;
        uint64_t start = 0;
        int got = receive_request(p->router, &r, &start);
        if (got < 0) {
            return;
        }
        /* One replay of a reader is answered, and one waits: no reader takes the room of all others. */
        struct replay *older = got == 1 ? waiting_replay(p, &r) : NULL;
        pthread_mutex_lock(&p->lock);
        r.end = p->next;
        if (got == 0) {
            p->stats.malformed++;
        } else if (older != NULL || p->num_replays == MAX_REPLAYS) {
            p->stats.refused++;
        } else {
            p->stats.replays++;
        }
        pthread_mutex_unlock(&p->lock);
        r.next = start;
        r.moved = now_ms();
        if (older != NULL) {
            *older = r;
        } else if (got == 1 && p->num_replays < MAX_REPLAYS) {
            p->replays[p->num_replays++] = r;
        }
    }
}

/* Sends the frames before the payload. An error means that nothing of the message was sent. */
static int send_heads(warmpath_kv_publisher *p, const struct replay *r, bool end, uint64_t seq) {
    uint8_t number[8];
    big_endian(seq, number);
    if (zmq_send(p->router, r->identity, r->identity_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        return -1;
    }
    zmq_send(p->router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(p->router, p->topic, end ? 0 : p->topic_size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(p->router, number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    return 0;
}

/* Sends some messages of a replay. Returns 1 if it has ended, 0 if it goes on later, -1 if its reader is gone. */
static int answer_some(warmpath_kv_publisher *p, struct replay *r) {
    struct payload *payloads[ROUND];
    pthread_mutex_lock(&p->lock);
    r->next = r->next < p->first ? p->first : r->next;
    size_t n = take(p, r->next, r->end, payloads), sent = 0;
    pthread_mutex_unlock(&p->lock);
    int error = 0;
    for (size_t i = 0; i < n; i++) {
        if (error == 0 && send_heads(p, r, false, r->next) < 0) {
            error = errno;
        }
        if (error != 0) {
            wp_release(payloads[i]);
            continue;
        }
        send_payload(p->router, payloads[i]);
        r->next++;
        sent++;
    }
    pthread_mutex_lock(&p->lock);
    p->stats.replayed += sent;
    pthread_mutex_unlock(&p->lock);
    if (error == 0 && r->next < r->end) {
        return 0;
    }
    if (error == 0) {
        if (send_heads(p, r, true, UINT64_MAX) == 0) {
            zmq_send(p->router, "", 0, ZMQ_DONTWAIT);
            return 1;
        }
        error = errno;
    }
    return error == EAGAIN ? 0 : -1; /* EAGAIN: the reader is slow; EHOSTUNREACH: it is gone */
}

/* Goes on with the replays. Returns after how many milliseconds to call again, -1 if there are none. */
static int answer(warmpath_kv_publisher *p) {
    size_t kept = 0;
    int wait = -1;
    int64_t now = now_ms();
    for (size_t i = 0; i < p->num_replays; i++) {
        struct replay *r = &p->replays[i];
        bool first = true; /* the answers to one reader come one after the other */
        for (size_t k = 0; k < kept && first; k++) {
            first = !same_reader(&p->replays[k], r);
        }
        uint64_t before = r->next;
        int state = first ? answer_some(p, r) : 0;
        if (state == 0 && r->next != before) {
            r->moved = now;
            wait = 0;
        }
        if (state == 0 && now - r->moved > REPLAY_PATIENCE) {
            pthread_mutex_lock(&p->lock);
            p->stats.refused++;
            pthread_mutex_unlock(&p->lock);
            state = -1;
        }
        if (state == 0) {
            if (kept != i) {
                p->replays[kept] = *r;
            }
            kept++;
        }
    }
    p->num_replays = kept;
    return kept > 0 && wait < 0 ? 10 : wait;
}

static void *run(void *arg) {
    warmpath_kv_publisher *p = arg;
    int wait = -1;
    for (;;) {
        zmq_pollitem_t items[2] = {{NULL, p->wake_read, ZMQ_POLLIN, 0}, {p->router, 0, ZMQ_POLLIN, 0}};
        zmq_poll(items, p->router == NULL ? 1 : 2, wait);
        char sink[64];
        while (read(p->wake_read, sink, sizeof sink) > 0) {
        }
        pthread_mutex_lock(&p->lock);
        p->awake = false;
        bool closing = p->closing;
        int64_t deadline = p->deadline;
        pthread_mutex_unlock(&p->lock);
        bool more = send_some(p);
        if (closing && (!more || now_ms() >= deadline)) {
            break;
        }
        wait = more ? 0 : -1;
        if (p->router != NULL) {
            receive_requests(p);
            int again = answer(p);
            wait = wait < 0 ? again : wait;
        }
    }
    /* What ZeroMQ still has for subscribers may use the rest of the time. */
    int64_t left = p->deadline - now_ms();
    int linger = left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left, none = 0;
    zmq_setsockopt(p->pub, ZMQ_LINGER, &linger, sizeof linger);
    zmq_close(p->pub);
    if (p->router != NULL) {
        zmq_setsockopt(p->router, ZMQ_LINGER, &none, sizeof none);
        zmq_close(p->router);
    }
    zmq_ctx_term(p->context);
    return NULL;
}

/* Opening and closing. */

/* Checks an endpoint, and adds the rank to its port, as vLLM does. Any free port stays any free port. */
static int rank_endpoint(const char *what, const char *endpoint, uint32_t rank, char out[MAX_ENDPOINT]) {
    if (endpoint == NULL || strlen(endpoint) >= MAX_ENDPOINT - 8) {
        return wp_fail(WARMPATH_KV_INVALID, "the endpoint of %s is missing or too long", what);
    }
    if (strncmp(endpoint, "ipc://", 6) == 0 && endpoint[6] != '\0') {
        if (rank != 0) {
            return wp_fail(WARMPATH_KV_INVALID, "%.100s has no port to add rank %u to: give each rank a tcp endpoint", endpoint,
                           (unsigned)rank);
        }
        snprintf(out, MAX_ENDPOINT, "%s", endpoint);
        return WARMPATH_KV_OK;
    }
    const char *colon = strrchr(endpoint, ':');
    size_t host = colon == NULL ? 0 : (size_t)(colon - endpoint);
    size_t digits = colon == NULL ? 0 : strspn(colon + 1, "0123456789");
    bool any = colon != NULL && strcmp(colon + 1, "*") == 0;
    if (strncmp(endpoint, "tcp://", 6) != 0 || host <= 6 || (!any && (digits < 1 || digits > 5 || colon[1 + digits] != '\0'))) {
        return wp_fail(WARMPATH_KV_INVALID, "%.100s is no endpoint of %s: write tcp://HOST:PORT or ipc://PATH", endpoint, what);
    }
    long port = any ? 0 : strtol(colon + 1, NULL, 10);
    if (port > 65535 - (long)rank) {
        return wp_fail(WARMPATH_KV_INVALID, "%.100s leaves no port for rank %u", endpoint, (unsigned)rank);
    }
    if (port == 0) {
        snprintf(out, MAX_ENDPOINT, "%.*s:*", (int)host, endpoint);
    } else {
        snprintf(out, MAX_ENDPOINT, "%.*s:%ld", (int)host, endpoint, port + (long)rank);
    }
    return WARMPATH_KV_OK;
}

static int colons(const char *endpoint) {
    int n = 0;
    for (; *endpoint != '\0'; endpoint++) {
        n += *endpoint == ':';
    }
    return n;
}

/* Opens a socket, and puts the real port into endpoint. */
static int open_socket(warmpath_kv_publisher *p, int type, bool connect, int hwm, char endpoint[MAX_ENDPOINT], void **socket) {
    int none = 0, one = 1;
    int64_t most = 64 << 10; /* peers send only subscriptions and requests */
    *socket = zmq_socket(p->context, type);
    if (*socket == NULL) {
        return wp_fail(WARMPATH_KV_SYSTEM, "open a socket: %s", zmq_strerror(errno));
    }
    zmq_setsockopt(*socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(*socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(*socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    zmq_setsockopt(*socket, ZMQ_TCP_KEEPALIVE, &one, sizeof one);
    if (colons(endpoint) > 2) { /* an IPv6 address */
        zmq_setsockopt(*socket, ZMQ_IPV6, &one, sizeof one);
    }
    if (type == ZMQ_ROUTER) {
        /* Mandatory: sending to a reader that is slow or gone is an error, and loses no message silently. */
        zmq_setsockopt(*socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
        zmq_setsockopt(*socket, ZMQ_ROUTER_HANDOVER, &one, sizeof one);
    }
    if ((connect ? zmq_connect(*socket, endpoint) : zmq_bind(*socket, endpoint)) != 0) {
        int why = errno;
        bool elsewhere = !connect && (why == ENODEV || why == EADDRNOTAVAIL);
        return wp_fail(WARMPATH_KV_ENDPOINT, "%s: %s %.100s: %s%s", type == ZMQ_PUB ? "events" : "replay",
                       connect ? "connect to" : "bind", endpoint, zmq_strerror(why),
                       elsewhere ? "; the address must be one of this machine: write tcp://*:PORT" : "");
    }
    char last[MAX_ENDPOINT];
    size_t size = sizeof last;
    if (!connect && strncmp(endpoint, "tcp://", 6) == 0 && zmq_getsockopt(*socket, ZMQ_LAST_ENDPOINT, last, &size) == 0) {
        const char *port = strrchr(last, ':');
        char *own = strrchr(endpoint, ':');
        if (port != NULL && own != NULL) {
            snprintf(own, 8, "%.6s", port);
        }
    }
    return WARMPATH_KV_OK;
}

static int check_config(const warmpath_kv_config *given, warmpath_kv_config *c, warmpath_kv_publisher *p) {
    warmpath_kv_config usual = WARMPATH_KV_CONFIG_INIT;
    if (given->size < sizeof(size_t) + sizeof(char *) || given->size > sizeof usual) {
        return wp_fail(WARMPATH_KV_INVALID, "config.size %zu is wrong: begin with WARMPATH_KV_CONFIG_INIT", given->size);
    }
    *c = usual;
    memcpy(c, given, given->size);
    if (c->kv_block_size > MAX_BLOCK_SIZE || c->dp_rank > 65535 || c->hwm < 0) {
        return wp_fail(WARMPATH_KV_INVALID, "kv_block_size is above %u, dp_rank above 65535, or hwm negative", MAX_BLOCK_SIZE);
    }
    int status = wp_text("topic", c->topic, &p->topic_size);
    if (status == WARMPATH_KV_OK) {
        status = rank_endpoint("events", c->endpoint, c->dp_rank, p->endpoint);
    }
    if (status == WARMPATH_KV_OK && c->replay_endpoint != NULL) {
        status = rank_endpoint("replay", c->replay_endpoint, c->dp_rank, p->replay_endpoint);
    }
    p->rank = c->dp_rank;
    p->block_size = c->kv_block_size;
    p->steps = c->replay_endpoint == NULL ? 0 : c->buffer_steps != 0 ? c->buffer_steps : 10000;
    p->max_bytes = c->buffer_bytes != 0 ? c->buffer_bytes : (size_t)256 << 20;
    p->max_queue = c->max_queue_size != 0 ? c->max_queue_size : 100000;
    return status;
}

static int open_pipe(warmpath_kv_publisher *p) {
    int ends[2];
    if (pipe(ends) != 0) {
        return wp_fail(WARMPATH_KV_SYSTEM, "make a pipe: %s", strerror(errno));
    }
    for (int i = 0; i < 2; i++) {
        fcntl(ends[i], F_SETFD, FD_CLOEXEC);
        fcntl(ends[i], F_SETFL, O_NONBLOCK);
    }
    p->wake_read = ends[0];
    p->wake_write = ends[1];
    return WARMPATH_KV_OK;
}

/* Starts the thread, with all signals blocked: they belong to the engine's threads. */
static int start(warmpath_kv_publisher *p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&p->thread, NULL, run, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? WARMPATH_KV_OK : wp_fail(WARMPATH_KV_SYSTEM, "start a thread: %s", strerror(error));
}

static void destroy(warmpath_kv_publisher *p) {
    while (p->first < p->next) {
        drop_first(p);
    }
    if (p->wake_read >= 0) {
        close(p->wake_read);
        close(p->wake_write);
    }
    pthread_mutex_destroy(&p->lock);
    free(p->ring);
    free(p->topic);
    free(p);
}

int warmpath_kv_init(const warmpath_kv_config *config, warmpath_kv_publisher **publisher) {
    if (publisher == NULL) {
        return wp_fail(WARMPATH_KV_INVALID, "publisher is NULL");
    }
    *publisher = NULL;
    if (config == NULL) {
        return wp_fail(WARMPATH_KV_INVALID, "config is NULL");
    }
    warmpath_kv_publisher *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return wp_fail(WARMPATH_KV_NO_MEMORY, "no memory for a publisher");
    }
    p->pid = getpid();
    p->wake_read = p->wake_write = -1;
    pthread_mutex_init(&p->lock, NULL);
    warmpath_kv_config c;
    int status = check_config(config, &c, p);
    if (status == WARMPATH_KV_OK) {
        p->topic = calloc(p->topic_size + 1, 1);
        if (p->topic != NULL && p->topic_size > 0) {
            memcpy(p->topic, c.topic, p->topic_size);
        }
        p->context = zmq_ctx_new();
        if (p->topic == NULL || p->context == NULL) {
            status = wp_fail(WARMPATH_KV_NO_MEMORY, "no memory for a publisher");
        }
    }
    if (status == WARMPATH_KV_OK) {
        status = open_socket(p, ZMQ_PUB, c.connect != 0, c.hwm != 0 ? c.hwm : 100000, p->endpoint, &p->pub);
    }
    if (status == WARMPATH_KV_OK && c.replay_endpoint != NULL) {
        status = open_socket(p, ZMQ_ROUTER, false, 1000, p->replay_endpoint, &p->router);
    }
    if (status == WARMPATH_KV_OK) {
        status = open_pipe(p);
    }
    if (status == WARMPATH_KV_OK) {
        status = start(p);
    }
    if (status != WARMPATH_KV_OK) {
        if (p->pub != NULL) {
            zmq_close(p->pub);
        }
        if (p->router != NULL) {
            zmq_close(p->router);
        }
        if (p->context != NULL) {
            zmq_ctx_term(p->context);
        }
        destroy(p);
        return status;
    }
    *publisher = p;
    return WARMPATH_KV_OK;
}

int warmpath_kv_shutdown(warmpath_kv_publisher *p, int timeout_ms) {
    if (p == NULL) {
        return WARMPATH_KV_OK;
    }
    int status = check_process(p);
    if (status != WARMPATH_KV_OK) {
        return status;
    }
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    p->deadline = now_ms() + (timeout_ms > 0 ? timeout_ms : 0);
    p->awake = false; /* the thread must look again, even if it was told before */
    wake(p);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    destroy(p);
    return WARMPATH_KV_OK;
}
