/* Moves the wall clock of a process and of its children by CLOCK_SHIFT_S seconds; no other clock.
 *
 * Preloaded by `python -m tests.days`. Durations, sleeps and time-outs stay those of the machine: only a question for
 * the date is answered differently. A wait until a date gets that date moved back; a wait until a time of the monotonic
 * clock is told apart by its size, since no machine runs for thirty years.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define A_DATE 1000000000

typedef int cond_wait(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
typedef int sem_wait_until(sem_t *, const struct timespec *);

static time_t shift_s;
static cond_wait *real_cond;
static sem_wait_until *real_sem;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("CLOCK_SHIFT_S");
    shift_s = text ? atoll(text) : 0;
    real_cond = (cond_wait *)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* x86-64 has an older one */
    if (!real_cond) real_cond = (cond_wait *)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    real_sem = (sem_wait_until *)dlsym(RTLD_NEXT, "sem_timedwait");
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int code = (int)syscall(SYS_clock_gettime, id, at);
    if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += shift_s;
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int code = (int)syscall(SYS_gettimeofday, at, zone);
    if (code == 0) at->tv_sec += shift_s;
    return code;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

static struct timespec moved_back(const struct timespec *until) {
    struct timespec moved = *until;
    if (moved.tv_sec > A_DATE) moved.tv_sec -= shift_s;
    return moved;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec moved = moved_back(until);
    return real_cond(cond, mutex, &moved);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    struct timespec moved = moved_back(until);
    return real_sem(sem, &moved);
}
