#!/usr/bin/env bash
# Requests/s and latency of the proxy against nginx in front of the same stub engine, in interleaved rounds; CSV on stdout:
#     name,value,unit,ratio,against
# usage: run.sh BUILD_DIR [ROUNDS [SECONDS]]
# One small plain completion a request. nginx passes the bytes on; the proxy reads the request, streams from the engine and puts
# the answer together. Exit status 77 with a reason where nginx or wrk is missing.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
build=${1:?usage: run.sh BUILD_DIR [ROUNDS [SECONDS]]} rounds=${2:-5} seconds=${3:-2}
here=$(cd "$(dirname "$0")" && pwd)
nginx=$(PATH=$PATH:/usr/sbin command -v nginx || true)
for tool in "$nginx:nginx" "$(command -v wrk || true):wrk"; do
  [ -n "${tool%:*}" ] || { echo "skipped: ${tool##*:} is not installed" >&2; exit 77; }
done

dir=$(mktemp -d /tmp/k2rl-proxy-bench.XXXXXX)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$dir"
}
trap cleanup EXIT
for f in stub proxy; do : >"$dir/$f.out"; done # there before anyone looks

# Waits for the line that names the address.
address() { # FILE
  for _ in $(seq 500); do
    sed -n 's|^listening on http://||p' "$1" | grep . && return 0
    read -rt 0.02 <> <(:) || true
  done
  echo "no address in $1" >&2
  return 1
}

mkfifo "$dir/alive"
exec 9<>"$dir/alive"
"$build/proxy_stub" 0 at-once <"$dir/alive" >>"$dir/stub.out" & pids+=($!)
stub=$(address "$dir/stub.out")
"$build/proxy_alone" --listen 127.0.0.1:0 --engine "http://$stub" --set log.level=error >>"$dir/proxy.out" & pids+=($!)
proxy=$(address "$dir/proxy.out")

port=$(( 10000 + $$ % 20000 )) # below the range that outgoing connections are given
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
cat >"$dir/nginx.conf" <<CONF
daemon off;
worker_processes 1;
pid $dir/nginx.pid;
error_log $dir/error.log crit;
events { worker_connections 4096; }
http {
  access_log off;
  client_body_temp_path $dir/body; proxy_temp_path $dir/temp;
  fastcgi_temp_path $dir/f; uwsgi_temp_path $dir/u; scgi_temp_path $dir/s;
  keepalive_requests 1000000000;
  upstream engine { server $stub; keepalive 256; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:$port;
    location / { proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
}
CONF
"$nginx" -p "$dir" -c "$dir/nginx.conf" & pids+=($!)
for _ in $(seq 500); do (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; read -rt 0.02 <> <(:) || true; done

cat >"$dir/post.lua" <<'LUA'
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model":"stub-model","prompt":[1,2,3,4,5,6,7,8],"max_tokens":4,"temperature":1,"logprobs":1}'
function done(summary, latency)
  io.write(string.format("RESULT %f %f %f %d\n", summary.requests / (summary.duration / 1e6), latency:percentile(50),
    latency:percentile(99),
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
LUA

measure() { # NAME ADDRESS CONNECTIONS
  local line
  line=$(wrk -t1 -c"$3" -d"${seconds}s" -s "$dir/post.lua" "http://$2/v1/completions" | grep '^RESULT')
  set -- "$1" "$3" $line
  [ "$7" = 0 ] || { echo "$1: $7 errors" >&2; exit 1; }
  echo "$4 $5 $6" >>"$dir/$1.$2"
}

for _ in $(seq "$rounds"); do
  for connections in 32 1; do
    measure direct "$stub" $connections
    measure nginx "127.0.0.1:$port" $connections
    measure proxy "$proxy" $connections
  done
done

median() { # FILE COLUMN
  sort -g -k"$2,$2" "$1" | awk -v c="$2" '{v[NR]=$c} END {print (NR % 2) ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'
}
row() { # NAME VALUE UNIT OTHER AGAINST
  awk -v n="$1" -v v="$2" -v u="$3" -v o="$4" -v a="$5" \
    'BEGIN {printf "%s,%.6g,%s,%s,%s\n", n, v, u, (o > 0 && v > 0 ? sprintf("%.3f", v / o) : ""), a}'
}

n=$(median "$dir/nginx.32" 1)
row stub_direct_requests "$(median "$dir/direct.32" 1)" requests/s "$n" nginx
row nginx_requests "$n" requests/s 0 ""
row proxy_requests "$(median "$dir/proxy.32" 1)" requests/s "$n" nginx
for p in 50 99; do
  column=$((p == 50 ? 2 : 3))
  d=$(median "$dir/direct.1" $column) n=$(median "$dir/nginx.1" $column) x=$(median "$dir/proxy.1" $column)
  added_n=$(awk -v a="$n" -v b="$d" 'BEGIN {print a - b}') added_x=$(awk -v a="$x" -v b="$d" 'BEGIN {print a - b}')
  row "nginx_added_p$p" "$added_n" us 0 ""
  row "proxy_added_p$p" "$added_x" us "$added_n" nginx
done
