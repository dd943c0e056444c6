/* The proxy without the rest of k2rl: what run.sh measures. */
#include "proxy/proxy.h"

int main(int argc, char **argv)
{
    return k2_proxy_main(argc, argv);
}
