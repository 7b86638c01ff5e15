/* listen.c - the listening socket, and enough file descriptors. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/server_private.h"

static int open_one(const struct addrinfo *a)
{
    int on = 1, off = 0;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0) return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

ltd_status srv__listen(const ltd_options *o, int *fd, char *address, size_t cap, ltd_err *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list;
    char port[16], host[NI_MAXHOST], bound[16];
    snprintf(port, sizeof port, "%lld", (long long)o->port);
    int rc = getaddrinfo(o->host, port, &hints, &list);
    if (rc) return ltd_fail(err, LTD_INVALID, "--host %s: %s", o->host, gai_strerror(rc));
    *fd = -1;
    int saved = EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a && *fd < 0; a = a->ai_next) {
        *fd = open_one(a);
        if (*fd < 0) saved = errno;
    }
    freeaddrinfo(list);
    if (*fd < 0)
        return ltd_fail(err, LTD_IO,
                        "cannot listen on %s port %s: %s (choose another with --host and --port)", o->host,
                        port, strerror(saved));
    struct sockaddr_storage name;
    socklen_t n = sizeof name;
    if (getsockname(*fd, (struct sockaddr *)&name, &n) != 0 ||
        getnameinfo((struct sockaddr *)&name, n, host, sizeof host, bound, sizeof bound,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(address, cap, "host=%s port=%s", o->host, port);
    else
        snprintf(address, cap, "host=%s port=%s", host, bound);
    return LTD_OK;
}

void srv__raise_nofile(int64_t want)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0 || (int64_t)l.rlim_cur >= want) return;
    l.rlim_cur = l.rlim_max == RLIM_INFINITY || (int64_t)l.rlim_max >= want ? (rlim_t)want : l.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &l) != 0 || (int64_t)l.rlim_cur < want)
        log_warn("server",
                 "event=few_descriptors limit=%lld wanted=%lld hint=\"raise LimitNOFILE or lower "
                 "--max-connections\"",
                 (long long)l.rlim_cur, (long long)want);
}
