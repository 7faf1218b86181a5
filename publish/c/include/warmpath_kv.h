/*
 * Publish the KV cache events of an inference engine of your own, in the wire format of vLLM 0.33: ZeroMQ messages of
 * the topic, an 8-byte big-endian number and a MessagePack batch, and the replay protocol of vLLM's ZmqEventPublisher.
 *
 *     warmpath_kv_config config = WARMPATH_KV_CONFIG_INIT;
 *     config.endpoint = "tcp://0.0.0.0:5557";
 *     config.replay_endpoint = "tcp://0.0.0.0:5657";
 *     config.kv_block_size = 16;
 *     warmpath_kv_publisher *publisher;
 *     if (warmpath_kv_init(&config, &publisher) != WARMPATH_KV_OK) die(warmpath_kv_last_error());
 *     warmpath_kv_stored stored = {.token_ids = tokens, .num_tokens = 32, .block_hashes = hashes, .num_blocks = 2};
 *     warmpath_kv_event_publish_stored(publisher, &stored, NULL);
 *     warmpath_kv_shutdown(publisher, 1000);
 *
 * All functions but warmpath_kv_shutdown may be called from any thread at any time. Publishing never waits for the
 * network: a thread of the publisher sends. After a fork, a publisher belongs to the parent: in the child, functions
 * with it return WARMPATH_KV_FORKED and touch nothing.
 *
 * No function may be called in a signal handler, not even warmpath_kv_shutdown: none is async-signal-safe. Set a flag
 * in the handler, and call the function in a thread.
 *
 * Every structure that is filled with zeros has the default of each field. Texts are UTF-8, of at most 1024 bytes.
 * NULL and "" both mean that there is none. The library copies what it needs: it keeps no pointer after a call.
 */
#ifndef WARMPATH_KV_H
#define WARMPATH_KV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WARMPATH_KV_API __attribute__((visibility("default")))
#else
#define WARMPATH_KV_API
#endif

#define WARMPATH_KV_VERSION "0.1.0"

/* What functions return. warmpath_kv_last_error has the details. */
enum {
    WARMPATH_KV_OK = 0,
    WARMPATH_KV_INVALID = -1,   /* an argument is wrong; nothing was published */
    WARMPATH_KV_TOO_LARGE = -2, /* a batch is larger than 64 MiB: publish its events in several batches */
    WARMPATH_KV_NO_MEMORY = -3, /* nothing was published */
    WARMPATH_KV_ENDPOINT = -4,  /* an endpoint cannot be opened */
    WARMPATH_KV_FORKED = -5,    /* the publisher belongs to the parent of this process */
    WARMPATH_KV_SYSTEM = -6     /* the system refused a thread or a pipe */
};

typedef struct warmpath_kv_publisher warmpath_kv_publisher;

/* The settings of a publisher. Begin with WARMPATH_KV_CONFIG_INIT. */
typedef struct warmpath_kv_config {
    size_t size; /* sizeof(warmpath_kv_config): later versions add fields at the end */
    /* PUB endpoint, such as "tcp://127.0.0.1:5557". Required. Port * is any free port: see warmpath_kv_endpoint. */
    const char *endpoint;
    /* ROUTER endpoint to bind; NULL: no replay. A router needs it to know a cache exactly. */
    const char *replay_endpoint;
    const char *topic;      /* first frame of each message; subscribers choose messages by its beginning */
    uint32_t kv_block_size; /* tokens in a block, for events that do not say it */
    uint32_t dp_rank;       /* data-parallel rank: in the batches, and added to the ports of both endpoints, as vLLM does */
    int connect;            /* not 0: connect to endpoint instead of binding it, for a router that binds */
    size_t buffer_steps;    /* messages that are kept for replay; 0: 10,000 */
    size_t buffer_bytes;    /* bytes of all messages that are kept for replay or wait for the publisher's thread; 0:
                               256 MiB; the last message is always kept */
    size_t max_queue_size;  /* messages that wait for the publisher's thread; 0: 100,000 */
    int hwm;                /* messages that wait in ZeroMQ for one subscriber; 0: 100,000. buffer_bytes does not bound
                               them: each subscriber that does not read adds the memory of up to hwm messages. */
} warmpath_kv_config;

