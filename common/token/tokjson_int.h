/* tokjson_int - the parts of a tokenizer.json and what they share. Errors name the path in the file. */
#ifndef K2_TOKEN_TOKJSON_INT_H
#define K2_TOKEN_TOKJSON_INT_H

#include "common/token/token_int.h"

#include <cjson/cJSON.h>
#include <stdio.h>

/* An object that has no other keys than these. */
k2_code k2i_tokjson_known(const cJSON *object, const char *path, const char *const *keys, size_t count, k2_error *err);
/* A key that is true or false; missing or null leaves *out. */
k2_code k2i_tokjson_flag(const cJSON *object, const char *path, const char *key, bool *out, k2_error *err);
/* A key that must be missing, null, false, 0 or "". */
k2_code k2i_tokjson_refuse(const cJSON *object, const char *path, const char *key, k2_error *err);
const char *k2i_tokjson_type(const cJSON *object); /* "" where there is none */
k2_code k2i_tokjson_unknown(const cJSON *object, const char *path, k2_error *err);

/* null, NFC, or a Sequence of them (tokjson_steps.c). */
k2_code k2i_tokjson_normalizer(k2_tokenizer *t, const cJSON *part, const char *path, k2_error *err);
/* Split, Digits, ByteLevel, or a Sequence of them that ends in ByteLevel. */
k2_code k2i_tokjson_pre_tokenizer(k2_tokenizer *t, const cJSON *part, k2_error *err);
/* A post-processor or decoder that changes no id of text: null, ByteLevel, TemplateProcessing, or a Sequence of them. */
k2_code k2i_tokjson_outer(const cJSON *part, const char *path, k2_error *err);

#endif
