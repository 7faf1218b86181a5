/* What the files of the library share. */
#ifndef WARMPATH_KV_INTERNAL_H
#define WARMPATH_KV_INTERNAL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "warmpath_kv.h"

/* The bounds are those of the readers: a larger value would make a reader skip the event or cut the connection. */
#define MAX_BLOCK_SIZE 65536u
#define MAX_GROUP 65536
#define MAX_TEXT 1024u
#define MAX_DIGEST 64u
#define MIN_DIGEST 8u
#define MAX_PAYLOAD ((size_t)(64u << 20) - 1024u)

/* A payload. ZeroMQ and the replay buffer share it. */
struct payload {
    atomic_int refs;
    size_t size;
    uint8_t data[];
};

void wp_release(struct payload *payload);

/* Encodes a batch into a new payload with one reference. */
int wp_encode(const warmpath_kv_event *events, size_t num_events, double ts, uint32_t dp_rank, uint32_t kv_block_size,
              struct payload **out);

/* Keeps the details of an error for this thread, and returns the status. */
int wp_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the length of a text, or fails if it is too long or not UTF-8. NULL is "". */
int wp_text(const char *name, const char *text, size_t *length);

#endif
