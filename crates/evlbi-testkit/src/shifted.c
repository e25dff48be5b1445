// Shifts the wall clock of a program that has this library preloaded: CLOCK_REALTIME and its coarse sibling, gettimeofday,
// time, and the kernel's receive time stamps (SCM_TIMESTAMPNS, SCM_TIMESTAMP) of recvmsg and recvmmsg.
//
// EVLBI_TEST_CLOCK="OFFSET SKEW": when the kernel's clock shows t nanoseconds since 1970, the program sees t + OFFSET + SKEW s,
// where s is the time in nanoseconds since it began.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

static long long offset, origin;
static double skew;

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static ssize_t (*real_recvmsg)(int, struct msghdr *, int);
static int (*real_recvmmsg)(int, struct mmsghdr *, unsigned, int, struct timespec *);

__attribute__((constructor)) static void prepare(void) {
    if (real_recvmmsg) return;
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_recvmsg = dlsym(RTLD_NEXT, "recvmsg");
    real_recvmmsg = dlsym(RTLD_NEXT, "recvmmsg");
    const char *said = getenv("EVLBI_TEST_CLOCK");
    if (!said || sscanf(said, "%lld %lf", &offset, &skew) != 2) {
        fputs("EVLBI_TEST_CLOCK is not OFFSET SKEW\n", stderr);
        abort();
    }
    struct timespec begin;
    real_clock_gettime(CLOCK_REALTIME, &begin);
    origin = begin.tv_sec * 1000000000LL + begin.tv_nsec;
}

static long long shifted(long long t) { return t + offset + (long long)(skew * (double)(t - origin)); }

static long long now(clockid_t id) {
    struct timespec time;
    prepare();
    real_clock_gettime(id, &time);
    return shifted(time.tv_sec * 1000000000LL + time.tv_nsec);
}

int clock_gettime(clockid_t id, struct timespec *time) {
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) {
        prepare();
        return real_clock_gettime(id, time);
    }
    long long t = now(id);
    *time = (struct timespec){t / 1000000000, t % 1000000000};
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    long long t = now(CLOCK_REALTIME);
    *time = (struct timeval){t / 1000000000, t % 1000000000 / 1000};
    return 0;
}

time_t time(time_t *time) {
    time_t seconds = now(CLOCK_REALTIME_COARSE) / 1000000000;
    if (time) *time = seconds;
    return seconds;
}

static void shift_stamps(struct msghdr *message) {
    for (struct cmsghdr *one = CMSG_FIRSTHDR(message); one; one = CMSG_NXTHDR(message, one)) {
        if (one->cmsg_level != SOL_SOCKET) continue;
        if (one->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec stamp;
            memcpy(&stamp, CMSG_DATA(one), sizeof stamp);
            long long t = shifted(stamp.tv_sec * 1000000000LL + stamp.tv_nsec);
            stamp = (struct timespec){t / 1000000000, t % 1000000000};
            memcpy(CMSG_DATA(one), &stamp, sizeof stamp);
        } else if (one->cmsg_type == SCM_TIMESTAMP) {
            struct timeval stamp;
            memcpy(&stamp, CMSG_DATA(one), sizeof stamp);
            long long t = shifted(stamp.tv_sec * 1000000000LL + stamp.tv_usec * 1000LL);
            stamp = (struct timeval){t / 1000000000, t % 1000000000 / 1000};
            memcpy(CMSG_DATA(one), &stamp, sizeof stamp);
        }
    }
}

ssize_t recvmsg(int socket, struct msghdr *message, int flags) {
    prepare();
    ssize_t length = real_recvmsg(socket, message, flags);
    if (length >= 0) shift_stamps(message);
    return length;
}

int recvmmsg(int socket, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout) {
    prepare();
    int received = real_recvmmsg(socket, messages, count, flags, timeout);
    for (int at = 0; at < received; at++) shift_stamps(&messages[at].msg_hdr);
    return received;
}
