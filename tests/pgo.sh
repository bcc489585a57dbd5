#!/bin/bash
# Makes cmd/rdma-netstack/default.pgo, by which go build lays the command out (go.dev/doc/pgo):
# processor profiles of the benchmarks that do what servers do, client and server in one process on
# two software NICs, merged. Refresh it when the data path has changed much: each profile makes
# everything build anew. BENCHTIME=10s, by default, is for each benchmark.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export CGO_ENABLED=0 GOFLAGS="-pgo=off -trimpath"

profile() { # package, benchmarks
	go test -run '^$' -bench "$2" -benchtime "${BENCHTIME:-10s}" -o "$tmp/test" \
		-cpuprofile "$tmp/$(basename "$1").pprof" "$1"
}
profile ./stack 'HTTP|PingPong|Bulk|Dial$|UDPEcho'
profile ./link/rdma '^BenchmarkBulk|^BenchmarkRequest'
profile ./apps/httpd 'Request1KiB'
profile ./apps/dnsd 'Answer'
go tool pprof -proto "$tmp"/*.pprof >cmd/rdma-netstack/default.pgo 2>"$tmp/log" || {
	cat "$tmp/log" >&2
	exit 1
}
ls -l cmd/rdma-netstack/default.pgo
