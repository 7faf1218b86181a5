/* From events to the bytes of a message: the checks of events, and vLLM's map form of them in MessagePack. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

void wp_release(struct payload *payload) {
    if (payload != NULL && atomic_fetch_sub_explicit(&payload->refs, 1, memory_order_acq_rel) == 1) {
        free(payload);
    }
}

/* The writer. After a failure it writes nothing more; status says why it failed. */
struct writer {
    struct payload *payload;
    size_t capacity;
    int status;
};

static uint8_t *room(struct writer *w, size_t n) {
    if (w->status != WARMPATH_KV_OK) {
        return NULL;
    }
    size_t size = w->payload == NULL ? 0 : w->payload->size;
    if (n > MAX_PAYLOAD || size + n > MAX_PAYLOAD) {
        w->status = wp_fail(WARMPATH_KV_TOO_LARGE, "the batch has more than %zu bytes: publish its events in several batches",
                            MAX_PAYLOAD);
        return NULL;
    }
    if (size + n > w->capacity) {
        size_t capacity = w->capacity < 256 ? 256 : w->capacity;
        while (capacity < size + n) {
            capacity *= 2;
        }
        struct payload *grown = realloc(w->payload, sizeof(struct payload) + capacity);
        if (grown == NULL) {
            w->status = wp_fail(WARMPATH_KV_NO_MEMORY, "no memory for a batch of %zu bytes", capacity);
            return NULL;
        }
        if (w->payload == NULL) {
            atomic_init(&grown->refs, 1);
            grown->size = 0;
        }
        w->payload = grown;
        w->capacity = capacity;
    }
    uint8_t *at = w->payload->data + size;
    w->payload->size = size + n;
    return at;
}

/* Writes one byte and then the last n bytes of a number, big-endian. */
static void number(struct writer *w, uint8_t head, uint64_t v, size_t n) {
    uint8_t *at = room(w, 1 + n);
    if (at == NULL) {
        return;
    }
    at[0] = head;
    for (size_t i = n; i > 0; i--) {
        at[i] = (uint8_t)v;
        v >>= 8;
    }
}

static void put_unsigned(struct writer *w, uint64_t v) {
    if (v < 0x80) {
        number(w, (uint8_t)v, 0, 0);
    } else if (v <= UINT8_MAX) {
        number(w, 0xcc, v, 1);
    } else if (v <= UINT16_MAX) {
        number(w, 0xcd, v, 2);
    } else if (v <= UINT32_MAX) {
        number(w, 0xce, v, 4);
    } else {
        number(w, 0xcf, v, 8);
    }
}

static void put_integer(struct writer *w, int64_t v) {
    if (v >= 0) {
        put_unsigned(w, (uint64_t)v);
    } else if (v >= -32) {
        number(w, (uint8_t)v, 0, 0);
    } else if (v >= INT8_MIN) {
        number(w, 0xd0, (uint64_t)v, 1);
    } else if (v >= INT16_MIN) {
        number(w, 0xd1, (uint64_t)v, 2);
    } else {
        number(w, 0xd2, (uint64_t)v, 4); /* checks bound all negative numbers to 32 bits */
    }
}

static void put_null(struct writer *w) { number(w, 0xc0, 0, 0); }

static void put_array(struct writer *w, size_t n) {
    if (n < 16) {
        number(w, (uint8_t)(0x90 | n), 0, 0);
    } else if (n <= UINT16_MAX) {
        number(w, 0xdc, n, 2);
    } else {
        number(w, 0xdd, n, 4);
    }
}

static void put_map(struct writer *w, size_t n) { number(w, (uint8_t)(0x80 | n), 0, 0); } /* at most 15 */

static void put_raw(struct writer *w, const void *data, size_t n) {
    uint8_t *at = room(w, n);
    if (at != NULL && n > 0) {
        memcpy(at, data, n);
    }
}

static void put_text(struct writer *w, const char *text) {
    size_t n = strlen(text);
    if (n < 32) {
        number(w, (uint8_t)(0xa0 | n), 0, 0);
    } else if (n <= UINT8_MAX) {
        number(w, 0xd9, n, 1);
    } else {
        number(w, 0xda, n, 2); /* at most MAX_TEXT */
    }
    put_raw(w, text, n);
}

static void put_bytes(struct writer *w, warmpath_kv_bytes b) {
    number(w, 0xc4, b.size, 1); /* at most MAX_DIGEST */
    put_raw(w, b.data, b.size);
}

