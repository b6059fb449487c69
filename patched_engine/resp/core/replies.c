/* Replies: every header up to its CRLF, values straight into place, sizes never assumed. */
#include "core.h"

void settle(struct batch *b, uint32_t i, int outcome, const char *format, ...) {
    if (format) {
        va_list args;
        va_start(args, format);
        vsnprintf(b->details + (size_t)i * DETAIL, DETAIL, format, args);
        va_end(args);
    }
    b->outcomes[i] = (uint8_t)outcome;
}
void settle_rest(struct batch *b, uint32_t from, uint32_t to, int outcome, const char *why) {
    for (; from < to; from++) settle(b, from, outcome, "%s", why);
}

/* At least `size` unread bytes in `input`; reads at most `ahead` at a time, so that a large body
   behind a header still lands in its destination and not here. */
static int need(struct worker *w, size_t size, size_t ahead, int64_t at) {
    if (w->end - w->start >= size) return VALUE;
    if (w->start) {
        memmove(w->input, w->input + w->start, w->end - w->start);
        w->end -= w->start;
        w->start = 0;
    }
    if (size > INPUT) return PROTOCOL;
    size_t least = size - w->end, room = INPUT - w->end, got;
    if (ahead < least) ahead = least;
    int result = receive(w, w->input + w->end, least, ahead < room ? ahead : room, at, &got);
    w->end += got;
    return result;
}
/* One line without its CRLF: its length in *length, its first byte in *line. */
static int read_line(struct worker *w, size_t ahead, int64_t at, char **line, size_t *length) {
    size_t seen = 0;
    for (;;) {
        char *from = w->input + w->start;
        char *found = w->end - w->start > seen
            ? memmem(from + seen, w->end - w->start - seen, "\r\n", 2) : NULL;
        if (found) {
            *line = from;
            *length = (size_t)(found - from);
            w->start += *length + 2;
            return VALUE;
        }
        seen = w->end - w->start;
        int result = need(w, seen + 1, ahead, at);
        if (result != VALUE) return result;
        if (seen) seen--;  /* the CR may have been the last byte */
    }
}
static int number(const char *text, size_t length, int64_t *value) {
    int negative = length && *text == '-';
    size_t i = (size_t)negative;
    if (i == length || length - i > 18) return 0;
    if (text[i] == '0' && (length - i > 1 || negative)) return 0;
    for (*value = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return 0;
        *value = *value * 10 + (text[i] - '0');
    }
    if (negative) *value = -*value;
    return 1;
}
/* `size` bytes into `to` (NULL: thrown away), then their CRLF. */
static int take(struct worker *w, char *to, uint64_t size, size_t ahead, int64_t at) {
    int result = VALUE;
    while (size && result == VALUE) {
        size_t here = w->end - w->start;
        if (here) {
            size_t n = here < size ? here : size;
            if (to) memcpy(to, w->input + w->start, n), to += n;
            w->start += n;
            size -= n;
        } else if (to && size >= LARGE) {
            result = receive_body(w, to, size, at);
            size = 0;
        } else result = need(w, 1, !to ? INPUT : ahead > size + 2 ? ahead : size + 2, at);
    }
    if (result == VALUE) result = need(w, 2, ahead, at);
    if (result != VALUE) return result;
    int ended = !memcmp(w->input + w->start, "\r\n", 2);
    w->start += 2;
    return ended ? VALUE : PROTOCOL;
}
static int one_of(const char *set, char c) { return c && strchr(set, c); }
/* Reads past what is out of band (a push, an attribute), nested as it may be. */
static int skip(struct worker *w, char *line, size_t length, int depth, int64_t at) {
    int64_t n = 0;
    int pairs = *line == '%' || *line == '|', result = VALUE;
    if (!length || depth > NESTING) return PROTOCOL;
    if (one_of("+-:_#,(", *line)) return VALUE;
    if (!one_of("$!=*~>%|", *line) || !number(line + 1, length - 1, &n) || n < -1) return PROTOCOL;
    if (one_of("$!=", *line))
        return n > (int64_t)w->core->drain_bytes ? PROTOCOL
             : n < 0 ? VALUE : take(w, NULL, (uint64_t)n, PEEK, at);
    if (n > INPUT) return PROTOCOL;
    for (n = pairs ? 2 * n : n; n > 0 && result == VALUE; n--) {
        result = read_line(w, PEEK, at, &line, &length);
        if (result == VALUE) result = skip(w, line, length, depth + 1, at);
    }
    return result;
}
int reply(struct worker *w, struct batch *b, uint32_t i, size_t ahead, int64_t at) {
    char *line;
    size_t length;
    int result;
    for (;;) {
        result = read_line(w, ahead, at, &line, &length);
        if (result != VALUE) return result;
        if (!length || !one_of(">|", *line)) break;
        result = skip(w, line, length, 0, at);
        if (result != VALUE) return result;
    }
    int64_t n = 0;
    char type = length ? *line : 0;
    int counted = length && number(line + 1, length - 1, &n);
    if (type == '-') {
        settle(b, i, REFUSED, "%.*s", (int)length - 1, line + 1);
        return VALUE;
    }
    if (type == '!' && counted && n >= 0 && n < INPUT - 2) {
        result = need(w, (size_t)n + 2, ahead, at);
        if (result != VALUE) return result;
        char *text = w->input + w->start;
        settle(b, i, REFUSED, "%.*s", (int)n, text);
        w->start += (size_t)n + 2;
        return memcmp(text + n, "\r\n", 2) ? PROTOCOL : VALUE;
    }
    if (b->kind == GET && type == '$' && counted && n >= 0) {
        if ((uint64_t)n == b->sizes[i]) {
            result = take(w, (char *)(uintptr_t)b->data[i], (uint64_t)n, ahead, at);
            if (result == VALUE) settle(b, i, VALUE, NULL);
            return result;
        }
        settle(b, i, WRONG_SIZE, "the value is %lld bytes, %llu were expected", (long long)n,
               (unsigned long long)b->sizes[i]);
        return (uint64_t)n > w->core->drain_bytes ? WRONG_SIZE
             : take(w, NULL, (uint64_t)n, ahead, at);
    }
    if (b->kind == GET && ((type == '$' && counted && n == -1) || (type == '_' && length == 1))) {
        settle(b, i, MISS, NULL);
        return VALUE;
    }
    if (b->kind == SET && length == 3 && !memcmp(line, "+OK", 3)) {
        settle(b, i, VALUE, NULL);
        return VALUE;
    }
    if (b->kind >= EXISTS && type == ':' && counted && n >= 0) {
        settle(b, i, n ? VALUE : MISS, NULL);
        return VALUE;
    }
    settle(b, i, PROTOCOL, "no reply to %s begins with '%.*s'",
           (const char *[]){"GET", "SET", "EXISTS", "DEL"}[b->kind],
           (int)(length < 40 ? length : 40), line);
    return PROTOCOL;
}
