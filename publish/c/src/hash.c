/* A chain of block hashes: SHA-256 (FIPS 180-4) of canonical CBOR (RFC 8949). */
#include <string.h>

#include "internal.h"

struct sha256 {
    uint32_t state[8];
    uint64_t size; /* bytes so far */
    uint8_t block[64];
};

static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t v, unsigned n) { return v >> n | v << (32 - n); }

static void compress(struct sha256 *h) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *b = h->block + 4 * i;
        w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, h->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
        uint32_t t = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + rounds[i] + w[i];
        uint32_t a = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
        uint32_t u = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += t;
        s[0] = t + u;
    }
    for (int i = 0; i < 8; i++) {
        h->state[i] += s[i];
    }
}

static void begin(struct sha256 *h) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(h->state, start, sizeof start);
    h->size = 0;
}

static void add(struct sha256 *h, const void *data, size_t n) {
    const uint8_t *b = data;
    while (n > 0) {
        size_t used = (size_t)(h->size % sizeof h->block), step = sizeof h->block - used;
        step = step < n ? step : n;
        memcpy(h->block + used, b, step);
        h->size += step;
        b += step;
        n -= step;
        if (h->size % sizeof h->block == 0) {
            compress(h);
        }
    }
}

static void finish(struct sha256 *h, uint8_t digest[32]) {
    uint8_t length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (uint8_t)(h->size * 8 >> (56 - 8 * i));
    }
    add(h, "\x80", 1);
    while (h->size % sizeof h->block != 56) {
        add(h, "", 1);
    }
    add(h, length, sizeof length);
    for (int i = 0; i < 32; i++) {
        digest[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

enum { CBOR_UNSIGNED = 0, CBOR_BYTES = 2, CBOR_TEXT = 3, CBOR_ARRAY = 4 };

static void cbor_head(struct sha256 *h, unsigned major, uint32_t n) {
    uint8_t b[5];
    size_t width = n < 24 ? 0 : n <= UINT8_MAX ? 1 : n <= UINT16_MAX ? 2 : 4;
    b[0] = (uint8_t)(major << 5 | (width == 0 ? n : width == 1 ? 24u : width == 2 ? 25u : 26u));
    for (size_t i = width; i > 0; i--) {
        b[i] = (uint8_t)n;
        n >>= 8;
    }
    add(h, b, 1 + width);
}

static void cbor_text(struct sha256 *h, const char *text) {
    size_t n = strlen(text);
    cbor_head(h, CBOR_TEXT, (uint32_t)n);
    add(h, text, n);
}

int warmpath_kv_hash_blocks(const uint32_t *token_ids, size_t num_tokens, uint32_t block_size, const uint8_t *parent,
                            const char *lora_name, const char *cache_salt, uint8_t (*hashes)[WARMPATH_KV_HASH_SIZE]) {
    size_t lora, salt;
    int status = wp_text("lora_name", lora_name, &lora);
    if (status == WARMPATH_KV_OK) {
        status = wp_text("cache_salt", cache_salt, &salt);
    }
    if (status != WARMPATH_KV_OK) {
        return status;
    }
    if (block_size < 1 || block_size > MAX_BLOCK_SIZE) {
        return wp_fail(WARMPATH_KV_INVALID, "block size %u is not within 1..%u", (unsigned)block_size, MAX_BLOCK_SIZE);
    }
    size_t blocks = num_tokens / block_size;
    if (blocks > 0 && (token_ids == NULL || hashes == NULL)) {
        return wp_fail(WARMPATH_KV_INVALID, "token_ids or hashes is NULL");
    }
    struct sha256 h;
    uint8_t last[WARMPATH_KV_HASH_SIZE];
    if (parent != NULL) {
        memcpy(last, parent, sizeof last);
    } else {
        begin(&h);
        cbor_text(&h, "vllm-none-hash");
        finish(&h, last);
    }
    for (size_t i = 0; i < blocks; i++) {
        int salted = salt > 0 && parent == NULL && i == 0;
        begin(&h);
        cbor_head(&h, CBOR_ARRAY, 3);
        cbor_head(&h, CBOR_BYTES, sizeof last);
        add(&h, last, sizeof last);
        cbor_head(&h, CBOR_ARRAY, block_size);
        for (size_t t = 0; t < block_size; t++) {
            cbor_head(&h, CBOR_UNSIGNED, token_ids[i * block_size + t]);
        }
        if (lora == 0 && !salted) {
            add(&h, "\xf6", 1);
        } else {
            cbor_head(&h, CBOR_ARRAY, (lora > 0 ? 1u : 0u) + (salted ? 1u : 0u));
        }
        if (lora > 0) {
            cbor_head(&h, CBOR_ARRAY, 3);
            cbor_text(&h, "lora");
            cbor_text(&h, lora_name);
            cbor_text(&h, "");
        }
        if (salted) {
            cbor_head(&h, CBOR_ARRAY, 2);
            cbor_text(&h, "cache_salt");
            cbor_text(&h, cache_salt);
        }
        finish(&h, last);
        memcpy(hashes[i], last, sizeof last);
    }
    return WARMPATH_KV_OK;
}

uint64_t warmpath_kv_hash_number(const uint8_t *hash) {
    uint64_t n = 0;
    for (int i = WARMPATH_KV_HASH_SIZE - 8; i < WARMPATH_KV_HASH_SIZE; i++) {
        n = n << 8 | hash[i];
    }
    return n;
}
