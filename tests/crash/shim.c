/* Makes one system call of a process fail, tear or kill it: the n-th of a kind, on files below one directory.
 *
 * Preloaded into a Python process (tests/crash/zygote.py, tests/crash/fault_cli.py). Until `shim_arm` is called, or
 * when the environment has no plan, everything passes. It stands in front of the libc functions that CPython calls on
 * files, so a short write is really short and a torn one really torn.
 *
 * A flush that fails can take its data with it, as kernels do: what was written since the last flush is then
 * overwritten with zeros, and every later flush says OK. Whoever flushes again and reports success has lied.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* The order of both lists is that of shim.py. */
enum kind { OPEN, WRITE, READ, FSYNC, FDATASYNC, SYNCFS, TRUNCATE, ALLOCATE, RENAME, LINK, UNLINK, RMDIR, MKDIR,
            MKFIFO, FLOCK, SPACE, LIST, ENTRY, STAT, STATFS, FSTAT, DUP, SEEK, CLOSE, READLINK, THREAD, KINDS };
enum action { PASS, FAIL, SHORT, TORN_FAIL, TORN_KILL, KILL, KILL_AFTER, FAIL_LOST, FAIL_STUCK, FAIL_THEN_KILL };

#define DIRTY_MAX 4096
struct dirty { dev_t dev; ino_t ino; off_t at; size_t size; char path[256]; };

static int armed, fired, kill_next, fail_next;
static char prefix[PATH_MAX];
static size_t prefix_size;
static int plan_kind, plan_n, plan_action, plan_errno;
static int counts[KINDS];
static struct dirty dirty[DIRTY_MAX];
static int dirty_count;

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

void shim_arm(const char *where, int kind, int n, int action, int code) {
    snprintf(prefix, sizeof prefix, "%s", where);
    prefix_size = strlen(prefix);
    plan_kind = kind; plan_n = n; plan_action = action; plan_errno = code;
    memset(counts, 0, sizeof counts);
    fired = kill_next = fail_next = dirty_count = 0;
    armed = 1;
}

void shim_disarm(void) { armed = 0; }
int shim_count(int kind) { return counts[kind]; }
int shim_fired(void) { return fired; }

__attribute__((constructor)) static void from_environment(void) {
    const char *where = getenv("FILEWHEEL_SHIM_PREFIX"), *plan = getenv("FILEWHEEL_SHIM_PLAN");
    int kind, n, action, code;
    if (where && plan && sscanf(plan, "%d:%d:%d:%d", &kind, &n, &action, &code) == 4)
        shim_arm(where, kind, n, action, code);
}

__attribute__((destructor)) static void to_environment(void) {
    const char *path = getenv("FILEWHEEL_SHIM_COUNTS");
    if (!armed || !path) return;
    armed = 0;
    FILE *out = fopen(path, "w");
    if (!out) return;
    for (int i = 0; i < KINDS; i++) fprintf(out, "%d\n", counts[i]);
    fprintf(out, "%d\n", fired);
    fclose(out);
}

/* -- which calls are meant ---------------------------------------------------------------------------------- */

static int path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = syscall(SYS_readlink, link, path, size - 1);
    if (got < 0) return 0;
    path[got] = 0;
    return 1;
}

/* What the system tells about processes and mounts is asked for in the same calls, and fails for the same wants. */
static int below(const char *path) {
    return strncmp(path, prefix, prefix_size) == 0 || strncmp(path, "/proc/", 6) == 0;
}

static int is_ours(int fd) {
    char path[PATH_MAX];
    int saved = errno, is = armed && fd >= 0 && path_of(fd, path, sizeof path) && below(path);
    errno = saved;
    return is;
}

/* A close tells of an error only where the file system has kept a write back: of a regular file. */
static int may_keep_back(int fd) {
    struct stat info;
    int saved = errno, is = is_ours(fd) && !fstat(fd, &info) && S_ISREG(info.st_mode);
    errno = saved;
    return is;
}

