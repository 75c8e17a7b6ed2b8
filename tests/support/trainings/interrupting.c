/* Interrupts a process at its n-th change of files below a folder: preload it, then call `arm` in the process.
 *
 * What is counted: opening to create, write, pwrite, writev, fsync, fdatasync, rename, unlink, mkdir, rmdir, truncate.
 * At the n-th one the process is killed before it (KILL), killed with half of it done (TORN), or told an error (ERROR).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, KILL, TORN, ERROR, COUNT };
static int mode = OFF, error = 0;
static long left = 0, seen = 0;
static char folder[PATH_MAX], trace[1 << 16];

void arm(const char *below, int how, long nth, int number) {
    snprintf(folder, sizeof folder, "%s", below);
    left = nth, error = number, seen = 0, trace[0] = 0;
    mode = how;
}
long disarm(void) { mode = OFF; return seen; }
const char *traced(void) { return trace; }

static int below(const char *path) { return strncmp(path, folder, strlen(folder)) == 0; }
static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length >= 0;
}
static int at(int dir, const char *path, char *whole) {
    if (path[0] == '/' || dir == AT_FDCWD) return snprintf(whole, PATH_MAX, "%s", path) > 0;
    char base[PATH_MAX];
    return path_of(dir, base) && snprintf(whole, PATH_MAX, "%.2000s/%.2000s", base, path) > 0;
}
/* 0: go on; 1: fail with errno; 2: do half, then die. */
static int due(const char *what, const char *path) {
    if (mode == OFF || !below(path)) return 0;
    seen++;
    size_t used = strlen(trace);
    snprintf(trace + used, sizeof trace - used, "%s %s\n", what, path + strlen(folder));
    if (mode == COUNT || --left != 0) return 0;
    if (mode == KILL) kill(getpid(), SIGKILL);
    if (mode == ERROR) { errno = error; return 1; }
    return 2;
}
static int due_fd(const char *what, int fd) {
    char path[PATH_MAX];
    return mode != OFF && path_of(fd, path) ? due(what, path) : 0;
}
static int due_at(const char *what, int dir, const char *path) {
    char whole[PATH_MAX];
    return mode != OFF && at(dir, path, whole) ? due(what, whole) : 0;
}
static void die(void) { kill(getpid(), SIGKILL); }
#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define ASK(call) switch (call) { case 1: return -1; case 2: die(); }

ssize_t write(int fd, const void *data, size_t size) {
    NEXT(write);
    switch (due_fd("write", fd)) { case 1: return -1; case 2: next(fd, data, size / 2); die(); }
    return next(fd, data, size);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
    NEXT(pwrite64);
    ASK(due_fd("pwrite", fd));
    return next(fd, data, size, offset);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    NEXT(writev);
    ASK(due_fd("writev", fd));
    return next(fd, parts, count);
}
int fsync(int fd) { NEXT(fsync); ASK(due_fd("fsync", fd)); return next(fd); }
int fdatasync(int fd) { NEXT(fdatasync); ASK(due_fd("fdatasync", fd)); return next(fd); }
int ftruncate64(int fd, off_t size) {
    NEXT(ftruncate64);
    ASK(due_fd("truncate", fd));
    return next(fd, size);
}
int rename(const char *from, const char *to) {
    NEXT(rename);
    ASK(due("rename", to));
    return next(from, to);
}
int unlink(const char *path) { NEXT(unlink); ASK(due("unlink", path)); return next(path); }
int unlinkat(int dir, const char *path, int flags) {
    NEXT(unlinkat);
    ASK(due_at("unlink", dir, path));
    return next(dir, path, flags);
}
int mkdir(const char *path, mode_t bits) {
    NEXT(mkdir);
    ASK(due("mkdir", path));
    return next(path, bits);
}
int rmdir(const char *path) { NEXT(rmdir); ASK(due("rmdir", path)); return next(path); }

static int open_at(int dir, const char *path, int flags, mode_t bits) {
    if (flags & O_CREAT) ASK(due_at("create", dir, path));
    return (int)syscall(SYS_openat, dir, path, flags | O_LARGEFILE, bits);
}
#define BITS va_list rest; va_start(rest, flags); mode_t bits = flags & O_CREAT ? va_arg(rest, mode_t) : 0; va_end(rest)
int open(const char *path, int flags, ...) { BITS; return open_at(AT_FDCWD, path, flags, bits); }
int open64(const char *path, int flags, ...) { BITS; return open_at(AT_FDCWD, path, flags, bits); }
int openat(int dir, const char *path, int flags, ...) { BITS; return open_at(dir, path, flags, bits); }
int openat64(int dir, const char *path, int flags, ...) { BITS; return open_at(dir, path, flags, bits); }
