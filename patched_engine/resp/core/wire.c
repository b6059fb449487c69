/* One connection: bytes in and out, each call bounded by a deadline. */
#include "core.h"

static int wait_io(struct worker *w, short events, int64_t at) {
    struct pollfd p = {w->fd, events, 0};
    int64_t left = at == NEVER ? SLICE_MS * 1000000LL : at - now_ns();
    if (left <= 0) return DEADLINE;
    poll(&p, 1, (int)(sooner(left, SLICE_MS * 1000000LL) + 999999) / 1000000);
    return VALUE;
}
int receive(struct worker *w, char *to, size_t least, size_t room, int64_t at, size_t *got) {
    for (*got = 0; *got < least;) {
        ssize_t n = recv(w->fd, to + *got, room - *got, MSG_DONTWAIT);
        if (n > 0) *got += (size_t)n;
        else if (n == 0) return LOST;
        else if (errno == EAGAIN && wait_io(w, POLLIN, at) != VALUE) return DEADLINE;
        else if (errno != EAGAIN && errno != EINTR) return LOST;
    }
    return VALUE;
}
/* Straight into the destination. The kernel wakes us at low_water bytes, not at every segment. */
int receive_body(struct worker *w, char *to, size_t size, int64_t at) {
    int low = (int)w->core->low_water, raised = 0, result = VALUE;
    size_t got = 0;
    while (got < size && result == VALUE) {
        int wanted = low > 1 && size - got >= 2 * (size_t)low;
        if (wanted != raised) {
            int value = wanted ? low : 1;
            setsockopt(w->fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value);
            raised = wanted;
        }
        size_t ask = wanted ? size - got - (size_t)low : size - got;
        int soon = at != NEVER && at - now_ns() < 2 * SLICE_MS * 1000000LL;
        ssize_t n = recv(w->fd, to + got, ask, soon ? MSG_DONTWAIT : MSG_WAITALL);
        if (n > 0) got += (size_t)n;
        else if (n == 0) result = LOST;
        else if (errno == EAGAIN && soon) result = wait_io(w, POLLIN, at);
        else if (errno != EAGAIN && errno != EINTR) result = LOST;
        if (got < size && at <= now_ns()) result = DEADLINE;
    }
    int one = 1;
    if (raised) setsockopt(w->fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    return result;
}
int send_all(struct worker *w, struct iovec *v, size_t count, int64_t at) {
    struct msghdr m = {.msg_iov = v, .msg_iovlen = count};
    while (m.msg_iovlen) {
        int soon = at != NEVER && at - now_ns() < 2 * SLICE_MS * 1000000LL;
        ssize_t n = sendmsg(w->fd, &m, MSG_NOSIGNAL | (soon ? MSG_DONTWAIT : 0));
        if (n < 0) {
            if (errno == EAGAIN && at <= now_ns()) return DEADLINE;
            if (errno == EAGAIN && soon) wait_io(w, POLLOUT, at);
            else if (errno != EAGAIN && errno != EINTR) return LOST;
            continue;
        }
        for (; m.msg_iovlen && (size_t)n >= m.msg_iov->iov_len; m.msg_iov++, m.msg_iovlen--)
            n -= (ssize_t)m.msg_iov->iov_len;
        if (m.msg_iovlen) {
            m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + n;
            m.msg_iov->iov_len -= (size_t)n;
            if (at <= now_ns()) return DEADLINE;
        }
    }
    return VALUE;
}
void drop(struct worker *w) {
    pthread_mutex_lock(&w->core->lock);
    if (w->fd >= 0) close(w->fd);
    w->start = w->end = 0;
    __atomic_store_n(&w->fd, -1, __ATOMIC_RELEASE);
    pthread_cond_signal(&w->core->wanted);
    pthread_mutex_unlock(&w->core->lock);
}
/* True when an idle connection has something to read: its end, or an answer nobody asked for. */
int stale(struct worker *w) {
    struct pollfd p = {w->fd, POLLIN | POLLRDHUP, 0};
    return w->start != w->end || poll(&p, 1, 0) != 0;
}
