/* A clock that is wrong: what the C library calls the time is off by the seconds in /etc/rack/clock.
 *
 * For the fault clock-skew, through /etc/ld.so.preload. The kernel's own clock has no namespace, so a container cannot
 * have one that differs. Only the time of day is shifted; the monotonic clock, by which programs wait, stays right.
 * Programs that ask the kernel without the C library (Go's) are not fooled, nor are the times of files.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>

static time_t offset;

/* A deadline between these is a time of day: no machine has been up for 30 years, and later ones mean never. */
static int is_day(time_t seconds)
{
    return seconds > 946684800 && seconds < 1LL << 40;
}

__attribute__((constructor)) static void read_offset(void)
{
    FILE *file = fopen("/etc/rack/clock", "re");
    long seconds = 0;
    if (file) {
        if (fscanf(file, "%ld", &seconds) == 1)
            offset = seconds;
        fclose(file);
    }
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) \
        next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t clock, struct timespec *now)
{
    NEXT(clock_gettime);
    int result = next(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    NEXT(gettimeofday);
    int result = next(now, zone);
    if (!result)
        now->tv_sec += offset;
    return result;
}

time_t time(time_t *kept)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (kept)
        *kept = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

/* Who waits until a time of day means the shifted one; the kernel knows the right one. */
static const struct timespec *kernels(const struct timespec *until, struct timespec *room)
{
    if (!until || !is_day(until->tv_sec))
        return until;
    *room = *until;
    room->tv_sec -= offset;
    return room;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    NEXT(clock_nanosleep);
    struct timespec room;
    return next(clock, flags, flags & TIMER_ABSTIME ? kernels(time, &room) : time, left);
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    NEXT(pthread_cond_timedwait);
    struct timespec room;
    return next(cond, mutex, kernels(until, &room));
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    NEXT(pthread_mutex_timedlock);
    struct timespec room;
    return next(mutex, kernels(until, &room));
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until)
{
    NEXT(sem_timedwait);
    struct timespec room;
    return next(sem, kernels(until, &room));
}

int timerfd_settime(int timer, int flags, const struct itimerspec *time, struct itimerspec *old)
{
    NEXT(timerfd_settime);
    struct itimerspec shifted = *time;
    if (flags & TFD_TIMER_ABSTIME && is_day(time->it_value.tv_sec))
        shifted.it_value.tv_sec -= offset;
    return next(timer, flags, &shifted, old);
}