static int is_ours_at(int dir, const char *name) {
    if (!armed || !name) return 0;
    return name[0] == '/' ? below(name) : dir >= 0 && is_ours(dir);
}

/* Count a call and say what happens to it. `space`: it may need room on the disk. */
static int meet(int kind, int space) {
    int n = __atomic_add_fetch(&counts[kind], 1, __ATOMIC_SEQ_CST), room = 0, hit;
    if (space) room = __atomic_add_fetch(&counts[SPACE], 1, __ATOMIC_SEQ_CST);
    if (kill_next) die();
    if (fail_next && (kind == WRITE)) { fail_next = 0; return FAIL; }
    if (plan_kind == SPACE) { kind = SPACE; n = space ? room : 0; }
    hit = kind == plan_kind && (n == plan_n || (plan_action == FAIL_STUCK && n >= plan_n));
    if (!hit) return PASS;
    fired = 1;
    if (plan_action == KILL) die();
    if (plan_action == FAIL_THEN_KILL) { kill_next = 1; return FAIL; }
    return plan_action == FAIL_STUCK ? FAIL : plan_action;
}

static long refuse(void) { errno = plan_errno; return -1; }
static long after(int action, long result) { if (action == KILL_AFTER) die(); return result; }

#define PLAIN(ours, kind, space, call) do { \
    if (!(ours)) return (call); \
    int action_ = meet(kind, space); \
    if (action_ == FAIL || action_ == FAIL_LOST) return refuse(); \
    return after(action_, (call)); \
} while (0)

/* -- what a failed flush takes with it ------------------------------------------------------------------------ */

static void note_dirty(int fd, off_t at, size_t size) {
    struct stat info;
    struct dirty *entry = &dirty[dirty_count];
    if (dirty_count == DIRTY_MAX || fstat(fd, &info) || !path_of(fd, entry->path, sizeof entry->path)) return;
    entry->dev = info.st_dev; entry->ino = info.st_ino; entry->at = at; entry->size = size;
    dirty_count++;
}

