/* Preloaded into a process: its reads and writes of regular files share one rate. See slow_disk.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double free_at; /* when the disk has done everything so far, on the monotonic clock */

/* Wait until a disk of this rate would have moved so many bytes after all others. */
static void wait_for_disk(int file, ssize_t bytes) {
    const char *rate = getenv("SLOW_DISK_BYTES_PER_SECOND");
    struct stat status;
    struct timespec now;
    double seconds, until;
    int error = errno;
    if (bytes > 0 && rate != NULL && fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        seconds = now.tv_sec + now.tv_nsec / 1e9;
        pthread_mutex_lock(&lock);
        free_at = (free_at > seconds ? free_at : seconds) + bytes / atof(rate);
        until = free_at;
        pthread_mutex_unlock(&lock);
        now.tv_sec = (time_t)until;
        now.tv_nsec = (long)((until - now.tv_sec) * 1e9);
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &now, NULL) == EINTR) {}
    }
    errno = error;
}

#define REPLACE(name, parameters, arguments)                                   \
    ssize_t name parameters {                                                  \
        static ssize_t(*original) parameters;                                  \
        if (!original) *(void **)&original = dlsym(RTLD_NEXT, #name);          \
        ssize_t bytes = original arguments;                                    \
        wait_for_disk(file, bytes);                                            \
        return bytes;                                                          \
    }

REPLACE(read, (int file, void *to, size_t count), (file, to, count))
REPLACE(write, (int file, const void *from, size_t count), (file, from, count))
REPLACE(pread64, (int file, void *to, size_t count, off64_t at), (file, to, count, at))
REPLACE(pwrite64, (int file, const void *from, size_t count, off64_t at), (file, from, count, at))
REPLACE(readv, (int file, const struct iovec *to, int count), (file, to, count))
REPLACE(writev, (int file, const struct iovec *from, int count), (file, from, count))
REPLACE(copy_file_range, (int from, off64_t *at, int file, off64_t *to, size_t count, unsigned flags),
        (from, at, file, to, count, flags))
