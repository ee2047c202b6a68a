/* A machine that can fail, for one server: preloaded into it, and told what to do by the page that it shares.

   TENURE_MACHINE  the page (struct machine below): everybody of the server sees a change at once
   TENURE_DISK     the folder that is on the bad disk
   TENURE_PLATTER  what is safe there if the power fails now: one file for each, by its inode, as it was last synced */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct machine {
    volatile int64_t clock_ns; /* by how much its wall clock is off */
    volatile int64_t full;     /* no file can grow */
    volatile int64_t broken;   /* no sync succeeds */
    volatile int64_t refused;  /* how often it said so */
};

static struct machine well, *machine = &well;
static const char *disk, *platter;

__attribute__((constructor)) static void begin(void) {
    const char *page = getenv("TENURE_MACHINE");
    int fd = page ? open(page, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof well, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED) return;
    machine = found;
    disk = strdup(getenv("TENURE_DISK")); /* PostgreSQL writes its titles over the environment */
    platter = strdup(getenv("TENURE_PLATTER"));
}

static int on_disk(int fd) {
    char link[64], path[PATH_MAX];
    if (!disk) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    size_t length = strlen(disk);
    return size > (ssize_t)length && !strncmp(path, disk, length) && path[length] == '/';
}

/* ── The disk ── */

static void must(int good, const char *what) {
    if (!good) {
        perror(what);
        abort(); /* the test would prove nothing */
    }
}

/* Read before the sync begins: what is there then is safe when the sync returns, and nothing else need be. */
static void keep(int fd) {
    struct statx facts;
    char path[PATH_MAX];
    static const size_t size = 1 << 16;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &facts) || !S_ISREG(facts.stx_mode)) return;
    snprintf(path, sizeof path, "%s/lock", platter);
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    must(lock >= 0 && !flock(lock, LOCK_EX), path);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int from = open(path, O_RDONLY | O_CLOEXEC);
    must(from >= 0, path);
    snprintf(path, sizeof path, "%s/%llu-%lld-%u", platter, (unsigned long long)facts.stx_ino,
             (long long)facts.stx_btime.tv_sec, facts.stx_btime.tv_nsec);
    int to = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    must(to >= 0, path);
    char *now = malloc(2 * size), *before = now + size;
    off_t at = 0;
    for (ssize_t got; (got = pread(from, now, size, at)) > 0; at += got)
        if (pread(to, before, got, at) != got || memcmp(now, before, got))
            must(syscall(SYS_pwrite64, to, now, got, at) == got, path);
    must(!ftruncate(to, at), path);
    free(now);
    close(from);
    close(to);
    close(lock);
}

static int synced(int fd, long call) {
    if (on_disk(fd)) {
        if (machine->broken) {
            __atomic_add_fetch(&machine->refused, 1, __ATOMIC_SEQ_CST);
            errno = EIO;
            return -1;
        }
        int error = errno;
        keep(fd);
        errno = error;
    }
    return syscall(call, fd);
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* at < 0: where the file is now */
static int refused(int fd, off_t at, size_t size) {
    struct stat facts;
    if (!machine->full || !on_disk(fd) || fstat(fd, &facts)) return 0;
    if (at < 0) at = fcntl(fd, F_GETFL) & O_APPEND ? facts.st_size : lseek(fd, 0, SEEK_CUR);
    if (at + (off_t)size <= facts.st_size) return 0;
    __atomic_add_fetch(&machine->refused, 1, __ATOMIC_SEQ_CST);
    errno = ENOSPC;
    return 1;
}

static size_t total(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

#define REAL(name)                  \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define WRITES(name, at, size, parameters, arguments)           \
    ssize_t name parameters {                                   \
        REAL(name);                                             \
        return refused(fd, at, size) ? -1 : real arguments;     \
    }

WRITES(write, -1, size, (int fd, const void *data, size_t size), (fd, data, size))
WRITES(pwrite, at, size, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRITES(pwrite64, at, size, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRITES(writev, -1, total(parts, count), (int fd, const struct iovec *parts, int count), (fd, parts, count))
WRITES(pwritev, at, total(parts, count), (int fd, const struct iovec *parts, int count, off_t at),
       (fd, parts, count, at))
WRITES(pwritev64, at, total(parts, count), (int fd, const struct iovec *parts, int count, off64_t at),
       (fd, parts, count, at))

#define ALLOCATES(name, offset)                                     \
    int name(int fd, offset at, offset size) {                      \
        REAL(name);                                                 \
        return refused(fd, at, size) ? ENOSPC : real(fd, at, size); \
    }

ALLOCATES(posix_fallocate, off_t)
ALLOCATES(posix_fallocate64, off64_t)

/* ── The clock ── */

int clock_gettime(clockid_t clock, struct timespec *now) {
    int answer = (int)syscall(SYS_clock_gettime, clock, now);
    if (!answer && machine->clock_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t all = now->tv_sec * 1000000000LL + now->tv_nsec + machine->clock_ns;
        now->tv_sec = all / 1000000000;
        now->tv_nsec = all % 1000000000;
    }
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    int answer = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return answer;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
