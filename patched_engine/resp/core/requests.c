/* Requests: pipelined within a window, values sent from the caller's buffer without a copy. */
#include "core.h"

int send_some(struct worker *w, struct batch *b, uint32_t head, uint32_t end, uint32_t *sent) {
    static const char *const verbs[] = {"*2\r\n$3\r\nGET\r\n", "*3\r\n$3\r\nSET\r\n",
                                        "*2\r\n$6\r\nEXISTS\r\n", "*2\r\n$3\r\nDEL\r\n"};
    struct iovec v[VECTORS];
    size_t vectors = 0, used = 0, begun = 0;
    uint64_t flying = 0;
    for (uint32_t i = head; i < *sent; i++) flying += b->sizes[i];
    for (; *sent < end && *sent - head < PIPELINE; ++*sent) {
        uint32_t i = *sent;
        uint64_t from = i ? b->key_ends[i - 1] : 0, key = b->key_ends[i] - from;
        int by_copy = b->kind != SET || b->sizes[i] < BY_REFERENCE;
        size_t room = 96 + key + (b->kind == SET && by_copy ? b->sizes[i] : 0);
        if (i > head && flying + b->sizes[i] > w->core->window_bytes) break;
        if (used + room > OUTPUT || vectors + 3 > VECTORS) break;
        flying += b->sizes[i];
        used += (size_t)sprintf(w->output + used, "%s$%llu\r\n", verbs[b->kind],
                                (unsigned long long)key);
        memcpy(w->output + used, b->keys + from, key);
        used += key;
        if (b->kind == SET) {
            used += (size_t)sprintf(w->output + used, "\r\n$%llu\r\n",
                                    (unsigned long long)b->sizes[i]);
            char *value = (char *)(uintptr_t)b->data[i];
            if (by_copy) {
                if (b->sizes[i]) memcpy(w->output + used, value, b->sizes[i]);
                used += b->sizes[i];
            } else {
                v[vectors++] = (struct iovec){w->output + begun, used - begun};
                v[vectors++] = (struct iovec){value, b->sizes[i]};
                begun = used;
            }
        }
        memcpy(w->output + used, "\r\n", 2);
        used += 2;
    }
    if (used > begun) v[vectors++] = (struct iovec){w->output + begun, used - begun};
    if (!vectors) return VALUE;
    return send_all(w, v, vectors, sooner(later(now_ns(), b->operation_ns), b->total_at));
}
