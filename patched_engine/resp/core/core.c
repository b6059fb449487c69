/* The queue, the workers and what Python calls. */
#include "core.h"
#include <signal.h>

API void resp_core_stop(struct core *c);
API void resp_core_free(struct core *c);

#define OVER "the client was closed"

static void wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t at) {
    struct timespec t = {at / 1000000000LL, at % 1000000000LL};
    if (at == NEVER) pthread_cond_wait(cond, lock);
    else pthread_cond_timedwait(cond, lock, &t);
}
/* Lock held. The batch may be freed by its owner as soon as the lock is released. */
static void account(struct core *c, struct batch *b, uint32_t settled) {
    if (b->left -= settled) return;
    b->done = 1;
    if (b->lane < 0) {
        pthread_cond_broadcast(&b->finished);
        return;
    }
    struct lane *lane = &c->lanes[b->lane];
    b->next = NULL;
    *lane->last = b;
    lane->last = &b->next;
    uint64_t one = 1;
    ssize_t ignored = write(lane->wake, &one, sizeof one);
    (void)ignored;
}

static int connected(struct worker *w, struct batch *b, char *why) {
    struct core *c = w->core;
    pthread_mutex_lock(&c->lock);
    int64_t until = sooner(later(now_ns(), b->connect_ns), b->total_at);
    int attempt = w->attempt;
    while (w->fd < 0 && !c->stop && now_ns() >= c->down_until && w->attempt == attempt) {
        w->wants = 1;
        pthread_cond_signal(&c->wanted);
        if (now_ns() >= until) break;
        wait_until(&c->attached, &c->lock, until);
    }
    int late = w->fd < 0 && !c->stop && w->attempt == attempt && now_ns() >= c->down_until;
    snprintf(why, DETAIL, "%s", late ? "no connection within the connect deadline" : c->reason);
    w->wants = 0;
    int done = w->fd >= 0;
    pthread_mutex_unlock(&c->lock);
    return done;
}
static const char *in_words(int result) {
    return result == LOST ? "the connection was cut before the reply was whole"
         : result == CLOSED ? OVER
         : result == DEADLINE ? "no whole reply within the deadline; the connection was closed"
         : "what came is no RESP reply; the connection was closed";
}
static void run(struct worker *w, struct tile *t) {
    struct batch *b = t->batch;
    uint32_t head = t->first, sent = head;
    char why[DETAIL];
    while (head < t->end) {
        if (b->total_at <= now_ns()) {
            if (sent > head) drop(w);
            settle_rest(b, head, t->end, DEADLINE, "not finished within the total deadline");
            return;
        }
        if (sent == head && connection(w) >= 0 && stale(w)) drop(w);
        if (connection(w) < 0 && !connected(w, b, why)) {
            int closed = w->core->stop;
            settle_rest(b, head, t->end, closed ? CLOSED : UNREACHABLE, closed ? OVER : why);
            return;
        }
        uint32_t before = sent;
        int result = send_some(w, b, head, t->end, &sent);
        if (before != sent) w->mark = now_ns();
        if (result == VALUE) {
            int64_t at = sooner(later(w->mark, b->operation_ns), b->total_at);
            size_t ahead = b->kind == GET && b->sizes[head] >= LARGE ? PEEK : INPUT;
            result = reply(w, b, head, ahead, at);
        }
        if (result == VALUE) {
            head++;
            w->mark = now_ns();
            continue;
        }
        drop(w);
        if (w->core->stop) result = CLOSED;
        if (!b->outcomes[head]) settle(b, head, result, "%s", in_words(result));
        head++;
        if (result == DEADLINE) {  /* those behind it waited as long */
            settle_rest(b, head, sent > head ? sent : head, DEADLINE, in_words(DEADLINE));
            head = sent > head ? sent : head;
        }
        sent = head;  /* never answered and not to blame: asked again on the next connection */
    }
}
static void *work(void *argument) {
    struct worker *w = argument;
    struct core *c = w->core;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->first && !c->stop) pthread_cond_wait(&c->work, &c->lock);
        struct tile *t = c->first;
        if (!t) break;  /* stopping, and the queue is empty */
        if (!(c->first = t->next)) c->last = &c->first;
        pthread_mutex_unlock(&c->lock);
        run(w, t);
        pthread_mutex_lock(&c->lock);
        account(c, t->batch, t->end - t->first);
        free(t);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}
