/* utf8_int - bytes in any pieces to text that is always valid UTF-8. */
#ifndef K2_TOKEN_UTF8_INT_H
#define K2_TOKEN_UTF8_INT_H

#include "common/token/token.h"

/* One more byte: whole characters are appended to out, the beginning of one stays in s. False: out is full. */
bool k2i_utf8_byte(k2_token_stream *s, unsigned char byte, k2_buf *out);
/* No byte will follow what is pending: it becomes one U+FFFD. False: out is full. */
bool k2i_utf8_flush(k2_token_stream *s, k2_buf *out);

#endif