static bool given(const char *text) { return text != NULL && text[0] != '\0'; }

static void put_optional(struct writer *w, const char *text) {
    if (given(text)) {
        put_text(w, text);
    } else {
        put_null(w);
    }
}

static void put_double(struct writer *w, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    number(w, 0xcb, bits, 8);
}

/* Returns the length of the UTF-8 sequence at s, 0 if it is none. The text ends with a zero byte. */
static size_t sequence(const uint8_t *s) {
    if (s[0] < 0x80) {
        return 1;
    }
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] >= 0xa0;
    bool beyond = s[0] == 0xf4 && s[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : n;
}

int wp_text(const char *name, const char *text, size_t *length) {
    size_t n = 0;
    while (text != NULL && text[n] != '\0') {
        size_t step = sequence((const uint8_t *)text + n);
        if (step == 0) {
            return wp_fail(WARMPATH_KV_INVALID, "%s is not UTF-8", name);
        }
        n += step;
        if (n > MAX_TEXT) {
            return wp_fail(WARMPATH_KV_INVALID, "%s has more than %u bytes", name, MAX_TEXT);
        }
    }
    if (length != NULL) {
        *length = n;
    }
    return WARMPATH_KV_OK;
}

enum form { FORM_UNKNOWN, FORM_NUMBERS, FORM_DIGESTS };

static int check_digest(const warmpath_kv_bytes *d) {
    if (d->data == NULL || d->size < MIN_DIGEST || d->size > MAX_DIGEST) {
        return wp_fail(WARMPATH_KV_INVALID, "a hash of %zu bytes is not within %u..%u", d->size, MIN_DIGEST, MAX_DIGEST);
    }
    return WARMPATH_KV_OK;
}

static int check_hashes(const uint64_t *numbers, const warmpath_kv_bytes *digests, size_t n, enum form *form) {
    if (n == 0) {
        return WARMPATH_KV_OK;
    }
    if ((numbers == NULL) == (digests == NULL)) {
        return wp_fail(WARMPATH_KV_INVALID, "set one of block_hashes and block_digests");
    }
    enum form own = numbers != NULL ? FORM_NUMBERS : FORM_DIGESTS;
    if (*form != FORM_UNKNOWN && *form != own) {
        return wp_fail(WARMPATH_KV_INVALID, "hashes are numbers and byte strings: use one form for all events of a batch");
    }
    *form = own;
    for (size_t i = 0; digests != NULL && i < n; i++) {
        int status = check_digest(&digests[i]);
        if (status != WARMPATH_KV_OK) {
            return status;
        }
    }
    return WARMPATH_KV_OK;
}

/* The media that routers know. Capital letters count. */
static const char *const media[] = {"GPU", "CPU", "CPU_PINNED", "DISK", "FS", "STORAGE", "OBJ", "EXTERNAL", "SHARED_STORAGE"};

static bool known_medium(const char *medium) {
    for (size_t i = 0; i < sizeof media / sizeof media[0]; i++) {
        if (strcmp(medium, media[i]) == 0) {
            return true;
        }
    }
    return false;
}

static int check_place(const char *medium, const int32_t *group) {
    if (group != NULL && (*group < 0 || *group > MAX_GROUP)) {
        return wp_fail(WARMPATH_KV_INVALID, "group_idx %d is not within 0..%d", (int)*group, MAX_GROUP);
    }
    int status = wp_text("medium", medium, NULL);
    if (status == WARMPATH_KV_OK && given(medium) && !known_medium(medium)) {
        return wp_fail(WARMPATH_KV_INVALID,
                       "medium \"%.60s\" is not known to routers: use one of GPU, CPU, CPU_PINNED, DISK, FS, STORAGE, OBJ, "
                       "EXTERNAL, SHARED_STORAGE, in capital letters",
                       medium);
    }
    return status;
}

static bool full_attention(const char *kind) {
    return !given(kind) || strcmp(kind, "full_attention") == 0 || strcmp(kind, "mla_attention") == 0 ||
           strcmp(kind, "sink_full_attention") == 0;
}

static bool aligned(const warmpath_kv_stored *s, uint32_t size) {
    return s->num_tokens > 0 && size > 0 && s->num_tokens / size == s->num_blocks && s->num_tokens % size == 0;
}