/* Ends the tiles that nobody has begun by their total deadline, or at all when `everything`. */
static int64_t expire(struct core *c, int everything) {
    int64_t next = NEVER, now = now_ns();
    struct tile **link = &c->first;
    while (*link) {
        struct tile *t = *link;
        if (everything || t->batch->total_at <= now) {
            *link = t->next;
            settle_rest(t->batch, t->first, t->end, everything ? CLOSED : DEADLINE,
                        everything ? OVER : "not begun within the total deadline");
            account(c, t->batch, t->end - t->first);
            free(t);
        } else {
            next = sooner(next, t->batch->total_at);
            link = &t->next;
        }
    }
    c->last = link;
    return next;
}
static void *keep_time(void *argument) {
    struct core *c = argument;
    pthread_mutex_lock(&c->lock);
    while (!c->stop) wait_until(&c->timer, &c->lock, expire(c, 0));
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- what Python calls ---- */

API int resp_core_version(void) { return 1; }

API struct core *resp_core_new(int count, uint64_t drain_bytes, uint64_t window_bytes,
                               uint64_t low_water) {
    struct core *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    pthread_condattr_init(&c->monotonic);
    pthread_condattr_setclock(&c->monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, &c->monotonic);
    pthread_cond_init(&c->wanted, &c->monotonic);
    pthread_cond_init(&c->attached, &c->monotonic);
    pthread_cond_init(&c->timer, &c->monotonic);
    c->last = &c->first;
    c->drain_bytes = drain_bytes;
    c->window_bytes = window_bytes;
    c->low_water = low_water;
    sigset_t all, before;
    sigfillset(&all);  /* signals are for Python's threads: they must interrupt its own calls */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int kept = !pthread_create(&c->timekeeper, NULL, keep_time, c);
    c->workers = calloc((size_t)count, sizeof *c->workers);
    for (int i = 0; kept && c->workers && i < count; i++) {
        struct worker *w = &c->workers[i];
        *w = (struct worker){.core = c, .fd = -1, .input = malloc(INPUT), .output = malloc(OUTPUT)};
        if (!w->input || !w->output || pthread_create(&w->thread, NULL, work, w)) {
            free(w->input), free(w->output);
            break;
        }
        c->count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (c->count == count) return c;
    if (kept) resp_core_stop(c);
    resp_core_free(c);
    return NULL;
}
/* A queue of completions of its own; its eventfd becomes readable with each. -1: no more. */
API int resp_core_lane(struct core *c) {
    pthread_mutex_lock(&c->lock);
    int lane = c->lane_count < LANES ? c->lane_count : -1;
    if (lane >= 0 && (c->lanes[lane].wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) lane = -1;
    if (lane >= 0) {
        c->lanes[lane].last = &c->lanes[lane].first;
        c->lane_count++;
    }
    pthread_mutex_unlock(&c->lock);
    return lane;
}
API int resp_core_lane_fd(struct core *c, int lane) { return c->lanes[lane].wake; }

/* What is pointed to stays the caller's and must outlive the batch. NULL: closed or no memory. */
API struct batch *resp_core_submit(
    struct core *c, int kind, uint32_t count, uint32_t tile_size, const char *keys,
    const uint64_t *key_ends, const uint64_t *data, const uint64_t *sizes, uint8_t *outcomes,
    char *details, int64_t connect_ns, int64_t operation_ns, int64_t total_ns, int lane) {
    struct batch *b = calloc(1, sizeof *b);
    struct tile *tiles = NULL, **last = &tiles, *t;
    uint32_t pieces = 0;
    if (!b) return NULL;
    *b = (struct batch){
        .kind = kind, .count = count, .left = count, .keys = keys, .key_ends = key_ends,
        .data = data, .sizes = sizes, .outcomes = outcomes, .details = details,
        .connect_ns = connect_ns,
        .operation_ns = operation_ns, .total_at = later(now_ns(), total_ns), .lane = lane};
    pthread_cond_init(&b->finished, &c->monotonic);
    for (uint32_t i = 0; i < count; i += tile_size, pieces++) {
        if (!(t = malloc(sizeof *t))) break;
        *t = (struct tile){b, i, count - i < tile_size ? count : i + tile_size, NULL};
        *last = t;
        last = &t->next;
    }
    pthread_mutex_lock(&c->lock);
    if (c->stop || (uint64_t)pieces * tile_size < count) {
        pthread_mutex_unlock(&c->lock);
        while ((t = tiles)) tiles = t->next, free(t);
        free(b);
        return NULL;
    }
    *c->last = tiles;
    if (tiles) c->last = last;
    for (; pieces; pieces--) pthread_cond_signal(&c->work);
    if (b->total_at != NEVER) pthread_cond_signal(&c->timer);
    if (!count) account(c, b, 0);
    pthread_mutex_unlock(&c->lock);
    return b;
}
/* Whether the batch is done, after at most `span_ns`. */
API int resp_core_wait(struct core *c, struct batch *b, int64_t span_ns) {
    int64_t until = later(now_ns(), span_ns);
    pthread_mutex_lock(&c->lock);
    while (!b->done && now_ns() < until) wait_until(&b->finished, &c->lock, until);
    int done = b->done;
    pthread_mutex_unlock(&c->lock);
    return done;
}
API void resp_core_release(struct batch *b) { free(b); }

API uint32_t resp_core_drain(struct core *c, int lane, struct batch **out, uint32_t room) {
    uint32_t n = 0;
    uint64_t count;
    struct lane *l = &c->lanes[lane];
    pthread_mutex_lock(&c->lock);
    for (; l->first && n < room; l->first = l->first->next) out[n++] = l->first;
    if (!l->first) {
        l->last = &l->first;
        ssize_t ignored = read(l->wake, &count, sizeof count);
        (void)ignored;
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}
/* Blocks until a worker wants a connection and returns its index; -1 when closing. Once the server
   is known to be there, those without one get theirs before they need it: a batch then waits for
   no Python thread. */
API int resp_core_wanted(struct core *c) {
    int found = -1;
    pthread_mutex_lock(&c->lock);
    while (!c->stop && found < 0) {
        for (int i = 0; i < c->count && found < 0; i++)
            if (c->workers[i].wants && c->workers[i].fd < 0) found = i;
        for (int i = 0; c->warm && i < c->count && found < 0; i++)
            if (c->workers[i].fd < 0) found = i;
        if (found < 0) pthread_cond_wait(&c->wanted, &c->lock);
    }
    if (found >= 0) c->workers[found].wants = 0;
    pthread_mutex_unlock(&c->lock);
    return found;
}
/* Gives worker `index` a connected socket; 0 when closing: the socket stays the caller's. */
API int resp_core_attach(struct core *c, int index, int fd) {
    struct timeval slice = {0, SLICE_MS * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof slice);
    pthread_mutex_lock(&c->lock);
    int taken = !c->stop && c->workers[index].fd < 0;
    if (taken) {
        __atomic_store_n(&c->workers[index].fd, fd, __ATOMIC_RELEASE);
        c->down_until = 0;
        c->warm = 1;
        pthread_cond_broadcast(&c->attached);
    }
    pthread_mutex_unlock(&c->lock);
    return taken;
}
/* No connection for worker `index`, and none to be asked for during `pause_ns`. */
API void resp_core_refuse(struct core *c, int index, const char *reason, int64_t pause_ns) {
    pthread_mutex_lock(&c->lock);
    snprintf(c->reason, DETAIL, "%s", reason);
    c->down_until = later(now_ns(), pause_ns);
    c->workers[index].attempt++;
    c->warm = 0;
    pthread_cond_broadcast(&c->attached);
    pthread_mutex_unlock(&c->lock);
}
/* Ends every operation, shuts the sockets down, wakes every sleeper and joins the threads. */
API void resp_core_stop(struct core *c) {
    pthread_mutex_lock(&c->lock);
    c->stop = 1;
    expire(c, 1);
    for (int i = 0; i < c->count; i++)
        if (c->workers[i].fd >= 0) shutdown(c->workers[i].fd, SHUT_RDWR);
    pthread_cond_broadcast(&c->work);
    pthread_cond_broadcast(&c->wanted);
    pthread_cond_broadcast(&c->attached);
    pthread_cond_broadcast(&c->timer);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->count; i++) pthread_join(c->workers[i].thread, NULL);
    pthread_join(c->timekeeper, NULL);
}
/* In a forked child, where no thread of ours exists: its copies of the descriptors are closed. */
API void resp_core_close_fds(struct core *c) {
    for (int i = 0; i < c->count; i++)
        if (c->workers[i].fd >= 0) close(c->workers[i].fd), c->workers[i].fd = -1;
    for (int i = 0; i < c->lane_count; i++) close(c->lanes[i].wake);
    c->lane_count = 0;
}
/* After stop, once no thread waits in here any more. */
API void resp_core_free(struct core *c) {
    resp_core_close_fds(c);
    for (int i = 0; i < c->count; i++) free(c->workers[i].input), free(c->workers[i].output);
    free(c->workers);
    free(c);
}
