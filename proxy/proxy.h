/* proxy - one OpenAI-compatible endpoint in front of all engines.
 *
 * Clients see /v1/completions, /v1/chat/completions (plain and streaming), /v1/models, /health, /metrics, GET /k2/engines,
 * GET /k2/requests and POST /k2/score. Behind it a request goes to the engine with the fewest outstanding tokens; the samples of one group stay on
 * one engine while load allows; a training request reaches only engines that echoed the digest in force; and when an engine dies in
 * mid-answer the rest is generated elsewhere from the token ids that came, so that the client sees one whole answer.
 *
 *        client ──► http server ──► core (who, when, again) ──► http client ──► engine
 *                                     ▲ engines, gate (master)     └─ tokens, failures ─► core
 *
 * A client that sends "K2-Broke-Max: N" (1 to 4) wants its request back when N engines were lost under it, rather than a further try:
 * what ends engines would end the next one. Any 502 or 503 then names them behind the error,
 * "k2": {"broke": [{"engine": id, "incarnation": n, "alone": true where nothing else was on it}]}. The master sends it.
 *
 * Engines without the k2 extension (vLLM, llama-server and the like) serve plain requests. Those that give token_ids
 * (vLLM does when asked) can be continued elsewhere; an answer of one that does not is begun anew while nothing of it has
 * reached the client, and breaks off with an error otherwise. They never get training requests.
 */
#ifndef K2_PROXY_H
#define K2_PROXY_H

/* k2_proxy_main - run the proxy of a run, or alone in front of given engines.
 *
 *   k2rl proxy --master URL --index I [--nonce N]             worker of a run; the configuration comes from the master
 *   k2rl proxy --listen HOST:PORT --engine URL [--engine URL ...] [--set proxy.key=value ...]
 *
 * argv[0] is "proxy". `--help` prints every option. Alone it prints "listening on http://HOST:PORT" when it is ready; SIGINT
 * and SIGTERM finish what runs and end it, a second one ends it at once.
 *
 * errors   the exit status: 0 after a clean stop, 2 for bad input or an address in use (one line on stderr), 1 otherwise
 * threads  call it once, from the main thread
 * tests    tests/unit/proxy, tests/interop/proxy
 */
int k2_proxy_main(int argc, char **argv);

#endif