#define WARMPATH_KV_CONFIG_INIT {sizeof(warmpath_kv_config), NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0}

/* A byte string. */
typedef struct warmpath_kv_bytes {
    const uint8_t *data;
    size_t size;
} warmpath_kv_bytes;

/* A key of a block besides its tokens: a multimodal item, or a digest of prompt embeddings. */
typedef struct warmpath_kv_extra_key {
    size_t block;           /* index of the block in the event; the keys of an event are in the order of their blocks */
    const char *identifier; /* name of the item */
    int64_t offset;         /* position of the item's first token relative to the block's; negative: in an earlier block */
    warmpath_kv_bytes digest; /* digest of the embeddings, 1 to 64 bytes; then there is no identifier */
} warmpath_kv_extra_key;

/* Blocks are cached. Hashes are numbers or byte strings of 8 to 64 bytes: all events of a batch have one form. */
typedef struct warmpath_kv_stored {
    const uint32_t *token_ids; /* tokens of the blocks, without those of earlier blocks; none: a placeholder, which says
                                  that blocks which an earlier event described are now also on medium */
    size_t num_tokens;
    uint32_t block_size; /* 0: kv_block_size of the publisher */
    const uint64_t *block_hashes;
    const warmpath_kv_bytes *block_digests; /* in place of block_hashes */
    size_t num_blocks;
    const uint64_t *parent_hash; /* hash of the block before the first token; NULL: the tokens begin a prompt */
    const warmpath_kv_bytes *parent_digest;
    const char *lora_name;  /* adapter with which the blocks were computed */
    const int64_t *lora_id; /* its number, which vLLM still sends */
    const char *cache_salt; /* part of a prompt's first block: the event of a later block does not need it */
    const warmpath_kv_extra_key *extra_keys;
    size_t num_extra_keys;
    const char *medium; /* where the blocks are: "GPU" (the default), "CPU", "STORAGE" or another name that routers
                           know (see the README) */
    const int32_t *group_idx;       /* cache group of a model with several */
    const char *kv_cache_spec_kind; /* kind of the group, such as "full_attention" or "sliding_window" */
    int32_t kv_cache_spec_sliding_window; /* tokens */
    const void *reserved[4];              /* zero */
} warmpath_kv_stored;

/* One copy of each block is gone. */
typedef struct warmpath_kv_removed {
    const uint64_t *block_hashes;
    const warmpath_kv_bytes *block_digests; /* in place of block_hashes */
    size_t num_blocks;
    const char *medium;
    const int32_t *group_idx;
    const void *reserved[4]; /* zero */
} warmpath_kv_removed;

/* One event of a batch: exactly one of the fields is set. */
typedef struct warmpath_kv_event {
    const warmpath_kv_stored *stored;
    const warmpath_kv_removed *removed;
    int cleared; /* every block on the GPU is gone; blocks on other media stay */
} warmpath_kv_event;

typedef struct warmpath_kv_stats {
    uint64_t published; /* published messages, which is also the next sequence number */
    uint64_t dropped;   /* messages that were not sent because the queue was full; a replay may have them */
    uint64_t queued;    /* messages that wait to be sent */
    uint64_t kept;      /* messages that a replay can have */
    uint64_t replays;   /* replay requests that were answered, or are being answered */
    uint64_t replayed;  /* messages in the answers to replay requests */
    uint64_t malformed; /* replay requests that were not understood */
    uint64_t refused;   /* replay requests beyond those that can be answered at the same time, those that a newer one of
                           the same reader replaced before their answer began, and replays given up */
} warmpath_kv_stats;

