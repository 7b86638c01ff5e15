/* bench_http.c - the server alone: frames a second and the loop's CPU time a frame, on the fake model, beside
 * a bare send(). bench_http [latentd-fake [seconds]] Starts the daemon, opens 1, 100 and 1,000 streams and
 * counts the frames that come; the loop's share is read from /proc (the daemon's first thread), so the
 * engine's and ours do not count.  The bare send() is of a chunk of the same size on a TCP connection of this
 * machine that a thread drains.  All of it shares this machine's cores with the daemon: CPU time a frame is
 * the figure, frames a second an indication. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/config.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/checkpoint_writer.h"

enum { MAX_STREAMS = 1000, FRAME_BYTES = 254, SENDS = 200000 };

static char folder[64] = "/tmp/latentd-bench-XXXXXX";

/* ---------------------------------------------------------------- the daemon */

static pid_t start(const char *binary, int *port)
{
    int out[2];
    LTD_CHECK(pipe(out) == 0, "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        setenv("FAKE_STEP_US", "20000", 1); /* 50 frames a second and stream */
        setenv("FAKE_NO_CHECKS", "1", 1);
        dup2(out[1], 2);
        close(out[0]);
        execl(binary, binary, "--model", folder, "--port", "0", "--max-running-requests", "1024",
              "--max-queued-requests", "2000", "--max-total-tokens", "4200000", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *log = fdopen(out[0], "r");
    char line[4096];
    bool ready = false;
    *port = 0;
    while (!ready && fgets(line, sizeof line, log)) {
        char *at = strstr(line, "event=listening");
        if (at && (at = strstr(at, "port="))) *port = atoi(at + 5);
        ready = strstr(line, "event=ready") != NULL;
    }
    LTD_CHECK(ready && *port, "%s does not start: %s", binary, line);
    return pid;
}

/* CPU time of the daemon's first thread, the loop. */
static double loop_cpu_s(pid_t pid)
{
    char path[64], text[1024];
    unsigned long user = 0, sys = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, pid);
    FILE *f = fopen(path, "r");
    LTD_CHECK(f && fgets(text, sizeof text, f), "%s", path);
    fclose(f);
    char *at = strrchr(text, ')');
    LTD_CHECK(at && sscanf(at + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) == 2,
              "%s", text);
    return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

static long rss_kb(pid_t pid)
{
    char path[64];
    long total = 0, rss = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    FILE *f = fopen(path, "r");
    LTD_CHECK(f && fscanf(f, "%ld %ld", &total, &rss) == 2, "%s", path);
    fclose(f);
    return rss * (sysconf(_SC_PAGESIZE) / 1024);
}

/* ---------------------------------------------------------------- streams */

static int open_stream(int port, int ep)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static const char body[] =
        "{\"prompt\":\"a\",\"max_tokens\":4000,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}";
    char text[512];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    LTD_CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect: %s", strerror(errno));
    int n = snprintf(text, sizeof text,
                     "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
                     "application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     sizeof body - 1, body);
    LTD_CHECK(send(fd, text, (size_t)n, MSG_NOSIGNAL) == n, "send");
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
    LTD_CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) == 0, "epoll_ctl");
    return fd;
}

typedef struct tally {
    int64_t frames, bytes, ended;
} tally;

/* Reads for some time; a stream that ends is opened again. */
static tally read_for(int *fds, int n, int port, int ep, double seconds)
{
    static char buf[65536];
    struct epoll_event ev[256];
    tally t = {0};
    int64_t end = ltd_now_us() + (int64_t)(seconds * 1e6);
    while (ltd_now_us() < end) {
        int k = epoll_wait(ep, ev, 256, 50);
        for (int i = 0; i < k; i++) {
            int fd = ev[i].data.fd;
            ssize_t got = recv(fd, buf, sizeof buf, 0);
            bool over = got <= 0;
            for (char *at = buf, *last = buf + (got > 0 ? got : 0);
                 at < last && (at = memmem(at, (size_t)(last - at), "data: ", 6)); at += 6) {
                t.frames++;
                over |= last - at > 11 && !memcmp(at + 6, "[DONE]", 6);
            }
            t.bytes += got > 0 ? got : 0;
            if (!over) continue;
            t.ended++;
            close(fd);
            for (int j = 0; j < n; j++)
                if (fds[j] == fd) fds[j] = open_stream(port, ep);
        }
    }
    return t;
}

