/* The proxy without the rest of k2rl: what run.sh measures. */
#include "common/net/net.h"
#include "proxy/proxy.h"

int main(int argc, char **argv)
{
    k2_net_process_begin();
    k2_net_process_end(k2_proxy_main(argc, argv));
}