static int check_tokens(const warmpath_kv_stored *s, uint32_t size) {
    if (size > MAX_BLOCK_SIZE) {
        return wp_fail(WARMPATH_KV_INVALID, "block size %u is not within 0..%u", (unsigned)size, MAX_BLOCK_SIZE);
    }
    if (s->num_tokens == 0) {
        return s->num_blocks > 0 ? WARMPATH_KV_OK
                                 : wp_fail(WARMPATH_KV_INVALID, "a stored event without token_ids and block_hashes");
    }
    if (s->token_ids == NULL) {
        return wp_fail(WARMPATH_KV_INVALID, "token_ids is NULL");
    }
    if (size == 0) {
        return wp_fail(WARMPATH_KV_INVALID, "no block size: set kv_block_size of the publisher, or block_size");
    }
    if (!full_attention(s->kv_cache_spec_kind)) {
        return WARMPATH_KV_OK;
    }
    if (s->num_blocks == 0) {
        return wp_fail(WARMPATH_KV_INVALID, "a stored event without block_hashes");
    }
    if (!aligned(s, size)) {
        return wp_fail(WARMPATH_KV_INVALID, "%zu token_ids for %zu blocks of %u tokens: only full blocks can be announced",
                       s->num_tokens, s->num_blocks, (unsigned)size);
    }
    return WARMPATH_KV_OK;
}

static int check_extra_keys(const warmpath_kv_stored *s) {
    if (s->num_extra_keys == 0) {
        return WARMPATH_KV_OK;
    }
    if (s->extra_keys == NULL) {
        return wp_fail(WARMPATH_KV_INVALID, "extra_keys is NULL");
    }
    if (s->num_tokens == 0) {
        return wp_fail(WARMPATH_KV_INVALID, "extra_keys without token_ids");
    }
    size_t last = 0;
    for (size_t i = 0; i < s->num_extra_keys; i++) {
        const warmpath_kv_extra_key *k = &s->extra_keys[i];
        if (k->block >= s->num_blocks || k->block < last) {
            return wp_fail(WARMPATH_KV_INVALID, "extra_keys[%zu] is for block %zu of %zu, after one for block %zu", i, k->block,
                           s->num_blocks, last);
        }
        last = k->block;
        if (k->digest.data != NULL) {
            if (k->digest.size < 1 || k->digest.size > MAX_DIGEST || given(k->identifier)) {
                return wp_fail(WARMPATH_KV_INVALID, "extra_keys[%zu] has an identifier, or a digest that has not 1 to %u bytes", i,
                               MAX_DIGEST);
            }
        } else if (!given(k->identifier)) {
            return wp_fail(WARMPATH_KV_INVALID, "extra_keys[%zu] has neither an identifier nor a digest", i);
        }
        if (k->offset < -INT32_MAX || k->offset > INT32_MAX) {
            return wp_fail(WARMPATH_KV_INVALID, "the offset %lld of an extra key is not within 32 bits", (long long)k->offset);
        }
        int status = wp_text("an extra key", k->identifier, NULL);
        if (status != WARMPATH_KV_OK) {
            return status;
        }
    }
    return WARMPATH_KV_OK;
}

static int check_stored(const warmpath_kv_stored *s, uint32_t size, enum form *form) {
    int status = check_hashes(s->block_hashes, s->block_digests, s->num_blocks, form);
    if (status == WARMPATH_KV_OK && s->parent_hash != NULL && s->parent_digest != NULL) {
        status = wp_fail(WARMPATH_KV_INVALID, "set one of parent_hash and parent_digest");
    } else if (status == WARMPATH_KV_OK && s->parent_digest != NULL) {
        status = check_digest(s->parent_digest);
    }
    if (status == WARMPATH_KV_OK && (s->parent_hash != NULL || s->parent_digest != NULL)) {
        enum form own = s->parent_hash != NULL ? FORM_NUMBERS : FORM_DIGESTS;
        if (*form != FORM_UNKNOWN && *form != own) {
            status = wp_fail(WARMPATH_KV_INVALID, "the parent has another form than the hashes: use numbers or byte strings for all");
        }
        *form = own;
    }
    if (status == WARMPATH_KV_OK) {
        status = check_tokens(s, size);
    }
    if (status == WARMPATH_KV_OK && s->lora_id != NULL && *s->lora_id < 0) {
        status = wp_fail(WARMPATH_KV_INVALID, "lora_id %lld is negative", (long long)*s->lora_id);
    }
    if (status == WARMPATH_KV_OK && s->kv_cache_spec_sliding_window < 0) {
        status = wp_fail(WARMPATH_KV_INVALID, "kv_cache_spec_sliding_window %d is negative", (int)s->kv_cache_spec_sliding_window);
    }
    if (status == WARMPATH_KV_OK) {
        status = wp_text("lora_name", s->lora_name, NULL);
    }
    if (status == WARMPATH_KV_OK) {
        status = wp_text("cache_salt", s->cache_salt, NULL);
    }
    if (status == WARMPATH_KV_OK) {
        status = wp_text("kv_cache_spec_kind", s->kv_cache_spec_kind, NULL);
    }
    if (status == WARMPATH_KV_OK) {
        status = check_extra_keys(s);
    }
    return status == WARMPATH_KV_OK ? check_place(s->medium, s->group_idx) : status;
}