static void measure(pid_t pid, int port, int n, double seconds)
{
    static int fds[MAX_STREAMS];
    int ep = epoll_create1(0);
    long before = rss_kb(pid);
    for (int i = 0; i < n; i++) fds[i] = open_stream(port, ep);
    read_for(fds, n, port, ep, 0.5);
    long during = rss_kb(pid);
    double cpu = loop_cpu_s(pid);
    int64_t from = ltd_now_us();
    tally t = read_for(fds, n, port, ep, seconds);
    double wall = (double)(ltd_now_us() - from) / 1e6;
    cpu = loop_cpu_s(pid) - cpu;
    printf("streams=%d frames_per_s=%.0f loop_us_per_frame=%.2f loop_cpu=%.0f%% bytes_per_frame=%.0f "
           "ended=%lld kb_per_stream=%.1f\n",
           n, (double)t.frames / wall, cpu / (double)t.frames * 1e6, 100 * cpu / wall,
           (double)t.bytes / (double)t.frames, (long long)t.ended, (double)(during - before) / n);
    for (int i = 0; i < n; i++) close(fds[i]);
    close(ep);
    usleep(500000);
}

/* ---------------------------------------------------------------- a bare send */

static void *drain(void *arg)
{
    static char buf[65536];
    struct epoll_event ev[256];
    int ep = *(int *)arg, open = MAX_STREAMS;
    while (open > 0) {
        int k = epoll_wait(ep, ev, 256, -1);
        for (int i = 0; i < k; i++) {
            if (recv(ev[i].data.fd, buf, sizeof buf, 0) > 0) continue;
            close(ev[i].data.fd);
            open--;
        }
    }
    return NULL;
}

/* One frame to each of MAX_STREAMS connections in turn, as the loop sends them; sender's CPU time only. */
static void bare_send(void)
{
    static int out[MAX_STREAMS];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    char frame[FRAME_BYTES];
    memset(frame, 'x', sizeof frame);
    int l = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(0), on = 1;
    LTD_CHECK(bind(l, (struct sockaddr *)&a, sizeof a) == 0 && listen(l, MAX_STREAMS) == 0 &&
                  getsockname(l, (struct sockaddr *)&a, &len) == 0,
              "listen");
    for (int i = 0; i < MAX_STREAMS; i++) {
        out[i] = socket(AF_INET, SOCK_STREAM, 0);
        LTD_CHECK(connect(out[i], (struct sockaddr *)&a, sizeof a) == 0, "connect");
        struct epoll_event ev = {.events = EPOLLIN, .data.fd = accept(l, NULL, NULL)};
        LTD_CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, ev.data.fd, &ev) == 0, "epoll_ctl");
        setsockopt(out[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    pthread_t th;
    pthread_create(&th, NULL, drain, &ep);
    struct rusage from, to;
    getrusage(RUSAGE_THREAD, &from);
    for (int i = 0; i < SENDS; i++)
        LTD_CHECK(send(out[i % MAX_STREAMS], frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame, "send");
    getrusage(RUSAGE_THREAD, &to);
    for (int i = 0; i < MAX_STREAMS; i++) close(out[i]);
    pthread_join(th, NULL);
    close(l);
    close(ep);
    double us =
        (double)(to.ru_utime.tv_sec - from.ru_utime.tv_sec + to.ru_stime.tv_sec - from.ru_stime.tv_sec) *
            1e6 +
        (double)(to.ru_utime.tv_usec - from.ru_utime.tv_usec + to.ru_stime.tv_usec - from.ru_stime.tv_usec);
    printf("bare_send connections=%d bytes=%d us_per_send=%.2f\n", MAX_STREAMS, FRAME_BYTES, us / SENDS);
}

int main(int argc, char **argv)
{
    const char *binary = argc > 1 ? argv[1] : "build/release/latentd-fake";
    double seconds = argc > 2 ? atof(argv[2]) : 5;
    int port;
    if (access(binary, X_OK) != 0) {
        printf("skipped: there is no %s (make %s)\n", binary, binary);
        return 0;
    }
    struct rlimit l = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &l);
    LTD_CHECK(mkdtemp(folder), "%s", folder);
    support_write_chain(folder, NULL, NULL, 0);
    support_write_byte_tokenizer(folder, NULL);
    bare_send();
    pid_t pid = start(binary, &port);
    measure(pid, port, 1, seconds);
    measure(pid, port, 100, seconds);
    measure(pid, port, MAX_STREAMS, seconds);
    bare_send();
    kill(pid, SIGTERM);
    int status;
    waitpid(pid, &status, 0);
    static const char *const files[] = {"config.json", "model.safetensors", "generation_config.json",
                                        "tokenizer.json"};
    char path[160];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
