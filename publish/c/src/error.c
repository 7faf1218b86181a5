#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

static _Thread_local char details[256] = "no error";

int wp_fail(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(details, sizeof details, format, args);
    va_end(args);
    return status;
}

const char *warmpath_kv_last_error(void) { return details; }

const char *warmpath_kv_version(void) { return WARMPATH_KV_VERSION; }

const char *warmpath_kv_strerror(int status) {
    switch (status) {
    case WARMPATH_KV_OK:
        return "no error";
    case WARMPATH_KV_INVALID:
        return "an argument is wrong";
    case WARMPATH_KV_TOO_LARGE:
        return "the batch is too large: publish its events in several batches";
    case WARMPATH_KV_NO_MEMORY:
        return "no memory";
    case WARMPATH_KV_ENDPOINT:
        return "an endpoint cannot be opened";
    case WARMPATH_KV_FORKED:
        return "the publisher belongs to the parent of this process: make one in the process that publishes";
    case WARMPATH_KV_SYSTEM:
        return "the system refused a thread or a pipe";
    }
    return "unknown status";
}