static int check(const warmpath_kv_event *e, uint32_t size, enum form *form) {
    if ((e->stored != NULL) + (e->removed != NULL) + (e->cleared != 0) != 1) {
        return wp_fail(WARMPATH_KV_INVALID, "set exactly one of stored, removed and cleared");
    }
    if (e->stored != NULL) {
        return check_stored(e->stored, e->stored->block_size != 0 ? e->stored->block_size : size, form);
    }
    if (e->removed != NULL) {
        const warmpath_kv_removed *r = e->removed;
        if (r->num_blocks == 0) {
            return wp_fail(WARMPATH_KV_INVALID, "a removed event without block_hashes");
        }
        int status = check_hashes(r->block_hashes, r->block_digests, r->num_blocks, form);
        return status == WARMPATH_KV_OK ? check_place(r->medium, r->group_idx) : status;
    }
    return WARMPATH_KV_OK;
}

static void put_hashes(struct writer *w, const uint64_t *numbers, const warmpath_kv_bytes *digests, size_t n) {
    put_text(w, "block_hashes");
    put_array(w, n);
    for (size_t i = 0; i < n && w->status == WARMPATH_KV_OK; i++) {
        if (numbers != NULL) {
            put_unsigned(w, numbers[i]);
        } else {
            put_bytes(w, digests[i]);
        }
    }
}

static void put_medium(struct writer *w, const char *medium) {
    put_text(w, "medium");
    put_text(w, given(medium) ? medium : "GPU");
}

static void put_group(struct writer *w, const int32_t *group) {
    if (group != NULL) {
        put_text(w, "group_idx");
        put_integer(w, *group);
    }
}

/* Writes, for each block, null or a list of the adapter's name, items, the salt of a prompt's first block, and digests. */
static void put_extra_keys(struct writer *w, const warmpath_kv_stored *s, bool root) {
    put_text(w, "extra_keys");
    put_array(w, s->num_blocks);
    size_t from = 0;
    for (size_t i = 0; i < s->num_blocks && w->status == WARMPATH_KV_OK; i++) {
        size_t to = from;
        while (to < s->num_extra_keys && s->extra_keys[to].block == i) {
            to++;
        }
        bool lora = given(s->lora_name), salted = i == 0 && root && given(s->cache_salt);
        size_t n = to - from + (lora ? 1 : 0) + (salted ? 1 : 0);
        if (n == 0) {
            put_null(w);
            continue;
        }
        put_array(w, n);
        if (lora) {
            put_text(w, s->lora_name);
        }
        for (size_t k = from; k < to; k++) {
            if (s->extra_keys[k].digest.data == NULL) {
                put_array(w, 2);
                put_text(w, s->extra_keys[k].identifier);
                put_integer(w, s->extra_keys[k].offset);
            }
        }
        if (salted) {
            put_text(w, s->cache_salt);
        }
        for (size_t k = from; k < to; k++) {
            if (s->extra_keys[k].digest.data != NULL) {
                put_bytes(w, s->extra_keys[k].digest);
            }
        }
        from = to;
    }
}

