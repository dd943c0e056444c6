/* cut - takes a connection away from a running process, or all of the loopback's packets from everybody.
 *
 * A connection is cut by taking a copy of one of the process's own sockets (pidfd_getfd) and shutting it down: both ends see
 * what they see when the other host resets it, at a moment that neither chose. Packets are lost by giving the loopback a queue
 * in which no packet has room: whoever sends hears nothing, not even a refusal. That needs a network namespace of one's own.
 *
 *   k2_cut socket PID DICE CONTROL_PORT   one of its connections, whichever the dice say; prints which kind
 *   k2_cut up | lose | restore            the loopback
 *
 * Exit status: 0 done, 1 there is none, 2 wrong use, 77 the system does not allow it.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKETS_MAX 1024

/* Few control connections and many of data: the dice choose a kind first. */
typedef enum kind { CONTROL, DATA, PAIR, KINDS } kind;
static const char *const kind_names[KINDS] = {"control", "data", "pair"};

typedef struct found {
    int fds[KINDS][SOCKETS_MAX], count[KINDS];
} found;

static int refused(const char *what)
{
    fprintf(stderr, "cut: %s: %s\n", what, strerror(errno));
    return errno == EPERM || errno == EACCES || errno == ENOSYS ? 77 : 1;
}

/* ---- sockets ------------------------------------------------------------------------------------------------------ */

static unsigned port_of(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET) return ntohs(((const struct sockaddr_in *)a)->sin_port);
    return ntohs(((const struct sockaddr_in6 *)a)->sin6_port);
}

/* KINDS where it is no connection. */
static kind kind_of(int fd, unsigned control_port)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_n = sizeof own, peer_n = sizeof peer;
    if (getsockname(fd, (struct sockaddr *)&own, &own_n) != 0 || getpeername(fd, (struct sockaddr *)&peer, &peer_n) != 0)
        return KINDS;
    if (own.ss_family == AF_INET || own.ss_family == AF_INET6)
        return control_port && (port_of(&own) == control_port || port_of(&peer) == control_port) ? CONTROL : DATA;
    if (own.ss_family != AF_UNIX) return KINDS;
    return own_n > sizeof(sa_family_t) || peer_n > sizeof(sa_family_t) ? CONTROL : PAIR;
}

static int is_socket(const char *pid, const char *fd)
{
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%.16s/fd/%.16s", pid, fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    return n > 7 && memcmp(target, "socket:", 7) == 0;
}

/* Copies of all connections of a process. */
static int look(const char *pid, unsigned control_port, found *f)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
    int pidfd = (int)syscall(SYS_pidfd_open, atoi(pid), 0);
    if (pidfd < 0) return refused("pidfd_open");
    DIR *dir = opendir(path);
    if (!dir) return refused(path);
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.' || !is_socket(pid, e->d_name)) continue;
        int fd = (int)syscall(SYS_pidfd_getfd, pidfd, atoi(e->d_name), 0);
        if (fd < 0 && errno == EBADF) continue; /* closed meanwhile */
        if (fd < 0) return refused("pidfd_getfd");
        kind k = kind_of(fd, control_port);
        if (k < KINDS && f->count[k] < SOCKETS_MAX) f->fds[k][f->count[k]++] = fd;
    }
    closedir(dir);
    return 0;
}

static int cut_socket(const char *pid, unsigned dice, unsigned control_port)
{
    static found f;
    int rc = look(pid, control_port, &f);
    if (rc != 0) return rc;
    unsigned kinds = 0;
    for (int k = 0; k < KINDS; k++) kinds += f.count[k] > 0;
    if (kinds == 0) return 1;
    unsigned nth = dice % kinds, k = 0;
    for (; f.count[k] == 0 || nth-- > 0; k++) continue;
    if (shutdown(f.fds[k][dice / kinds % (unsigned)f.count[k]], SHUT_RDWR) != 0) return 1;
    puts(kind_names[k]);
    return 0;
}

/* ---- the loopback --------------------------------------------------------------------------------------------------- */

static int loopback_up(void)
{
    struct ifreq r = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &r) != 0) return refused("lo");
    r.ifr_flags |= IFF_UP;
    return ioctl(fd, SIOCSIFFLAGS, &r) == 0 ? 0 : refused("lo");
}

static void attribute(struct nlmsghdr *h, unsigned short type, const void *data, unsigned short n)
{
    struct rtattr *a = (struct rtattr *)(void *)((char *)h + NLMSG_ALIGN(h->nlmsg_len));
    a->rta_type = type;
    a->rta_len = (unsigned short)RTA_LENGTH(n);
    memcpy(RTA_DATA(a), data, n);
    h->nlmsg_len = NLMSG_ALIGN(h->nlmsg_len) + RTA_ALIGN(a->rta_len);
}

/* A queue of one byte at the root, or the end of it. */
static int loopback_queue(unsigned short type)
{
    static const char name[] = "bfifo";
    static const struct tc_fifo_qopt one_byte = {.limit = 1};
    union {
        struct nlmsghdr head;
        char bytes[512];
    } m = {.head = {
               .nlmsg_len = NLMSG_LENGTH(sizeof(struct tcmsg)), .nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK}};
    if (type == RTM_NEWQDISC) m.head.nlmsg_flags |= NLM_F_CREATE | NLM_F_REPLACE;
    *(struct tcmsg *)NLMSG_DATA(&m.head) = (struct tcmsg){
        .tcm_family = AF_UNSPEC, .tcm_ifindex = (int)if_nametoindex("lo"), .tcm_handle = 0x10000, .tcm_parent = TC_H_ROOT};
    attribute(&m.head, TCA_KIND, name, sizeof name);
    if (type == RTM_NEWQDISC) attribute(&m.head, TCA_OPTIONS, &one_byte, sizeof one_byte);
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (fd < 0 || send(fd, &m, m.head.nlmsg_len, 0) < 0 ||
        recv(fd, &m, sizeof m, 0) < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)))
        return refused("netlink");
    errno = -((struct nlmsgerr *)NLMSG_DATA(&m.head))->error;
    return errno == 0 ? 0 : refused("the loopback's queue");
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "socket") == 0 && argc == 5)
        return cut_socket(argv[2], (unsigned)strtoul(argv[3], NULL, 10), (unsigned)strtoul(argv[4], NULL, 10));
    if (strcmp(what, "up") == 0) return loopback_up();
    if (strcmp(what, "lose") == 0) return loopback_queue(RTM_NEWQDISC);
    if (strcmp(what, "restore") == 0) return loopback_queue(RTM_DELQDISC);
    fprintf(stderr, "usage: k2_cut socket PID DICE CONTROL_PORT | up | lose | restore\n");
    return 2;
}