/* Opens a publisher and starts its thread. On an error *publisher is NULL. */
WARMPATH_KV_API int warmpath_kv_init(const warmpath_kv_config *config, warmpath_kv_publisher **publisher);

/*
 * Sends what is queued, for at most timeout_ms, and frees the publisher. No other call may use it at the same time or
 * later. In a fork of the process that made it, it does nothing and returns WARMPATH_KV_FORKED. NULL is allowed.
 */
WARMPATH_KV_API int warmpath_kv_shutdown(warmpath_kv_publisher *publisher, int timeout_ms);

/* The endpoints with their real ports. They are valid until warmpath_kv_shutdown. NULL: no replay. */
WARMPATH_KV_API const char *warmpath_kv_endpoint(const warmpath_kv_publisher *publisher);
WARMPATH_KV_API const char *warmpath_kv_replay_endpoint(const warmpath_kv_publisher *publisher);

/*
 * Publish one event, or the events of a batch in one message. Readers apply the events of a batch in their order. *seq,
 * unless seq is NULL, becomes the number of the message. If an event is wrong, nothing is published.
 */
WARMPATH_KV_API int warmpath_kv_event_publish_stored(warmpath_kv_publisher *publisher, const warmpath_kv_stored *stored,
                                                     uint64_t *seq);
WARMPATH_KV_API int warmpath_kv_event_publish_removed(warmpath_kv_publisher *publisher,
                                                      const warmpath_kv_removed *removed, uint64_t *seq);
WARMPATH_KV_API int warmpath_kv_event_publish_cleared(warmpath_kv_publisher *publisher, uint64_t *seq);
WARMPATH_KV_API int warmpath_kv_event_publish_batch(warmpath_kv_publisher *publisher, const warmpath_kv_event *events,
                                                    size_t num_events, uint64_t *seq);

WARMPATH_KV_API int warmpath_kv_get_stats(warmpath_kv_publisher *publisher, warmpath_kv_stats *stats);

/*
 * Encodes a batch as the payload of a message, for callers that send it by other means. ts is in Unix seconds. The
 * caller frees *payload with warmpath_kv_free.
 */
WARMPATH_KV_API int warmpath_kv_encode(const warmpath_kv_event *events, size_t num_events, double ts, uint32_t dp_rank,
                                       uint32_t kv_block_size, uint8_t **payload, size_t *size);
WARMPATH_KV_API void warmpath_kv_free(uint8_t *payload);

#define WARMPATH_KV_HASH_SIZE 32

/*
 * Computes the hashes of the full blocks of tokens, for engines that have no hashes of their own. hashes has room for
 * num_tokens / block_size of them. The chain is vLLM's sha256_cbor with its default seed, and with an adapter's path of
 * "" (vLLM 0.32, v1/core/kv_cache_utils.py): a hash is the SHA-256 of the canonical CBOR of the list of the parent's
 * hash, the tokens, and the keys. The keys are null, or a list of ["lora", lora_name, ""] in each block of an adapter,
 * and of ["cache_salt", cache_salt] in the first block of a prompt. parent is the hash of the block before the tokens;
 * NULL: they begin a prompt. The salt counts only then.
 */
WARMPATH_KV_API int warmpath_kv_hash_blocks(const uint32_t *token_ids, size_t num_tokens, uint32_t block_size,
                                            const uint8_t *parent, const char *lora_name, const char *cache_salt,
                                            uint8_t (*hashes)[WARMPATH_KV_HASH_SIZE]);

/* The last 8 bytes of a hash as a number. Routers take the two forms of a hash for the same hash. */
WARMPATH_KV_API uint64_t warmpath_kv_hash_number(const uint8_t *hash);

/* The meaning of a status, and the details of the last error in this thread. */
WARMPATH_KV_API const char *warmpath_kv_strerror(int status);
WARMPATH_KV_API const char *warmpath_kv_last_error(void);
WARMPATH_KV_API const char *warmpath_kv_version(void);

#ifdef __cplusplus
}
#endif
#endif