static void put_stored(struct writer *w, const warmpath_kv_stored *s, uint32_t size) {
    bool fits = aligned(s, size), keys = fits || s->num_extra_keys > 0;
    bool root = fits && s->parent_hash == NULL && s->parent_digest == NULL;
    bool kind = given(s->kv_cache_spec_kind), window = s->kv_cache_spec_sliding_window > 0;
    put_map(w, 8u + (keys ? 1 : 0) + (s->group_idx != NULL ? 1 : 0) + (kind ? 1 : 0) + (window ? 1 : 0));
    put_text(w, "type");
    put_text(w, "BlockStored");
    put_hashes(w, s->block_hashes, s->block_digests, s->num_blocks);
    put_text(w, "parent_block_hash");
    if (s->parent_hash != NULL) {
        put_unsigned(w, *s->parent_hash);
    } else if (s->parent_digest != NULL) {
        put_bytes(w, *s->parent_digest);
    } else {
        put_null(w);
    }
    put_text(w, "token_ids");
    put_array(w, s->num_tokens);
    for (size_t i = 0; i < s->num_tokens && w->status == WARMPATH_KV_OK; i++) {
        put_unsigned(w, s->token_ids[i]);
    }
    put_text(w, "block_size");
    put_unsigned(w, size);
    put_text(w, "lora_id");
    if (s->lora_id != NULL) {
        put_integer(w, *s->lora_id);
    } else {
        put_null(w);
    }
    put_medium(w, s->medium);
    put_text(w, "lora_name");
    put_optional(w, s->lora_name);
    if (keys) {
        put_extra_keys(w, s, root);
    }
    put_group(w, s->group_idx);
    if (kind) {
        put_text(w, "kv_cache_spec_kind");
        put_text(w, s->kv_cache_spec_kind);
    }
    if (window) {
        put_text(w, "kv_cache_spec_sliding_window");
        put_integer(w, s->kv_cache_spec_sliding_window);
    }
}

static void put_event(struct writer *w, const warmpath_kv_event *e, uint32_t size) {
    if (e->stored != NULL) {
        put_stored(w, e->stored, e->stored->block_size != 0 ? e->stored->block_size : size);
    } else if (e->removed != NULL) {
        put_map(w, 3u + (e->removed->group_idx != NULL ? 1 : 0));
        put_text(w, "type");
        put_text(w, "BlockRemoved");
        put_hashes(w, e->removed->block_hashes, e->removed->block_digests, e->removed->num_blocks);
        put_medium(w, e->removed->medium);
        put_group(w, e->removed->group_idx);
    } else {
        put_map(w, 1);
        put_text(w, "type");
        put_text(w, "AllBlocksCleared");
    }
}

int wp_encode(const warmpath_kv_event *events, size_t num_events, double ts, uint32_t dp_rank, uint32_t kv_block_size,
              struct payload **out) {
    *out = NULL;
    if (events == NULL || num_events == 0) {
        return wp_fail(WARMPATH_KV_INVALID, "a batch without events");
    }
    enum form form = FORM_UNKNOWN;
    for (size_t i = 0; i < num_events; i++) {
        int status = check(&events[i], kv_block_size, &form);
        if (status != WARMPATH_KV_OK) {
            return status;
        }
    }
    struct writer w = {NULL, 0, WARMPATH_KV_OK};
    put_array(&w, 3);
    put_double(&w, ts);
    put_array(&w, num_events);
    for (size_t i = 0; i < num_events && w.status == WARMPATH_KV_OK; i++) {
        put_event(&w, &events[i], kv_block_size);
    }
    put_unsigned(&w, dp_rank);
    if (w.status != WARMPATH_KV_OK) {
        free(w.payload);
        return w.status;
    }
    /* The replay buffer keeps the payload for long, so the unused memory goes back. */
    struct payload *fitted = realloc(w.payload, sizeof(struct payload) + w.payload->size);
    *out = fitted != NULL ? fitted : w.payload;
    return WARMPATH_KV_OK;
}

int warmpath_kv_encode(const warmpath_kv_event *events, size_t num_events, double ts, uint32_t dp_rank,
                       uint32_t kv_block_size, uint8_t **payload, size_t *size) {
    if (payload == NULL || size == NULL) {
        return wp_fail(WARMPATH_KV_INVALID, "payload or size is NULL");
    }
    *payload = NULL;
    *size = 0;
    struct payload *p;
    int status = wp_encode(events, num_events, ts, dp_rank, kv_block_size, &p);
    if (status != WARMPATH_KV_OK) {
        return status;
    }
    *payload = malloc(p->size);
    if (*payload == NULL) {
        wp_release(p);
        return wp_fail(WARMPATH_KV_NO_MEMORY, "no memory for a payload");
    }
    memcpy(*payload, p->data, p->size);
    *size = p->size;
    wp_release(p);
    return WARMPATH_KV_OK;
}

void warmpath_kv_free(uint8_t *payload) { free(payload); }
