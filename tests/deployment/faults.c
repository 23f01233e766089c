/* A disk that fails: calls that change files inside a folder return an error, as `fault_plan` says.
   Preloaded into the processes that tests/deployment/restarts.py makes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NEVER, SYNC, WRITE, RENAME, LINK, MKDIR, CREATE };

static int planned = NEVER, error_number, first, every;
static atomic_int calls, failed;
static char folder[4096];

/* From the call number `at` on, each `then`-th call of a kind fails; with 0 only that one. */
void fault_plan(const char *inside, int kind, int error, int at, int then) {
    snprintf(folder, sizeof folder, "%s", inside);
    error_number = error;
    first = at;
    every = then;
    calls = 0;
    failed = 0;
    planned = kind;
}

int fault_count(void) { return failed; }

static int fails(int kind) {
    if (kind != planned) return 0;
    int number = ++calls;
    if (number < first || (every ? (number - first) % every : number != first)) return 0;
    failed++;
    errno = error_number;
    return 1;
}

static int inside(const char *path) { return planned != NEVER && !strncmp(path, folder, strlen(folder)); }

static int of_ours(int file) {
    char link[64], path[4096];
    if (planned == NEVER) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return inside(path);
}

#define REAL(name, type, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

int fsync(int file) { return of_ours(file) && fails(SYNC) ? -1 : REAL(fsync, int, int)(file); }
int fdatasync(int file) { return of_ours(file) && fails(SYNC) ? -1 : REAL(fdatasync, int, int)(file); }

/* Half of what should be written is there when a write fails. */
ssize_t write(int file, const void *data, size_t size) {
    if (of_ours(file) && fails(WRITE)) {
        if (size > 1 && REAL(write, ssize_t, int, const void *, size_t)(file, data, size / 2)) errno = error_number;
        return -1;
    }
    return REAL(write, ssize_t, int, const void *, size_t)(file, data, size);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    if (of_ours(file) && fails(WRITE)) {
        if (size > 1 && REAL(pwrite64, ssize_t, int, const void *, size_t, off64_t)(file, data, size / 2, at))
            errno = error_number;
        return -1;
    }
    return REAL(pwrite64, ssize_t, int, const void *, size_t, off64_t)(file, data, size, at);
}

int rename(const char *from, const char *to) {
    return inside(to) && fails(RENAME) ? -1 : REAL(rename, int, const char *, const char *)(from, to);
}

int link(const char *from, const char *to) {
    return inside(to) && fails(LINK) ? -1 : REAL(link, int, const char *, const char *)(from, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags) {
    return inside(to) && fails(LINK) ? -1
                                     : REAL(linkat, int, int, const char *, int, const char *, int)(a, from, b, to, flags);
}

int mkdir(const char *path, mode_t mode) {
    return inside(path) && fails(MKDIR) ? -1 : REAL(mkdir, int, const char *, mode_t)(path, mode);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (flags & O_CREAT && inside(path) && fails(CREATE)) return -1;
    return REAL(open64, int, const char *, int, ...)(path, flags, mode);
}
