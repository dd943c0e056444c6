/* Messages. */
#include "common/wire/wire.h"

const char *k2_msg_name(k2_msg_type type)
{
    static const char *const names[] = {"NONE",
#define K2_X(name, member, class) #name,
                                        K2_WIRE_MESSAGES(K2_X)
#undef K2_X
    };
    K2_ASSERT((unsigned)type < K2_COUNT(names));
    return names[type];
}