static void lose(const struct dirty *entry) {
    static const char zeros[4096];
    struct stat info;
    int fd = syscall(SYS_openat, AT_FDCWD, entry->path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return;
    if (!fstat(fd, &info) && info.st_dev == entry->dev && info.st_ino == entry->ino) {
        off_t at = entry->at, end = entry->at + (off_t)entry->size;
        if (end > info.st_size) end = info.st_size;
        while (at < end) {
            size_t part = end - at > (off_t)sizeof zeros ? sizeof zeros : (size_t)(end - at);
            if (syscall(SYS_pwrite64, fd, zeros, part, at) <= 0) break;
            at += part;
        }
    }
    syscall(SYS_close, fd);
}

/* Forget what this flush covers (everything with fd < 0), and lose it if told to. */
static void settle(int fd, int lost) {
    struct stat info;
    int kept = 0, saved = errno;
    if (fd >= 0 && fstat(fd, &info)) return;
    for (int i = 0; i < dirty_count; i++) {
        if (fd >= 0 && (dirty[i].dev != info.st_dev || dirty[i].ino != info.st_ino)) {
            dirty[kept++] = dirty[i];
            continue;
        }
        if (lost) lose(&dirty[i]);
    }
    dirty_count = kept;
    errno = saved;
}

static int flush(int fd, int kind, long number) {
    if (!is_ours(fd)) return syscall(number, fd);
    int action = meet(kind, 0);
    if (action == FAIL_LOST) settle(kind == SYNCFS ? -1 : fd, 1);
    if (action == FAIL || action == FAIL_LOST) return refuse();
    int result = syscall(number, fd);
    if (result == 0) settle(kind == SYNCFS ? -1 : fd, 0);
    return after(action, result);
}

int fsync(int fd) { return flush(fd, FSYNC, SYS_fsync); }
int fdatasync(int fd) { return flush(fd, FDATASYNC, SYS_fdatasync); }
int syncfs(int fd) { return flush(fd, SYNCFS, SYS_syncfs); }

/* -- reading and writing --------------------------------------------------------------------------------------- */

static ssize_t written(int fd, const void *data, size_t size, off_t at) {
    return at < 0 ? syscall(SYS_write, fd, data, size) : syscall(SYS_pwrite64, fd, data, size, at);
}

static ssize_t put(int fd, const void *data, size_t size, off_t at) {
    if (!is_ours(fd)) return written(fd, data, size, at);
    int action = meet(WRITE, 1);
    if (action == FAIL) return refuse();
    if (action == SHORT || action == TORN_FAIL || action == TORN_KILL) {
        if (size > 1) size /= 2;
        fail_next = action == TORN_FAIL;
    }
    ssize_t done = written(fd, data, size, at);
    if (action == TORN_KILL) die();
    if (done > 0 && at >= 0) note_dirty(fd, at, done);
    return after(action, done);
}

ssize_t write(int fd, const void *data, size_t size) { return put(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return put(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return put(fd, data, size, at); }

static ssize_t got(int fd, void *data, size_t size, off_t at) {
    return at < 0 ? syscall(SYS_read, fd, data, size) : syscall(SYS_pread64, fd, data, size, at);
}

static ssize_t get(int fd, void *data, size_t size, off_t at) {
    if (!is_ours(fd)) return got(fd, data, size, at);
    int action = meet(READ, 0);
    if (action == FAIL) return refuse();
    if (action == SHORT && size > 1) size /= 2;
    return after(action, got(fd, data, size, at));
}

ssize_t read(int fd, void *data, size_t size) { return get(fd, data, size, -1); }
ssize_t pread(int fd, void *data, size_t size, off_t at) { return get(fd, data, size, at); }
ssize_t pread64(int fd, void *data, size_t size, off64_t at) { return get(fd, data, size, at); }

int ftruncate(int fd, off_t size) { PLAIN(is_ours(fd), TRUNCATE, 0, syscall(SYS_ftruncate, fd, size)); }
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

off64_t lseek64(int fd, off64_t at, int whence) {
    PLAIN(is_ours(fd) && (whence == SEEK_DATA || whence == SEEK_HOLE), SEEK, 0, syscall(SYS_lseek, fd, at, whence));
}

/* The descriptor is gone, whatever it says. */
int close(int fd) {
    int fails = may_keep_back(fd) && meet(CLOSE, 0) == FAIL;
    int result = syscall(SYS_close, fd);
    return fails ? refuse() : result;
}

static int copy_of(int fd, int how, int least) { PLAIN(is_ours(fd), DUP, 0, syscall(SYS_fcntl, fd, how, least)); }

int fcntl64(int fd, int how, ...) {
    va_list rest;
    va_start(rest, how);
    long given = va_arg(rest, long);
    va_end(rest);
    if (how == F_DUPFD || how == F_DUPFD_CLOEXEC) return copy_of(fd, how, given);
    return syscall(SYS_fcntl, fd, how, given);
}
int dup(int fd) { return copy_of(fd, F_DUPFD, 0); }

/* It returns its error instead of setting errno. */
int posix_fallocate(int fd, off_t at, off_t size) {
    int action = is_ours(fd) ? meet(ALLOCATE, 1) : PASS;
    if (action == FAIL) return plan_errno;
    int result = syscall(SYS_fallocate, fd, 0, at, size) ? errno : 0;
    return after(action, result);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) { return posix_fallocate(fd, at, size); }

/* -- names ------------------------------------------------------------------------------------------------------ */

static int open_at(int dir, const char *name, int flags, mode_t mode) {
    PLAIN(is_ours_at(dir, name), OPEN, !!(flags & O_CREAT), syscall(SYS_openat, dir, name, flags, mode));
}

#define MODE(flags) mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); }

int open(const char *name, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, name, flags, mode); }
int openat(int dir, const char *name, int flags, ...) { MODE(flags) return open_at(dir, name, flags, mode); }
int openat64(int dir, const char *name, int flags, ...) { MODE(flags) return open_at(dir, name, flags, mode); }

int renameat(int a, const char *old, int b, const char *new) {
    PLAIN(is_ours_at(a, old), RENAME, 1, syscall(SYS_renameat2, a, old, b, new, 0));
}
int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

int linkat(int a, const char *old, int b, const char *new, int flags) {
    PLAIN(is_ours_at(a, old), LINK, 1, syscall(SYS_linkat, a, old, b, new, flags));
}

int unlinkat(int dir, const char *name, int flags) {
    PLAIN(is_ours_at(dir, name), flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, syscall(SYS_unlinkat, dir, name, flags));
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int dir, const char *name, mode_t mode) {
    PLAIN(is_ours_at(dir, name), MKDIR, 1, syscall(SYS_mkdirat, dir, name, mode));
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int mkfifoat(int dir, const char *name, mode_t mode) {
    PLAIN(is_ours_at(dir, name), MKFIFO, 1, syscall(SYS_mknodat, dir, name, mode | S_IFIFO, 0));
}

int flock(int fd, int how) { PLAIN(is_ours(fd), FLOCK, 0, syscall(SYS_flock, fd, how)); }

/* -- looking ---------------------------------------------------------------------------------------------------- */

static void *of_libc(const char *name) { return dlsym(RTLD_NEXT, name); }

DIR *fdopendir(int fd) {
    static DIR *(*real)(int);
    if (!real) real = of_libc("fdopendir");
    if (is_ours(fd) && meet(LIST, 0) == FAIL) { errno = plan_errno; return NULL; }
    return real(fd);
}

DIR *opendir(const char *name) {
    static DIR *(*real)(const char *);
    if (!real) real = of_libc("opendir");
    if (is_ours_at(AT_FDCWD, name) && meet(LIST, 0) == FAIL) { errno = plan_errno; return NULL; }
    return real(name);
}

/* The end of a listing is NULL with errno as it was; an error is NULL with errno set. */
struct dirent64 *readdir64(DIR *dir) {
    static struct dirent64 *(*real)(DIR *);
    if (!real) real = of_libc("readdir64");
    if (is_ours(dirfd(dir)) && meet(ENTRY, 0) == FAIL) { errno = plan_errno; return NULL; }
    return real(dir);
}
struct dirent *readdir(DIR *dir) { return (struct dirent *)readdir64(dir); }

int fstatat64(int dir, const char *name, struct stat64 *info, int flags) {
    PLAIN(is_ours_at(dir, name), STAT, 0, syscall(SYS_newfstatat, dir, name, info, flags));
}
int fstatat(int dir, const char *name, struct stat *info, int flags) {
    return fstatat64(dir, name, (struct stat64 *)info, flags);
}
int stat64(const char *name, struct stat64 *info) { return fstatat64(AT_FDCWD, name, info, 0); }
int lstat64(const char *name, struct stat64 *info) { return fstatat64(AT_FDCWD, name, info, AT_SYMLINK_NOFOLLOW); }
int fstat64(int fd, struct stat64 *info) { PLAIN(is_ours(fd), FSTAT, 0, syscall(SYS_fstat, fd, info)); }

ssize_t readlink(const char *name, char *target, size_t size) {
    PLAIN(is_ours_at(AT_FDCWD, name), READLINK, 0, syscall(SYS_readlink, name, target, size));
}

int fstatvfs64(int fd, struct statvfs64 *info) {
    static int (*real)(int, struct statvfs64 *);
    if (!real) real = of_libc("fstatvfs64");
    PLAIN(is_ours(fd), STATFS, 0, real(fd, info));
}
int fstatvfs(int fd, struct statvfs *info) { return fstatvfs64(fd, (struct statvfs64 *)info); }

/* -- threads ---------------------------------------------------------------------------------------------------- */

/* It returns its error. */
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *given) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) real = of_libc("pthread_create");
    if (armed && meet(THREAD, 0) == FAIL) return plan_errno;
    return real(thread, how, run, given);
}
