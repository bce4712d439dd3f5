/* A process that does to files what a test without unsafe code cannot, one command a line: it
 * answers each with "ok" or the number of an error. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fd = -1;
static char *map = MAP_FAILED;
static size_t size;
static sigjmp_buf before_store;

/* The file was cut shorter than its mapping. */
static void on_bus_error(int signal) {
    (void)signal;
    siglongjmp(before_store, 1);
}

static int is_failed(const char *verb, const char *a, const char *b) {
    if (!strcmp(verb, "open"))
        return (fd = open(a, O_RDWR | O_CREAT, 0644)) < 0;
    if (!strcmp(verb, "close"))
        return close(fd);
    if (!strcmp(verb, "map")) {
        struct stat st;
        if (fstat(fd, &st))
            return 1;
        size = st.st_size;
        return (map = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED;
    }
    if (!strcmp(verb, "store")) {
        if (sigsetjmp(before_store, 1)) {
            errno = EFAULT;
            return 1;
        }
        memset(map, *a, size);
        return msync(map, size, MS_SYNC);
    }
    if (!strcmp(verb, "unmap"))
        return munmap(map, size);
    if (!strcmp(verb, "write"))
        return pwrite(fd, a, strlen(a), 0) < 0;
    if (!strcmp(verb, "truncate"))
        return ftruncate(fd, atoi(a));
    if (!strcmp(verb, "fallocate"))
        return fallocate(fd, 0, 0, atoi(a));
    if (!strcmp(verb, "copy")) {
        int from = open(a, O_RDONLY);
        loff_t in = 0, out = 0;
        int failed = from < 0 || copy_file_range(from, &in, fd, &out, 1, 0) < 0;
        close(from);
        return failed;
    }
    if (!strcmp(verb, "splice")) {
        int ends[2];
        loff_t at = 0;
        int failed = pipe(ends) || write(ends[1], a, strlen(a)) < 0 ||
                     splice(ends[0], 0, fd, &at, strlen(a), 0) < 0;
        close(ends[0]);
        close(ends[1]);
        return failed;
    }
    if (!strcmp(verb, "aio")) {
        aio_context_t context = 0;
        struct iocb request = {0}, *requests[1] = {&request};
        struct io_event done;
        request.aio_lio_opcode = IOCB_CMD_PWRITE;
        request.aio_fildes = fd;
        request.aio_buf = (uintptr_t)a;
        request.aio_nbytes = strlen(a);
        return syscall(SYS_io_setup, 1, &context) || syscall(SYS_io_submit, context, 1, requests) != 1 ||
               syscall(SYS_io_getevents, context, 1, 1, &done, 0) != 1;
    }
    if (!strcmp(verb, "tmpfile")) {
        fd = open(a, O_RDWR | O_TMPFILE, 0644);
        return fd < 0 || write(fd, "x", 1) != 1;
    }
    if (!strcmp(verb, "link")) {
        char from[32];
        snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
        return linkat(AT_FDCWD, from, AT_FDCWD, a, AT_SYMLINK_FOLLOW);
    }
    if (!strcmp(verb, "exchange"))
        return syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2 /* RENAME_EXCHANGE */);
    errno = EINVAL;
    return 1;
}

int main(void) {
    char line[8192];
    setvbuf(stdout, 0, _IOLBF, 0);
    signal(SIGBUS, on_bus_error);
    while (fgets(line, sizeof line, stdin)) {
        char *rest = line;
        line[strcspn(line, "\n")] = 0;
        const char *verb = strsep(&rest, "\t"), *a = strsep(&rest, "\t"), *b = strsep(&rest, "\t");
        if (is_failed(verb, a ? a : "", b ? b : ""))
            printf("%d\n", errno);
        else
            puts("ok");
    }
    return 0;
}
