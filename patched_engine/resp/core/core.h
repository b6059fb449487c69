/* Moves RESP bytes between sockets and callers' buffers on threads that never need Python.

   A busy Python thread makes every wake-up of another one wait for the interpreter lock (5 ms
   each); here a batch costs one such wake-up, that of its caller. Sockets come in connected and
   authenticated from Python (attach). Every header is read up to its CRLF, whatever arrives in
   whatever pieces; no reply is read into memory sized by an assumption. One mutex guards queue,
   batches and completions, so nothing is completed before it is known. */
#ifndef STALLSCOPE_RESP_CORE_H
#define STALLSCOPE_RESP_CORE_H
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum outcome {
    PENDING, VALUE, MISS, WRONG_SIZE, REFUSED, LOST, UNREACHABLE, DEADLINE, PROTOCOL, CLOSED
};
enum kind { GET, SET, EXISTS, DEL };
enum { DETAIL = 160, INPUT = 65536, OUTPUT = 131072, LARGE = 16384, PEEK = 64, BY_REFERENCE = 4096,
       PIPELINE = 64, NESTING = 8, LANES = 64, VECTORS = 3 * PIPELINE + 1, SLICE_MS = 200 };
#define NEVER INT64_MAX
#define API __attribute__((visibility("default")))

struct batch {
    int kind;
    uint32_t count, left;
    const char *keys;          /* all keys in a row */
    const uint64_t *key_ends;  /* end of each in `keys` */
    const uint64_t *data;      /* address of each buffer, 0 for EXISTS and DEL */
    const uint64_t *sizes;
    uint8_t *outcomes;
    char *details;             /* DETAIL bytes a key: the error in words */
    int64_t connect_ns, operation_ns, total_at;
    int lane, done;
    pthread_cond_t finished;
    struct batch *next;
};
struct tile { struct batch *batch; uint32_t first, end; struct tile *next; };
struct lane { struct batch *first, **last; int wake; };
struct worker {
    struct core *core;
    pthread_t thread;
    int fd;                    /* set by Python's thread, under the lock; read by connection() */
    int wants, attempt;
    int64_t mark;              /* when the reply now awaited became the next one */
    size_t start, end;         /* unread bytes of `input` */
    char *input, *output;
};
struct core {
    pthread_mutex_t lock;
    pthread_condattr_t monotonic;
    pthread_cond_t work, wanted, attached, timer;
    struct tile *first, **last;
    struct lane lanes[LANES];
    struct worker *workers;
    pthread_t timekeeper;
    int count, stop, lane_count;
    int warm;                  /* the last attempt to connect succeeded */
    int64_t down_until;
    uint64_t drain_bytes, window_bytes, low_water;
    char reason[DETAIL];
};

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static inline int64_t later(int64_t from, int64_t span) {
    return span >= NEVER - from ? NEVER : from + span;
}
static inline int connection(struct worker *w) { return __atomic_load_n(&w->fd, __ATOMIC_ACQUIRE); }
static inline int64_t sooner(int64_t a, int64_t b) { return a < b ? a : b; }

/* replies.c: what a key ended as. */
void settle(struct batch *b, uint32_t i, int outcome, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void settle_rest(struct batch *b, uint32_t from, uint32_t to, int outcome, const char *why);

/* wire.c: VALUE when done, LOST or DEADLINE when the connection cannot go on. */
int receive(struct worker *w, char *to, size_t least, size_t room, int64_t at, size_t *got);
int receive_body(struct worker *w, char *to, size_t size, int64_t at);
int send_all(struct worker *w, struct iovec *v, size_t count, int64_t at);
int stale(struct worker *w);
void drop(struct worker *w);

/* replies.c: VALUE when key i is settled and the stream stands at the next reply; otherwise the
   connection cannot go on, and the key is charged with the reason returned. */
int reply(struct worker *w, struct batch *b, uint32_t i, size_t ahead, int64_t at);

/* requests.c: sends as many requests of [*sent, end) as the pipeline takes and moves *sent on. */
int send_some(struct worker *w, struct batch *b, uint32_t head, uint32_t end, uint32_t *sent);
#endif
