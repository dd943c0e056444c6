/* A model's config.json, the manifest of weights on the move, and the header of their segment. What is taken is written and
 * read back to the same. */
#include <string.h>

#include "common/weights/weights.h"
#include "tests/fuzz/harness/parser.h"

static bool dims(const uint8_t *text, size_t n)
{
    k2_dims d, back;
    k2_error err;
    k2_code code = k2_weights_dims_parse("dims", (const char *)text, n, &d, &err);
    K2_ASSERT(code == K2_OK || (err.code == code && strncmp(err.text, "dims", 4) == 0));
    if (code != K2_OK) return false;
    k2_buf first, second;
    k2_buf_init(&first, 1u << 16);
    k2_buf_init(&second, 1u << 16);
    k2_weights_dims_encode(&d, &first);
    code = k2_weights_dims_parse("again", first.data, first.len, &back, &err);
    K2_ASSERT(code == K2_OK);
    k2_weights_dims_encode(&back, &second);
    K2_ASSERT(strcmp(first.data, second.data) == 0);
    k2_buf_fini(&first);
    k2_buf_fini(&second);
    return true;
}

/* What is taken has both sides of a block, or none where nothing is quantised. */
static bool quant(const uint8_t *text, size_t n)
{
    k2_weights_quant q;
    k2_error err;
    const k2_code code = k2_weights_quant_parse("quant", (const char *)text, n, &q, &err);
    K2_ASSERT(code == K2_OK || (err.code == code && strncmp(err.text, "quant", 5) == 0));
    if (code != K2_OK) return false;
    K2_ASSERT(!q.block_rows == !q.block_columns && q.block_rows <= K2_DIM_WIDTH_MAX && q.block_columns <= K2_DIM_WIDTH_MAX);
    return true;
}

static bool manifest(const uint8_t *text, size_t n)
{
    k2_weights_manifest *m = NULL, *again = NULL;
    k2_error err;
    k2_code code = k2_weights_manifest_decode((const char *)text, n, &m, &err);
    K2_ASSERT(code == K2_OK || (err.code == code && err.text[0]));
    if (code != K2_OK) return false;
    k2_buf first, second;
    k2_buf_init(&first, 1u << 24);
    k2_buf_init(&second, 1u << 24);
    k2_weights_manifest_encode(m, &first);
    code = k2_weights_manifest_decode(first.data, first.len, &again, NULL);
    K2_ASSERT(code == K2_OK);
    k2_weights_manifest_encode(again, &second);
    K2_ASSERT(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    k2_weights_manifest_free(m);
    k2_weights_manifest_free(again);
    k2_buf_fini(&first);
    k2_buf_fini(&second);
    return true;
}

/* The bytes of the segment stand behind the header's 256. */
static bool segment(const uint8_t *bytes, size_t n)
{
    k2_weights_segment s;
    unsigned char back[K2_WEIGHTS_SEGMENT_HEADER_BYTES];
    if (n != sizeof back + 8) return false;
    if (k2_weights_segment_decode(bytes, k2_load_u64le(bytes + sizeof back), &s, NULL) != K2_OK) return false;
    k2_weights_segment_encode(&s, back);
    K2_ASSERT(memcmp(back, bytes, sizeof back) == 0);
    return true;
}

const k2_parser k2_parsers[] = {
    {.name = "config.json", .take = dims, .prefixes_refused = true},
    {.name = "quantization_config", .take = quant, .prefixes_refused = true},
    {.name = "manifest", .take = manifest, .prefixes_refused = true},
    {.name = "segment header", .take = segment, .prefixes_refused = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
